"""Parse long JSON text without holding the interpreter lock for long.

`json.loads` holds the lock until it returns, up to a second for 24 MB of numbers. Even in a thread it blocks the event loop of
the process, which in a triggerer is shared by the triggers of all tasks. `parse_long` calls the same C scanner for a few
kilobytes at a time, and Python switches threads in between. It takes two to three times as long.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["parse_long"]

#: Characters of a list or an object that the C scanner reads in one call.
_PART = 1 << 14

#: Nested containers; `json.loads` has a limit of the same order, by the depth of its recursion.
_DEPTH = 900

_SPACE = re.compile(r"[ \t\n\r]*")

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # the scanner that `JSONDecoder.raw_decode` calls


def parse_long(text: str) -> Any:
    """Return the value of a JSON text, as `json.loads` does; raises `ValueError`, also for text that is nested too deep."""
    value, end = _Parser(text).value(_after_space(text, 0), 0)
    end = _after_space(text, end)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


class _Parser:
    """The parser of one text; each method returns a value and the offset behind it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, start: int, depth: int) -> tuple[Any, int]:
        """Parse any value."""
        opening = self._text[start : start + 1]
        if opening not in ("[", "{") or not opening:
            return self._scalar(start)
        try:
            value, end = _scan(self._text[start : start + _PART], 0)
        except (StopIteration, ValueError, RecursionError):  # longer than a part, or invalid: that is found below
            if depth >= _DEPTH:
                raise ValueError(f"the JSON value is nested too deeply; at most {_DEPTH} levels are allowed") from None
            return self._list(start, depth) if opening == "[" else self._object(start, depth)
        return value, start + end

    def _scalar(self, start: int) -> tuple[Any, int]:
        try:
            found: tuple[Any, int] = _scan(self._text, start)
        except StopIteration as stop:
            raise json.JSONDecodeError("Expecting value", self._text, stop.value) from None
        return found

    def _list(self, start: int, depth: int) -> tuple[list[Any], int]:
        text, items = self._text, list[Any]()
        at = _after_space(text, start + 1)
        if text[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, at = self.value(at, depth + 1)
            items.append(item)
            at, more = self._next(at, "]")
            if not more:
                return items, at

    def _object(self, start: int, depth: int) -> tuple[dict[str, Any], int]:
        text, fields = self._text, dict[str, Any]()
        at = _after_space(text, start + 1)
        if text[at : at + 1] == "}":
            return fields, at + 1
        while True:
            if text[at : at + 1] != '"':
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
            key, at = self._scalar(at)
            at = _after_space(text, at)
            if text[at : at + 1] != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
            fields[key], at = self.value(_after_space(text, at + 1), depth + 1)
            at, more = self._next(at, "}")
            if not more:
                return fields, at

    def _next(self, at: int, closing: str) -> tuple[int, bool]:
        """Return the offset of the next item, or behind the container, and whether there is one."""
        at = _after_space(self._text, at)
        found = self._text[at : at + 1]
        if found == closing:
            return at + 1, False
        if found != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", self._text, at)
        return _after_space(self._text, at + 1), True


def _after_space(text: str, start: int) -> int:
    if text[start : start + 1] not in (" ", "\t", "\n", "\r"):
        return start
    found = _SPACE.match(text, start)
    return start if found is None else found.end()
