"""Rules for the values of fields: one `Rule` reads, writes and describes a value, in the JSON schema and in errors.

A :class:`Rule` stands in a field's `Annotated`; it takes the place of pydantic's own checks, whose words are about pydantic.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rallypoint.job.duration import DURATION_FORMS, DurationError, format_duration, parse_duration
from rallypoint.job.values import (
    RefusedError,
    read_argument,
    read_entrypoint,
    read_flag,
    read_nodes,
    read_number,
    read_path,
    read_quantity,
    read_scalar,
    read_text,
    read_whole,
    read_word,
    write_entrypoint,
    write_nodes,
)
from rallypoint.wire import arguments, env, tls
from rallypoint.wire.node_range import NODE_RANGE_ALLOWED

__all__ = [
    "AMOUNT",
    "ARGUMENT",
    "COMMAND_LINE",
    "CONFIG",
    "CONFIG_LIMIT",
    "CONTAINER",
    "ENTRYPOINT",
    "FLAG",
    "LIST",
    "MAPPING",
    "MOST_RESETS",
    "NAME",
    "NAMESPACE",
    "NETWORK_POLICY",
    "NODES",
    "NUMA",
    "PATH",
    "QUANTITY",
    "REFUSED",
    "RESOURCE",
    "SCALAR",
    "SHARE",
    "TLS",
    "VARIABLE",
    "WORD",
    "Collection",
    "Rule",
    "choice",
    "duration",
    "one_of",
    "refusal",
    "rule_of",
    "whole",
]

T = TypeVar("T")

#: The highest `fault_tolerance.retry_limit` of a job file.
MOST_RESETS = 100

#: Type of the errors raised here; their context carries `allowed`, and `at` and `value` where not pydantic's are to be shown.
REFUSED = "refused"

#: Set by Rallypoint in each worker; a job that sets one itself would train with a wrong world.
_TAKEN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    *(env.ATTEMPT, env.CHECKPOINT_DIR, env.CONFIG, env.JOB_MARK, env.JOB_NAME, env.LIFE_OFFSET, env.PROGRESS_FILE, env.ROUND),
    *(env.SHOWN_ERRORS, env.STACK_FILE, env.TERM),
}

_NAME = r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?"
_VARIABLE = r"[-._a-zA-Z][-._a-zA-Z0-9]*"
_RESOURCE = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?|hugepages-[A-Za-z0-9]+|ephemeral-storage"
_DEEPEST = 32
_DECIMAL = re.compile(r"\d{1,15}(\.\d{1,15})?", re.ASCII)
_LONGEST_SHARE, _MOST_DEVICES = 40, 999_999

#: Characters of a job's `config` as JSON: it reaches each worker as one environment variable, of which Linux takes 128 KiB.
CONFIG_LIMIT = 98_304


def refusal(allowed: str, *, at: str = "", value: object = None) -> PydanticCustomError:
    """Return the error of a value that is not allowed; `at` names a field below the place where it is raised, `value` is
    shown in the place of pydantic's input.
    """
    return PydanticCustomError(REFUSED, "{allowed}", {"allowed": allowed, "at": at, "value": value})


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """One kind of value.

    Attributes:
        kind: its name in the reference, such as `duration`.
        allowed: completes the sentence "'x' is not allowed; ..." .
        read: from what a document or Python gives; raises `RefusedError`.
        write: back to the canonical document.
        schema: its JSON schema.
        unit: of numbers, for the reference.
    """

    kind: str
    allowed: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = field(default=lambda value: value)
    schema: Mapping[str, Any]
    unit: str = ""

    def check(self, value: Any) -> Any:
        """Return `read(value)`; what is refused becomes pydantic's error, in our words."""
        try:
            return self.read(value)
        except RefusedError as error:
            raise refusal(str(error) or self.allowed) from error
        except OverflowError as error:  # an integer beyond every float
            raise refusal(self.allowed) from error

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.check, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Collection:
    """A list or a mapping; what is inside has rules of its own.

    Attributes:
        kind, allowed: as for `Rule`.
        types: what Python may give; a set has no order and a string no items.
        least: number of items at the least.
    """

    kind: str
    allowed: str
    types: tuple[type[Sized], ...]
    least: int = 0

    def check(self, value: Any) -> Any:
        """Return `value` when it is such a collection."""
        if isinstance(value, self.types) and len(value) >= self.least:
            return value
        raise refusal(self.allowed)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))


