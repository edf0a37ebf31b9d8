"""What a setting of the pytorchjob-generator may hold: the chart's own bounds, with its slips mended.

Numbers are numbers here and texts are texts, as in the chart: a quoted `"4"` is no number of pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BeforeValidator

from rallypoint.job.annotations import ANNOTATIONS
from rallypoint.job.duration import DURATION_FORMS, DurationError, parse_duration
from rallypoint.job.quantity import is_quantity, quantity
from rallypoint.job.rules import Rule
from rallypoint.job.values import RefusedError, read_argument, read_scalar, read_text, read_word

__all__ = [
    "COMMAND",
    "CPU",
    "FLAG",
    "HOST",
    "JOB_NAME",
    "KEY",
    "LABEL",
    "LABEL_KEY",
    "LABEL_NAME",
    "LABEL_VALUE",
    "LINE",
    "MEMORY",
    "MOUNT_PATH",
    "NULL_IS_EMPTY",
    "PART_NAME",
    "RESOURCE_NAME",
    "RESTART_POLICY",
    "SCHEDULER",
    "STORAGE",
    "TEXT",
    "VALUE",
    "VARIABLE",
    "WORD",
    "WORDS",
    "count",
    "nullable",
    "one_word_of",
    "period",
]

_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME = r"[a-z]([-a-z0-9._]*[a-z0-9])?"
_PREFIX = r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_SCALED = r"[0-9]+(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)"
_RESOURCE = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?"
#: What the controller parses as it is written; everything else is written anew.
_GO = re.compile(r"[0-9]+(s|m|h)", re.ASCII)

#: null and a list that is empty are the same: nothing was given.
NULL_IS_EMPTY = BeforeValidator(lambda value: () if value is None else value)


def _fits(pattern: str, text: str, most: int) -> bool:
    return len(text) <= most and re.fullmatch(pattern, text, re.ASCII) is not None


def _text(holds: Callable[[str], bool], allowed: str) -> Rule:
    def read(value: Any) -> str:
        text = read_text(value)
        if holds(text):
            return text
        raise RefusedError

    return Rule(kind="string", allowed=allowed, read=read, schema={"type": "string"})


def nullable(rule: Rule) -> Rule:
    """The same rule for a setting that null takes back."""
    return Rule(
        kind=rule.kind,
        allowed=f"{rule.allowed}, or null",
        read=lambda value: None if value is None else rule.read(value),
        schema={"anyOf": [dict(rule.schema), {"type": "null"}]},
    )


def count(least: int, most: int | None = None) -> Rule:
    """A whole number within bounds, both counted in."""
    bounds = f"of {least} or more" if most is None else f"from {least} to {most}"

    def read(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
            return value
        raise RefusedError

    return Rule(
        kind="integer",
        allowed=f"a whole number {bounds}, without quotes",
        read=read,
        schema={"type": "integer", "minimum": least},
    )


def one_word_of(*words: str) -> Rule:
    """One of a few words."""
    return _text(lambda text: text in words, f"one of {', '.join(words)}")


def period(name: str) -> Rule:
    """The duration of the annotation `name`, kept as the text that AppWrapper's controller parses."""
    known = ANNOTATIONS[name]
    bounds = known.allowed.rpartition(", ")[2]

    def read(value: Any) -> str:
        try:
            seconds = parse_duration(value)
        except DurationError as error:
            raise RefusedError from error
        if not known.fits(seconds):
            raise RefusedError
        return value if isinstance(value, str) and _GO.fullmatch(value) else known.write(seconds)

    allowed = f"a duration such as {DURATION_FORMS}, {bounds}"
    return Rule(kind="duration", allowed=allowed, read=read, schema={"type": ["string", "number"]})


def _read_cpu(value: Any) -> str | int:
    if isinstance(value, int):
        return int(count(1).read(value))
    return _scaled(value)


def _scaled(value: Any) -> str:
    text = read_text(value)
    if _fits(_SCALED, text, 40) and quantity(text) > 0:
        return text
    raise RefusedError


def _read_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise RefusedError


def _read_command(value: Any) -> tuple[str, ...]:
    words = value if isinstance(value, (list, tuple)) else ()
    if words:
        return tuple(read_argument(word) for word in words)
    raise RefusedError


