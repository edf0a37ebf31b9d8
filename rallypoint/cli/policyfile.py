"""The policy of `rallypoint simulate`: from a job file, from policy fields, or from AppWrapper annotations.

What a policy by itself does not give has the defaults of its profile, exactly as in a job file: a small job is made of it and
compiled. One that speaks in AppWrapper's annotations, or names its profile, is an AppWrapper's: fixed world, wrapped components
(`wrapped: false` tries the same rules on pods that Rallypoint makes itself).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.cli.jobfile import with_settings
from rallypoint.job import JobError, compile_plan, load_job
from rallypoint.job.annotations import ANNOTATIONS, PREFIX, read_annotations
from rallypoint.job.document import read_document
from rallypoint.job.duration import DurationError, parse_duration
from rallypoint.job.profiles import specs
from rallypoint.supervision.policy import Policy
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.plan import Profile

__all__ = ["PolicyRead", "edit", "read_policy", "read_trace_file"]

#: Any script, because no process is started.
_ENTRYPOINT = "simulated.py"

#: Fields of a job's `fault_tolerance` by what the policy calls them.
_SHORT = {
    "admission_grace_period": "admission_grace",
    "warmup_grace_period": "warmup_grace",
    "failure_grace_period": "failure_grace",
    "retry_pause_period": "retry_pause",
    "forceful_deletion_grace_period": "forceful_deletion_grace",
    "deletion_on_failure_grace_period": "deletion_on_failure_grace",
}

_HINTS = typing.get_type_hints(Policy)
_FIELDS = tuple(field.name for field in dataclasses.fields(Policy))
_BOUNDS = ("min_nodes", "max_nodes")

#: Keys of a job that a policy file may have: those of profiles with a block.
_OF_JOB = ("annotations", "labels", *(profile.BLOCK for profile in specs().values()))


@dataclass(frozen=True, kw_only=True)
class PolicyRead:
    """A policy, and warnings about annotations that were corrected."""

    policy: Policy
    warnings: tuple[str, ...] = ()


def read_policy(path: Path, *, settings: Iterable[str] = ()) -> PolicyRead:
    """Return the policy of a file, changed by `KEY=VALUE` settings; raises `JobError` and `WireError` with the field."""
    document = with_settings(read_document(path), settings)
    if not isinstance(document, Mapping):
        raise WireError(str(path), document, "a job file, or a mapping of policy fields")
    if "entrypoint" in document or "roles" in document:
        return PolicyRead(policy=_of_job(document, path))
    return _of_fields(document, str(path))


def _of_job(document: Mapping[str, Any], path: Path) -> Policy:
    try:
        plans = compile_plan(load_job(document, base=path.parent))
    except JobError as error:
        raise error.with_source(str(path)) from None
    if len(plans) != 1:
        raise WireError(f"{path}: roles", [plan.role for plan in plans], "a job with one role")
    return Policy.from_plan(plans[0])


def _of_fields(document: Mapping[str, Any], path: str) -> PolicyRead:
    changes = dict(document)
    nodes = changes.pop("nodes", None)
    annotated = any(_suffix(key) in ANNOTATIONS for key in changes)
    profile = changes.pop("profile", Profile.APPWRAPPER.value if annotated else None)
    if profile == Profile.APPWRAPPER.value:
        changes.setdefault("wrapped", True)
    low, high = (changes.pop(name, None) for name in _BOUNDS)
    if nodes is None:
        nodes = _world(low, high, path)
    elif (low, high) != (None, None):
        raise WireError(f"{path}: nodes", nodes, "no value, because min_nodes or max_nodes is set")
    given = {name: changes.pop(name) for name in _OF_JOB if name in changes}
    if profile is not None:
        given["profile"] = profile
    try:
        (plan,) = compile_plan(load_job(name="simulated", entrypoint=_ENTRYPOINT, nodes=nodes, **given))
    except JobError as error:
        raise error.with_source(path) from None
    warnings: list[str] = []
    policy = _changed(Policy.from_plan(plan), changes, path, warnings)
    return PolicyRead(policy=policy, warnings=tuple(warnings))


def _world(low: Any, high: Any, path: str) -> str:
    if low is None and high is None:
        raise WireError(f"{path}: nodes", None, "a number of nodes, or MIN:MAX")
    low, high = high if low is None else low, low if high is None else high
    return f"{low}:{high}"


def edit(policy: Policy, changes: Mapping[str, Any], path: str) -> Policy:
    """Return the policy with the changes of a step of a trace: fields with durations as text, and annotations."""
    return _changed(policy, changes, path, [])


def _changed(policy: Policy, changes: Mapping[str, Any], path: str, warnings: list[str]) -> Policy:
    plain: dict[str, Any] = codec.to_json(policy)
    annotations = {}
    for key, value in changes.items():
        if _suffix(key) in ANNOTATIONS:
            annotations[f"{PREFIX}{_suffix(key)}"] = _text(value, f"{path}.{key}")
        elif key in _FIELDS:
            plain[key] = _plain(key, value, f"{path}.{key}")
        else:
            raise WireError(
                f"{path}.{key}",
                value,
                f"one of the keys nodes, labels, {', '.join(_FIELDS)}, or the name of an AppWrapper annotation",
            )
    try:
        read = read_annotations(annotations)
    except JobError as error:
        raise error.with_source(path) from None
    warnings.extend(read.warnings)
    for name, value in read.values.items():
        field = _SHORT.get(name, name)
        if field in changes and plain[field] != codec.to_json(value):
            raise WireError(
                f"{path}.{field}",
                changes[field],
                f"no value, because an annotation in the same mapping sets this field to {value!r}",
            )
        plain[field] = value
    changed = codec.from_json(Policy, plain, path=path)
    _check(changed, path)
    return changed


def _suffix(key: str) -> str:
    return key.removeprefix(PREFIX)


def _text(value: Any, path: str) -> str:
    # Annotations are strings; a number that YAML has parsed is converted back to its text.
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise WireError(path, value, "a string, because all Kubernetes annotations are strings")


def _plain(key: str, value: Any, path: str) -> Any:
    """Return a field's value in the form of the wire: durations and lists of exit codes may be text."""
    if _HINTS[key] is float:
        return _seconds(value, path)
    if key.endswith("_exit_codes") and isinstance(value, str):
        words = [word.strip() for word in value.split(",") if word.strip()]
        if not all(word.lstrip("+-").isdigit() for word in words):
            raise WireError(path, value, "a comma-separated list of exit codes")
        return [int(word) for word in words]
    return value


