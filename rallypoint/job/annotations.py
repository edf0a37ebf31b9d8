"""AppWrapper annotations of a job: read from a job file or an AppWrapper, and written for an AppWrapper. Pure.

Durations are Go's (`1h30m`, `300ms`, signed, `0` without a unit), and may also have days; they are written without days.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rallypoint.job.duration import parse_duration
from rallypoint.job.endings import read_codes
from rallypoint.job.errors import JobError, Problem, dotted, show
from rallypoint.job.rules import MOST_RESETS
from rallypoint.job.values import RefusedError

if TYPE_CHECKING:
    from rallypoint.job.fields import JobFields

__all__ = ["ANNOTATIONS", "PREFIX", "Annotation", "PolicyRead", "read_annotations", "write_annotations"]

PREFIX = "workload.codeflare.dev.appwrapper/"

_DAY, _TTL = 86400.0, 604800.0

#: Only Go's units, which the AppWrapper controller can read.
_FORMS = "90s, 1h30m, 300ms, 24h or 0"
_GO = re.compile(r"([+-]?)((?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h|d))+|0)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SMALLEST = Fraction(1, 10**9)


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One annotation.

    Attributes:
        field: of `fault_tolerance`, which it sets.
        allowed: completes the sentence "'x' is not allowed; ...".
        read: reads its text; raises `RefusedError` for malformed text; does not check limits.
        bound: limits a value as the AppWrapper controller does.
        fits: whether a job file may have the value.
        write: returns its text.
    """

    field: str
    allowed: str
    read: Callable[[str], Any]
    bound: Callable[[Any], Any]
    fits: Callable[[Any], bool]
    write: Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class PolicyRead:
    """Values of annotations by field of `fault_tolerance`, and `warnings` about values that were changed or ignored."""

    values: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def _read_duration(text: str) -> float:
    match = _GO.fullmatch(text)
    if match is None:
        raise RefusedError
    seconds = parse_duration(match[2])
    return -seconds if match[1] == "-" and seconds else seconds


