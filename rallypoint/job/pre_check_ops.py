"""`pre_check_ops` as a job has it: a list of (module, class, true/false), or the Python literal of one. Pure.

DLRover's document writes it as a string, `[("my.checks", "DiskCheck", True)]`. It is read as a literal and never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from rallypoint.job.rules import Rule
from rallypoint.job.values import MODULE, RefusedError, read_flag, read_text
from rallypoint.wire.pre_check import DLROVER_MODULE, NO_PRE_CHECK, PreCheckOp

__all__ = ["NOTHING", "PRE_CHECK_OPS", "effective"]

_CLASS = re.compile(r"[^\W\d]\w*")
_ALLOWED = 'a list of (module, class, true or false), such as [("my.checks", "DiskCheck", True)]; false bypasses the operator'

#: The default of DLRover's document: an operator that finds nothing.
NOTHING = (PreCheckOp(module=DLROVER_MODULE, name=NO_PRE_CHECK),)


def effective(ops: Sequence[PreCheckOp]) -> tuple[PreCheckOp, ...]:
    """Return the operators without those that find nothing: a job that has no other starts no process for them."""
    return tuple(op for op in ops if (op.module, op.name) != (DLROVER_MODULE, NO_PRE_CHECK))


def _read(value: object) -> tuple[PreCheckOp, ...]:
    found = _literal(value) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)):
        raise RefusedError
    return tuple(_entry(entry, index) for index, entry in enumerate(found))


def _literal(text: str) -> object:
    if not text.strip():
        return ()
    try:
        return ast.literal_eval(read_text(text).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise RefusedError from error


def _entry(entry: object, index: int) -> PreCheckOp:
    if isinstance(entry, PreCheckOp):
        return entry
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        raise RefusedError(f"{_ALLOWED}; but entry {index} is {entry!r}")
    module, name, enabled = entry
    if not isinstance(module, str) or not MODULE.fullmatch(module):
        raise RefusedError(f"{_ALLOWED}; but the module of entry {index} is {module!r}, not a dotted name")
    if not isinstance(name, str) or not _CLASS.fullmatch(name):
        raise RefusedError(f"{_ALLOWED}; but the class of entry {index} is {name!r}, not a name")
    try:
        return PreCheckOp(module=module, name=name, enabled=read_flag(enabled))
    except RefusedError:
        raise RefusedError(f"{_ALLOWED}; but the last item of entry {index} is {enabled!r}") from None


PRE_CHECK_OPS = Rule(
    kind="list of (module, class, true/false)",
    allowed=_ALLOWED,
    read=_read,
    write=lambda ops: [[op.module, op.name, op.enabled] for op in ops],
    schema={
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "items": {
                    "type": "array",
                    "prefixItems": [{"type": "string"}, {"type": "string"}, {"type": ["boolean", "string"]}],
                    "minItems": 3,
                    "maxItems": 3,
                },
            },
        ]
    },
)