def rule_of(metadata: Iterable[Any]) -> Rule | None:
    """Return the rule among the metadata of a field or an `Annotated`, if there is one."""
    return next((item for item in metadata if isinstance(item, Rule)), None)


def whole(least: int, most: int | None = None, *, unit: str = "") -> Rule:
    """A whole number within bounds, both counted in; `unit` says of what."""
    allowed = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"
    bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}

    def read(value: Any) -> int:
        return _need(read_whole(value), lambda number: least <= number and (most is None or number <= most))

    return Rule(kind=allowed.removeprefix("a "), allowed=allowed, read=read, schema={"type": "integer", **bounds}, unit=unit)


def one_of(*numbers: int) -> Rule:
    """One of a few whole numbers."""
    allowed = f"one of {', '.join(map(str, numbers))}"
    known = {str(number): number for number in numbers}

    def read(value: Any) -> int:
        return known[_need(str(read_argument(value)), lambda text: text in known)]

    return Rule(kind=allowed, allowed=allowed, read=read, schema={"enum": list(numbers)})


def duration(*, least: float = 0.0, most: float | None = None, positive: bool = False) -> Rule:
    """A duration, kept as seconds; from `least` to `most` seconds, and more than zero where `positive`."""
    lower = "more than 0s" if positive else f"{format_duration(least)} or more"
    bounds = lower if most is None else f"from {format_duration(least)} to {format_duration(most)}"

    def read(value: Any) -> float:
        try:
            seconds = parse_duration(value)
        except DurationError as error:
            raise RefusedError from error
        return _need(seconds, lambda s: (s > 0 or not positive) and least <= s and (most is None or s <= most))

    return Rule(
        kind=f"duration, {bounds}",
        allowed=f"a duration such as {DURATION_FORMS}, {bounds}",
        read=read,
        write=lambda seconds: None if seconds is None else format_duration(seconds),
        schema={"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum" if positive else "minimum": int(least)}]},
        unit="seconds",
    )


def choice(*words: str) -> Rule:
    """One of `words`."""
    allowed = f"one of {', '.join(words)}"
    return Rule(
        kind=allowed,
        allowed=allowed,
        read=lambda value: _need(read_text(value), lambda text: text in words),
        schema={"enum": list(words)},
    )


def _need(value: T, holds: Callable[[T], bool]) -> T:
    if holds(value):
        return value
    raise RefusedError


def _matching(pattern: str, *, kind: str, allowed: str) -> Rule:
    compiled = re.compile(pattern, re.ASCII)
    return Rule(
        kind=kind,
        allowed=allowed,
        read=lambda value: _need(read_text(value), lambda text: compiled.fullmatch(text) is not None),
        schema={"type": "string", "pattern": f"^(?:{pattern})$"},
    )


def _read_variable(value: Any) -> str:
    if value in _TAKEN:
        raise RefusedError("another name, because Rallypoint sets this variable")
    return _need(read_text(value), lambda text: re.fullmatch(_VARIABLE, text) is not None)


