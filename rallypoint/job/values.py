"""Readers and writers of structured values of a job: node ranges, entrypoints, quantities. Pure.

A reader takes what YAML or Python gives and raises :class:`RefusedError` for what is not allowed.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.job.quantity import is_quantity
from rallypoint.wire.node_range import NodeRange, parse_node_range
from rallypoint.wire.plan import Entry

__all__ = [
    "FUNCTION",
    "MODULE",
    "Entrypoint",
    "RefusedError",
    "read_argument",
    "read_entrypoint",
    "read_flag",
    "read_nodes",
    "read_number",
    "read_path",
    "read_quantity",
    "read_scalar",
    "read_text",
    "read_whole",
    "read_word",
    "write_entrypoint",
    "write_nodes",
]

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
#: The name of a module of Python, with those that it is in.
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
#: A function or a class in a module: `pkg.mod:name`, also with DLRover's two colons.
FUNCTION = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)::?([^\W\d]\w*)")


class RefusedError(ValueError):
    """A value is not allowed; the text describes the allowed values if the rule is too general."""


@dataclass(frozen=True, kw_only=True)
class Entrypoint:
    """What each worker runs: `words` is one script path, one module name, or a command's words.

    `function`: the word is `module:name`, a function or a class with `run()`; `entry` is then `module`.
    """

    entry: Entry
    words: tuple[str, ...]
    function: bool = False


def read_whole(value: object) -> int:
    """Return an int, also from its decimal digits (templates render numbers as text)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    raise RefusedError


def read_flag(value: object) -> bool:
    """Return a boolean, also from the words `true` and `false` (templates render booleans as text)."""
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise RefusedError


def read_text(value: object) -> str:
    """Return a string that environments, argument lists and files can hold: without NUL and half surrogates."""
    if isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value):
        return value
    raise RefusedError


def read_word(value: object) -> str:
    """Return a string of at least one character and without white space."""
    text = read_text(value)
    if text and not re.search(r"\s", text):
        return text
    raise RefusedError


def read_path(value: object) -> str:
    """Return a path as a string; "" stands for "not given"."""
    return read_text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def read_number(value: object) -> str:
    """Return a finite number as the text that reads back as it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RefusedError
    return str(value)


def read_argument(value: object) -> str:
    """Return a string, or a number as its text; no boolean, since scripts disagree how one is spelled."""
    return read_text(value) if isinstance(value, str) else read_number(value)


def read_scalar(value: object) -> str:
    """Return a string, a number as its text, or a boolean as `true` or `false`."""
    return str(value).lower() if isinstance(value, bool) else read_argument(value)


def read_quantity(value: object) -> str:
    """Return a Kubernetes quantity that is not negative (`500m`, `2`, `1.5`, `8Gi`) as text."""
    text = value if isinstance(value, str) else read_number(value)
    if is_quantity(text):
        return text
    raise RefusedError


def read_nodes(value: object) -> NodeRange:
    """Return `N` (int or text) or `MIN:MAX` as a range."""
    if isinstance(value, NodeRange):
        return value
    try:
        return parse_node_range(read_whole(value) if isinstance(value, int) else read_text(value))
    except ValueError as error:
        raise RefusedError from error


def write_nodes(nodes: NodeRange) -> int | str:
    """Return the range as a document has it."""
    return nodes.min if nodes.min == nodes.max else str(nodes)


def read_entrypoint(value: object) -> Entrypoint:
    """Return a script path, `-m MODULE`, `module:function`, a list (a command), or a mapping of one of `script`, `module`,
    `function`, `command`.
    """
    if isinstance(value, Entrypoint):
        return value
    if isinstance(value, Mapping):
        return _entrypoint_of_mapping(value)
    if isinstance(value, (list, tuple)):
        return Entrypoint(entry=Entry.COMMAND, words=_command(value))
    return _entrypoint_of_text(read_path(value))


def write_entrypoint(entrypoint: Entrypoint) -> str | list[str] | dict[str, str]:
    """Return the shortest form that `read_entrypoint` reads as `entrypoint`."""
    if entrypoint.entry is Entry.COMMAND:
        return list(entrypoint.words)
    (word,) = entrypoint.words
    if entrypoint.function:
        return word
    if entrypoint.entry is Entry.MODULE:
        return f"-m {word}"
    return word if _is_plain(word) else {"script": word}


def _is_plain(script: str) -> bool:
    return (
        len(script.split()) == 1
        and script == script.strip()
        and not script.startswith("-")
        and FUNCTION.fullmatch(script) is None
    )


def _entrypoint_of_text(text: str) -> Entrypoint:
    words = text.split()
    if not words:
        raise RefusedError
    if words[0] == "-m":
        return _entrypoint_of_module_words(words)
    if FUNCTION.fullmatch(text):
        return _entrypoint_of_function(text)
    if not _is_plain(text):
        # Neither guess is safe: `python train.py` is a command, `my train.py` may be a file.
        raise RefusedError(
            "one script path without white space; write a command as a list ([python, train.py]), arguments in "
            "args, and a path with white space as {script: ...}"
        )
    return Entrypoint(entry=Entry.SCRIPT, words=(text,))


def _entrypoint_of_module_words(words: list[str]) -> Entrypoint:
    if len(words) != 2 or not MODULE.fullmatch(words[1]):
        raise RefusedError("'-m' and one dotted module name; write arguments in args")
    return Entrypoint(entry=Entry.MODULE, words=(words[1],))


def _entrypoint_of_function(text: str) -> Entrypoint:
    found = FUNCTION.fullmatch(text)
    if found is None:
        raise RefusedError("a function as module:name, such as pkg.train:run")
    return Entrypoint(entry=Entry.MODULE, words=(f"{found[1]}:{found[2]}",), function=True)


def _entrypoint_of_mapping(value: Mapping[Any, Any]) -> Entrypoint:
    if len(value) != 1:
        raise RefusedError
    ((key, content),) = value.items()
    if key == Entry.COMMAND.value:
        return Entrypoint(entry=Entry.COMMAND, words=_command(content))
    if key == Entry.MODULE.value:
        return _entrypoint_of_module_words(["-m", read_word(content)])
    if key == "function":
        return _entrypoint_of_function(read_word(content))
    if key != Entry.SCRIPT.value or not read_path(content):
        raise RefusedError
    return Entrypoint(entry=Entry.SCRIPT, words=(read_path(content),))


def _command(value: object) -> tuple[str, ...]:
    words = _split(value) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not words or words[0] == "":
        raise RefusedError
    return tuple(read_argument(word) for word in words)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(read_text(text))
    except ValueError as error:
        raise RefusedError(f"a command with balanced quotes ({str(error).lower()})") from error