def _read_label_key(value: Any) -> str:
    text = read_text(value)
    prefix, slash, name = text.rpartition("/")
    if _fits(_NAME, name, 63) and (not slash or _fits(_PREFIX, prefix, 253)):
        return text
    raise RefusedError


def _is_one_line(text: str) -> bool:
    """Return whether a shell reads one command line: a line break counts as none behind a backslash."""
    return "\n" not in re.sub(r"\\\n", "", text.strip("\n"))


def _read_host(value: Any) -> str:
    return read_word(read_argument(value))


def _plain(kind: str, allowed: str, read: Callable[[Any], Any], types: Iterable[str]) -> Rule:
    return Rule(kind=kind, allowed=allowed, read=read, schema={"type": list(types)})


_UNITS = "Ki, Mi, Gi, Ti, Pi, Ei, m, k, M, G, T, P or E"

LABEL = _text(
    lambda text: _fits(_LABEL, text, 63),
    "1 to 63 lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
)
JOB_NAME = _text(
    lambda text: _fits(_LABEL, text, 50),
    "1 to 50 lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
)
PART_NAME = _text(
    lambda text: _fits(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", text, 63),
    "1 to 63 lower-case letters, digits and '-', with a letter or a digit at both ends",
)
LABEL_KEY = _plain(
    "label key",
    "NAME or PREFIX/NAME: a name of at most 63 lower-case letters, digits, '-', '.' and '_', a prefix of at most 253 "
    "without '_', each beginning with a letter and ending with a letter or digit",
    _read_label_key,
    ("string",),
)
LABEL_VALUE = _text(
    lambda text: _fits(_NAME, text, 63),
    "a string of 1 to 63 lower-case letters, digits, '-', '.' and '_', with a letter first and a letter or digit last",
)
LABEL_NAME = _text(
    lambda text: _fits(r"([-a-z0-9.]+/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?", text, 63), "a label's name, such as gpu-pcie-bw"
)
CPU = _plain(
    "integer or quantity",
    f"a whole number of 1 or more, or a quantity above 0 with a unit such as 500m ({_UNITS})",
    _read_cpu,
    ("integer", "string"),
)
MEMORY = _plain(
    "quantity", f"a quantity above 0 with a unit such as 1Gi or 200M (a whole number and {_UNITS})", _scaled, ("string",)
)
STORAGE = _text(lambda text: is_quantity(text) and quantity(text) > 0, "a quantity above 0 as a string, such as 800Gi")
RESOURCE_NAME = _text(
    lambda text: not text or _fits(_RESOURCE, text, 317), "a resource's name with its domain, such as nvidia.com/roce_gdr"
)
FLAG = _plain("boolean", "true or false, without quotes", _read_flag, ("boolean",))
WORD = _text(lambda text: re.search(r"\s", text) is None and text != "", "a string without white space, not empty")
TEXT = _text(lambda _text: True, "a string")
LINE = _text(_is_one_line, r"a string with one command; a '\' at the end of a line continues the command on the next line")
COMMAND = _text(lambda text: bool(text.strip()), "a shell command as a string that is not empty; it may have several lines")
KEY = _text(lambda text: _fits(r"[-._a-zA-Z0-9]+", text, 253), "a key of letters, digits, '-', '_' and '.'")
VARIABLE = _text(
    lambda text: _fits(r"[-._a-zA-Z][-._a-zA-Z0-9]*", text, 1024),
    "a variable's name of letters, digits, '_', '-' and '.', not beginning with a digit",
)
VALUE = _plain("string, number or boolean", "a string, a number, true or false", read_scalar, ("string", "number", "boolean"))
MOUNT_PATH = _text(
    lambda text: text.startswith("/") and ":" not in text, "an absolute path without ':', such as /workspace/data"
)
HOST = _plain("string", "a host's name", _read_host, ("string", "number"))
WORDS = _plain(
    "list of strings", "a list of strings that is not empty, such as [sh, -c, 'whoami && ls -l']", _read_command, ("array",)
)
RESTART_POLICY = one_word_of("Never", "Always", "OnFailure")
SCHEDULER = one_word_of("sakkara", "scheduler-plugins-scheduler", "default-scheduler")