def _read_container(value: Any, depth: int = _DEEPEST) -> Any:
    """Return a copy of plain JSON: a bounded tree, so that an alias to itself is found too.

    Numbers with a point are refused: files give them as text, which is how Kubernetes takes them, and both must be equal.
    """
    _need(depth, lambda left: left > 0)
    if isinstance(value, dict):
        return {read_text(key): _read_container(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_read_container(item, depth - 1) for item in value]
    return value if value is None or isinstance(value, int) else read_text(value)


def _read_config(value: Any) -> dict[str, Any]:
    """Return a copy of a mapping of JSON values; unlike in a pod's field, numbers may have a point."""
    if not isinstance(value, dict):
        raise RefusedError
    copied: dict[str, Any] = _read_json(value, _DEEPEST)
    size = len(json.dumps(copied))
    if size > CONFIG_LIMIT:
        raise RefusedError(f"at most {CONFIG_LIMIT} characters of JSON, not {size} characters")
    return copied


def _read_json(value: Any, depth: int) -> Any:
    _need(depth, lambda left: left > 0)
    if isinstance(value, dict):
        return {read_text(key): _read_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_read_json(item, depth - 1) for item in value]
    if isinstance(value, float):
        return _need(value, math.isfinite)
    return value if value is None or isinstance(value, int) else read_text(value)


def _read_share(value: Any) -> Fraction:
    """Return a number of devices: a whole one, or a fraction of one device (`0.5`, `1/3`)."""
    text = value if isinstance(value, (str, Fraction)) else read_number(value)
    try:
        # Of an exponent of ten digits `Fraction` makes a number that fills the memory.
        share = Fraction(text) if len(str(text)) <= _LONGEST_SHARE and not re.search("[_eE]", str(text)) else None
    except (ValueError, ZeroDivisionError):
        share = None
    if share is None or share < 0 or (share > 1 and share.denominator != 1) or share > _MOST_DEVICES:
        raise RefusedError
    return share


def _write_share(share: Fraction | None) -> int | str | None:
    if share is None:
        return None
    if share.denominator == 1:
        return share.numerator
    decimal = f"{float(share):g}"
    return decimal if "e" not in decimal and Fraction(decimal) == share else str(share)


def _read_amount(value: Any) -> int | float:
    number = float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number) or number < 0:
        raise RefusedError
    return int(number) if number == int(number) else number


LIST = Collection(kind="list", allowed="a list", types=(list, tuple))
MAPPING = Collection(kind="mapping", allowed="a mapping", types=(dict,))

_SCALAR_TYPES = ["string", "number", "boolean"]

NAMESPACE = _matching(arguments.NAMESPACE, kind="name", allowed=arguments.NAMESPACE_ALLOWED)
NAME = _matching(
    _NAME, kind="name", allowed="1 to 52 lower-case letters, digits and '-', with a letter or a digit at both ends"
)
#: How near to its GPU a worker's CPUs are, as torchrun's --numa-binding says it.
_BINDINGS = ("node", "socket", "exclusive", "core-complex")


def _read_binding(value: object) -> str:
    if value in ("", *_BINDINGS):
        return str(value)
    return _BINDINGS[0] if read_flag(value) else ""


FLAG = Rule(kind="true/false", allowed="true or false", read=read_flag, schema={"type": "boolean"})
NUMA = Rule(
    kind="true/false, or a kind of CPU binding",
    allowed=f"true (same as {_BINDINGS[0]}), false, or one of {', '.join(_BINDINGS)}",
    read=_read_binding,
    schema={"enum": [True, False, *_BINDINGS]},
)
WORD = Rule(
    kind="string", allowed="a string without white space", read=read_word, schema={"type": "string", "pattern": "^\\S+$"}
)
PATH = Rule(kind="path", allowed="a path as a string", read=read_path, schema={"type": "string"})
ARGUMENT = Rule(
    kind="string or number",
    allowed="a string or a number (quote true, false and null)",
    read=read_argument,
    schema={"type": ["string", "number"]},
)
COMMAND_LINE = Rule(
    kind="shell command",
    allowed="a non-empty shell command; several lines are one command",
    read=lambda value: _need(read_text(value), lambda text: bool(text.strip())),
    schema={"type": "string", "pattern": "\\S"},
)
SCALAR = Rule(
    kind="string, number or true/false",
    allowed="a string, a number, true or false ('' for an empty value)",
    read=read_scalar,
    schema={"type": _SCALAR_TYPES},
)
VARIABLE = Rule(
    kind="variable name",
    allowed="a variable name of letters, digits, '_', '-' and '.', not beginning with a digit",
    read=_read_variable,
    schema={"type": "string", "pattern": f"^(?:{_VARIABLE})$"},
)
QUANTITY = Rule(
    kind="quantity",
    allowed="a Kubernetes quantity such as 500m, 2, 1.5 or 8Gi",
    read=read_quantity,
    schema={"type": ["string", "number"]},
)
RESOURCE = _matching(
    _RESOURCE,
    kind="resource name",
    allowed="a resource name with a domain, such as rdma/hca, or hugepages-SIZE or ephemeral-storage",
)
CONTAINER = Rule(
    kind="mapping",
    allowed="a mapping of plain JSON values (quote numbers with a point)",
    read=lambda value: _read_container(_need(value, lambda mapping: isinstance(mapping, dict))),
    schema={"type": "object"},
)
CONFIG = Rule(
    kind="mapping",
    allowed="a mapping of plain JSON values with text as keys",
    read=_read_config,
    schema={"type": "object"},
)
SHARE = Rule(
    kind="whole number or fraction",
    allowed="a whole number of devices, or a fraction of one device such as 0.5 or 1/3",
    read=_read_share,
    write=_write_share,
    schema={"type": ["integer", "number", "string"]},
    unit="GPUs",
)
AMOUNT = Rule(
    kind="number", allowed="a number of 0 or more", read=_read_amount, schema={"type": ["number", "string"], "minimum": 0}
)
NODES = Rule(
    kind="N or MIN:MAX",
    allowed=f"a number of nodes {NODE_RANGE_ALLOWED}",
    read=read_nodes,
    write=write_nodes,
    schema={"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+(:[0-9]+)?$"}]},
    unit="nodes",
)


