"""Ends of processes in a job file: exit codes, signals and log patterns, and the user's rules about them. Pure.

Signals have Linux' numbers wherever the file is read, since that is where workers run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import model_validator
from typing_extensions import Self

from rallypoint.job.part import Model
from rallypoint.job.rules import Rule, choice, refusal
from rallypoint.job.values import RefusedError, read_text
from rallypoint.wire.incident import Answer
from rallypoint.wire.plan import PATTERN_LENGTH

__all__ = ["CODES", "EndingRule", "read_codes"]

_LAST_CODE, _LAST_SIGNAL = 255, 64
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)

#: Linux' own numbers (man 7 signal).
_SIGNALS = {
    name: number
    for number, name in enumerate(
        (
            *(
                "HUP",
                "INT",
                "QUIT",
                "ILL",
                "TRAP",
                "ABRT",
                "BUS",
                "FPE",
                "KILL",
                "USR1",
                "SEGV",
                "USR2",
                "PIPE",
                "ALRM",
                "TERM",
            ),
            *("STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH"),
            *("IO", "PWR", "SYS"),
        ),
        start=1,
    )
}
_NAMES = {number: f"SIG{name}" for name, number in _SIGNALS.items()}


def read_codes(value: object) -> tuple[int, ...]:
    """Return a list of exit codes from 0 to 255, also from text with commas between them; blanks around one are trimmed."""
    return tuple(_code(item) for item in _items(value))


def _items(value: object) -> list[object]:
    if isinstance(value, str):
        return [item.strip() for item in read_text(value).split(",")] if value.strip() else []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _code(item: object) -> int:
    number = _number(item)
    if number is not None and number <= _LAST_CODE:
        return number
    raise RefusedError


def _number(item: object) -> int | None:
    if isinstance(item, bool):
        return None
    if isinstance(item, int) and item >= 0:
        return item
    return int(item) if isinstance(item, str) and _WHOLE.fullmatch(item.strip()) else None


def _read_signals(value: object) -> tuple[int, ...]:
    return tuple(_signal(item) for item in _items(value))


def _signal(item: object) -> int:
    name = item.strip().upper().removeprefix("SIG") if isinstance(item, str) else ""
    number = _SIGNALS.get(name, _number(item))
    if number is not None and 1 <= number <= _LAST_SIGNAL:
        return number
    raise RefusedError


def _read_pattern(value: object) -> str:
    text = read_text(value)
    if len(text) > PATTERN_LENGTH:
        raise RefusedError(f"a regular expression of at most {PATTERN_LENGTH} characters, not {len(text)} characters")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise RefusedError(f"a regular expression for Python's re module ({error})") from error
    return text


_CODE_SCHEMA = {"type": ["integer", "string"]}
_LISTED = {"anyOf": [_CODE_SCHEMA, {"type": "array", "items": _CODE_SCHEMA}]}

CODES = Rule(
    kind="list of exit codes",
    allowed=f"exit codes from 0 to {_LAST_CODE}, as a list or separated by commas",
    read=read_codes,
    write=list,
    schema=_LISTED,
)
_SIGNAL_LIST = Rule(
    kind="list of signals",
    allowed=f"signals such as SIGKILL, or their numbers from 1 to {_LAST_SIGNAL}, as a list or separated by commas",
    read=_read_signals,
    write=lambda numbers: [_NAMES.get(number, number) for number in numbers],
    schema=_LISTED,
)
_PATTERN = Rule(
    kind="regular expression",
    allowed="a regular expression for Python's re module",
    read=_read_pattern,
    schema={"type": "string", "format": "regex", "maxLength": PATTERN_LENGTH},
)


class EndingRule(Model):
    """A rule for exits of workers and nodes. The first rule whose fields all match defines the reaction."""

    other_names: ClassVar[Mapping[str, str]] = {"exit_code": "exit_codes", "signal": "signals"}

    exit_codes: Annotated[tuple[int, ...], CODES] = ()
    """Condition: the process exited with one of these codes."""
    signals: Annotated[tuple[int, ...], _SIGNAL_LIST] = ()
    """Condition: one of these signals (names or numbers) ended the process."""
    log_pattern: Annotated[str, _PATTERN] = ""
    """Condition: Rallypoint finds this regular expression in the error message or in one of the last log lines."""
    answer: Annotated[str, choice(*(answer.value for answer in Answer))]
    """Reaction: `retry-here`: restart all workers on the same nodes, or replace a node that ended; `retry-elsewhere`: replace
    the node by one on another host; `fail-now`: fail the job.
    """

    @model_validator(mode="after")
    def _says_what_it_is_about(self) -> Self:
        if self.exit_codes or self.signals or self.log_pattern:
            return self
        raise refusal("a rule with at least one of exit_codes, signals, log_pattern", value={"answer": self.answer})