def _write_duration(seconds: float) -> str:
    exact = Fraction(repr(seconds))
    if exact < _SMALLEST:
        return "0s"
    minutes, rest = divmod(exact, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{amount}{unit}" for amount, unit in ((hours, "h"), (minutes, "m")) if amount]
    return "".join([*parts, f"{_decimal(rest)}s"] if rest or not parts else parts)


def _decimal(exact: Fraction) -> str:
    # Exact, since it came from a float's shortest decimal; Go has no exponents.
    digits = 0
    while (exact * 10**digits).denominator != 1:
        digits += 1
    whole, rest = divmod(int(exact * 10**digits), 10**digits)
    return f"{whole}.{rest:0{digits}d}" if digits else str(whole)


def _read_integer(text: str) -> int:
    if _INTEGER.fullmatch(text):
        return int(text)
    raise RefusedError


def _grace(name: str) -> Annotation:
    return _duration(name, f"from 0s to {_write_duration(_DAY)}", lambda seconds: min(max(seconds, 0.0), _DAY))


def _ttl(name: str) -> Annotation:
    # The controller's own value is the maximum, and replaces every value out of range.
    bounds = f"more than 0s and at most {_write_duration(_TTL)}"
    return _duration(name, bounds, lambda seconds: seconds if 0 < seconds <= _TTL else _TTL)


def _duration(name: str, bounds: str, bound: Callable[[float], float]) -> Annotation:
    return Annotation(
        field=name,
        allowed=f"a duration with units such as {_FORMS}, {bounds}",
        read=_read_duration,
        bound=bound,
        fits=lambda seconds: bound(seconds) == seconds,
        write=_write_duration,
    )


def _limit(name: str) -> Annotation:
    # An AppWrapper may have any limit; a negative one allows no retry, as 0 does.
    return Annotation(
        field=name,
        allowed=f"a whole number from 0 to {MOST_RESETS}",
        read=_read_integer,
        bound=lambda limit: max(limit, 0),
        fits=lambda limit: 0 <= limit <= MOST_RESETS,
        write=str,
    )


def _always(_codes: Any) -> bool:
    return True


def _codes(name: str) -> Annotation:
    return Annotation(
        field=name,
        allowed="exit codes from 0 to 255, separated by commas",
        read=read_codes,
        bound=lambda codes: codes,
        fits=_always,
        write=lambda codes: ",".join(map(str, codes)),
    )


#: By the part of the key behind the prefix.
ANNOTATIONS: Mapping[str, Annotation] = {
    "admissionGracePeriodDuration": _grace("admission_grace_period"),
    "warmupGracePeriodDuration": _grace("warmup_grace_period"),
    "failureGracePeriodDuration": _grace("failure_grace_period"),
    "retryPausePeriodDuration": _grace("retry_pause_period"),
    "forcefulDeletionGracePeriodDuration": _grace("forceful_deletion_grace_period"),
    "deletionOnFailureGracePeriodDuration": _grace("deletion_on_failure_grace_period"),
    "successTTLDuration": _ttl("success_ttl"),
    "retryLimit": _limit("retry_limit"),
    "terminalExitCodes": _codes("terminal_exit_codes"),
    "retryableExitCodes": _codes("retryable_exit_codes"),
}


def read_annotations(annotations: Mapping[str, str], *, clamp: bool = True) -> PolicyRead:
    """Read the annotations of an AppWrapper; annotations with other prefixes are ignored.

    Args:
        annotations: as Kubernetes has them.
        clamp: take an AppWrapper's annotations as its controller does: what is out of range is brought into it and what is
            not known is ignored, each with a warning. Without it, as for a job file, both are errors.

    Raises:
        JobError: a value is malformed, whatever `clamp` says; it names each such key, its value and what is allowed.
    """
    values: dict[str, Any] = {}
    warnings: list[str] = []
    wrong: list[Problem] = []
    for key, text in annotations.items():
        if not key.startswith(PREFIX):
            continue
        known = ANNOTATIONS.get(key.removeprefix(PREFIX))
        try:
            if known is None and clamp:
                warnings.append(f"{key}: is not a known annotation and is ignored")
            elif known is None:
                wrong.append(
                    Problem(path=dotted(("annotations", key)), text=f"is not a known AppWrapper annotation; {_hint(key)}")
                )
            else:
                values[known.field], warned = _taken(known, key, text, clamp=clamp)
                warnings += warned
        except RefusedError as error:
            wrong.append(Problem(path=dotted(("annotations", key)), text=str(error)))
    if wrong:
        raise JobError(wrong)
    return PolicyRead(values=values, warnings=tuple(warnings))


def _taken(known: Annotation, key: str, text: str, *, clamp: bool) -> tuple[Any, list[str]]:
    """Return the used value, and a warning if it differs from the written value."""
    told = f"{show(text)} is not allowed; expected {known.allowed}"
    try:
        value = known.read(text)
    except RefusedError as error:
        raise RefusedError(told) from error
    if not clamp and not known.fits(value):
        raise RefusedError(told)
    bounded = known.bound(value)
    return bounded, [] if bounded == value else [f"{key}: {show(text)} is out of range; using {known.write(bounded)}"]


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key.removeprefix(PREFIX), ANNOTATIONS, n=1)
    return f"did you mean {PREFIX + near[0]!r}?" if near else f"expected {PREFIX} with one of {', '.join(ANNOTATIONS)}"


def write_annotations(job: JobFields) -> dict[str, str]:
    """Return the annotations that give an AppWrapper this job's policies; empty lists of exit codes are omitted.

    Every other one is written, since a controller may have other defaults. `success_ttl` has a ceiling there: reading a longer
    one tells so.
    """
    written = {key: known.write(getattr(job.fault_tolerance, known.field)) for key, known in ANNOTATIONS.items()}
    return {f"{PREFIX}{key}": text for key, text in written.items() if text}