def _read_tls(value: object) -> str:
    if isinstance(value, dict):
        secret = value.get("secret")
        if value.keys() == {"secret"} and isinstance(secret, str) and _is_object_name(secret):
            return f"{tls.SECRET_PREFIX}{secret}"
    elif isinstance(value, str) and value in ("off", tls.AUTO):
        return "" if value == "off" else value
    elif isinstance(value, str) and value.startswith(tls.SECRET_PREFIX) and _is_object_name(value[len(tls.SECRET_PREFIX) :]):
        return value  # as a plan has it
    raise RefusedError


def _is_object_name(text: str) -> bool:
    return len(text) <= 253 and re.fullmatch(_OBJECT, text, re.ASCII) is not None


def _write_tls(value: str) -> object:
    return {"secret": value[len(tls.SECRET_PREFIX) :]} if value.startswith(tls.SECRET_PREFIX) else value or "off"


def _read_network_policy(value: object) -> str:
    if value in ("", "off", "on"):
        return "on" if value == "on" else ""
    networks = [text.strip() for text in read_text(value).split(",")]
    try:
        return ",".join(str(ipaddress.ip_network(text)) for text in networks if "/" in text or _refuse())
    except ValueError as error:
        raise RefusedError from error


def _refuse() -> bool:
    raise RefusedError


NETWORK_POLICY = Rule(
    kind="off, on, or a list of networks",
    allowed="off, on, or the networks of the API server, such as 10.0.0.0/28, separated by commas",
    read=_read_network_policy,
    write=lambda value: value or "off",
    schema={"type": "string"},
)

_OBJECT = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
TLS = Rule(
    kind="off, auto, or a mapping {secret: NAME}",
    allowed="off, auto, or {secret: NAME} with the name of a Secret",
    read=_read_tls,
    write=_write_tls,
    schema={
        "anyOf": [
            {"enum": ["off", "auto"]},
            {
                "type": "object",
                "properties": {"secret": {"type": "string", "pattern": f"^{_OBJECT}$", "maxLength": 253}},
                "required": ["secret"],
                "additionalProperties": False,
            },
        ]
    },
)
ENTRYPOINT = Rule(
    kind="entrypoint",
    allowed="the path of a script, '-m MODULE', 'module:function', a list (a command), or a mapping with script, module, "
    "function or command",
    read=read_entrypoint,
    write=write_entrypoint,
    schema={
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1},
            {
                "type": "object",
                "properties": {
                    "script": {"type": "string"},
                    "module": {"type": "string"},
                    "function": {"type": "string"},
                    "command": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}]},
                },
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            },
        ]
    },
)