def _seconds(value: Any, path: str) -> float:
    try:
        return parse_duration(value)
    except DurationError as error:
        raise WireError(path, value, f"a duration ({error})") from None


def _check(policy: Policy, path: str) -> None:
    if not 1 <= policy.min_nodes <= policy.max_nodes:
        raise WireError(f"{path}.min_nodes", policy.min_nodes, f"1 to max_nodes ({policy.max_nodes})")
    if policy.profile is Profile.APPWRAPPER and policy.min_nodes != policy.max_nodes:
        raise WireError(
            f"{path}.max_nodes",
            policy.max_nodes,
            f"the same number as min_nodes ({policy.min_nodes}), because a job with profile appwrapper has a fixed number of "
            "nodes",
        )
    if policy.retry_limit < 0:
        raise WireError(f"{path}.retry_limit", policy.retry_limit, "0 or more")


# --- The trace -------------------------------------------------------------------------------------------------------------

_TIMES = ("startup", "removal")


def read_trace_file(path: Path) -> Any:
    """Return the plain values of a trace file, its times in seconds; `read_trace` checks the rest."""
    document = read_document(path)
    steps = document.get("steps") if isinstance(document, Mapping) else document
    if isinstance(document, Mapping):
        document = _timed(document, (*_TIMES, "until"), "")
    if isinstance(steps, list):
        steps = [_timed(s, ("at", *_TIMES), f"steps[{i}].") if isinstance(s, Mapping) else s for i, s in enumerate(steps)]
    return {**document, "steps": steps} if isinstance(document, Mapping) and "steps" in document else steps


def _timed(values: Mapping[str, Any], names: tuple[str, ...], path: str) -> dict[str, Any]:
    texts = {name: values[name] for name in names if isinstance(values.get(name), str)}
    return {**values, **{name: _seconds(text, f"{path}{name}") for name, text in texts.items()}}
