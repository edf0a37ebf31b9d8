r"""Sanitize values that a job reports before they are stored, published or passed to Airflow (docs/reference/payloads.md).

Metrics, results, error messages and names come from a user's script. Neither PostgreSQL nor a JSON parser nor a terminal
accepts all of them, so each value is replaced by one that every reader accepts, and that still shows what was reported:

| value | becomes |
|---|---|
| `nan`, `inf`, `-inf` | the strings `NaN`, `Infinity`, `-Infinity`; a reader of a `float` field makes numbers of them again |
| control characters other than tab, line feed and carriage return; lone surrogates | their escapes: `\x00`, `\ud800` |
| integers outside of 64 bits, floats that large | the string of their digits |
| text, nesting and numbers of items above a limit | are cut, and a mark that begins with `…` says how much is missing |
| keys of objects that begin with two underscores, which Airflow's serializers reserve | the first underscore becomes `\x5f` |
| what JSON has no type for | its `repr`, as text |

Applying the policy twice changes nothing.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "DEPTH_LIMIT",
    "INT_MAX",
    "INT_MIN",
    "ITEM_LIMIT",
    "KEY_LIMIT",
    "LONG",
    "MARK",
    "NON_FINITE",
    "TEXT_LIMIT",
    "clean",
    "clean_float",
    "clean_key",
    "clean_text",
    "dumps",
    "one_line",
    "parse",
    "parse_long",
]

#: Characters of one text, and of one key of an object.
TEXT_LIMIT, KEY_LIMIT = 65_536, 512

#: Nested containers, and values in all of them together.
DEPTH_LIMIT, ITEM_LIMIT = 32, 50_000

#: Integers that msgpack and 64-bit columns hold.
INT_MIN, INT_MAX = -(2**63), 2**64 - 1

#: From here on every double is a whole number, which PostgreSQL's JSONB returns as an integer of up to 309 digits.
_WHOLE = float(2**63)

#: Characters of JSON text from which on it is parsed a part at a time.
LONG = 1 << 17

#: Begins every mark that stands for what was cut.
MARK = "…"

#: The names of the numbers that JSON does not have; they are those of protobuf's JSON mapping.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_BREAK = re.compile("[\t\n\r]")

#: Characters of a list or an object that the C scanner reads in one call.
_PART = 1 << 14

#: Characters behind the beginning of a container that is longer than a part, in which no other container is tried: each list
#: of a chain would be scanned again in vain.
_UNTRIED = _PART // 8

#: Nested containers; `json.loads` has a limit of the same order, by the depth of its recursion.
_DEPTH = 900

_SPACE = re.compile(r"[ \t\n\r]*")

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # the scanner that `JSONDecoder.raw_decode` calls


def clean(value: Any, *, text: int = TEXT_LIMIT, depth: int = DEPTH_LIMIT, items: int = ITEM_LIMIT) -> Any:
    """Return `value` as plain JSON types that every reader accepts; never raises for what a job can report.

    `text`: characters of each text; `depth`: nested containers; `items`: values in all containers together.
    """
    return _Cleaner(text, items).clean(value, depth)


def clean_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text` without control characters and lone surrogates, and with at most `limit` characters."""
    if len(text) <= limit and _UNSAFE.search(text) is None:
        return text
    # Cut first: an escape is longer than what it stands for, so no more than this can be left.
    escaped = text[: limit + 1].translate(_escapes())
    if len(text) <= limit and len(escaped) <= limit:
        return escaped
    mark = f"{MARK} [cut: {len(text)} characters]"
    return escaped[: max(0, limit - len(mark))] + mark


def clean_key(key: str) -> str:
    """Return the key of an object as `clean_text` does, and none that a serializer of Airflow takes for the mark of a class."""
    cleaned = clean_text(key, KEY_LIMIT)
    return clean_text(_spelled(ord("_")) + cleaned[1:], KEY_LIMIT) if cleaned.startswith("__") else cleaned


def one_line(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text` as `clean_text` does, with tabs and line breaks escaped, too."""
    return clean_text(_BREAK.sub(_escape, clean_text(text, limit)), limit)


def clean_float(number: float) -> float | str:
    """Return a number, or the name of one that JSON does not have."""
    if math.isfinite(number):
        return number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"  # noqa: PLR0124  only NaN differs from itself


def dumps(value: Any, *, depth: int = DEPTH_LIMIT) -> str:
    """Return the JSON text of a value under the policy: one that every JSON parser and PostgreSQL's `jsonb` read."""
    return json.dumps(clean(value, depth=depth), ensure_ascii=False, allow_nan=False)


def parse(text: str | bytes) -> Any:
    """Return the value of JSON text from an untrusted writer; raises `ValueError`, also for text that is nested too deep.

    The bare words `NaN` and `Infinity`, which earlier versions wrote, are still read. Other threads run while a long text is
    parsed.
    """
    try:
        if len(text) < LONG:
            return json.loads(text)
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        return parse_long(text)
    except RecursionError:
        raise ValueError("the JSON value is nested too deeply") from None


class _Cleaner:
    """One pass over one value; `left` is how many more items it may have."""

    def __init__(self, text: int, items: int) -> None:
        self._text, self._left = text, items

    def clean(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, enum.Enum):
            return self.clean(value.value, depth)
        if isinstance(value, str):
            return clean_text(str.__str__(value), self._text)
        if isinstance(value, int):
            return self._integer(int(value))
        if isinstance(value, float):
            number = float(value)
            return repr(number) if _WHOLE <= abs(number) < math.inf else clean_float(number)
        if isinstance(value, Mapping):
            return self._object(value, depth) if depth else _too_deep()
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._list(value, depth) if depth else _too_deep()
        return clean_text(_shown(value), self._text)

    def _integer(self, number: int) -> int | str:
        if INT_MIN <= number <= INT_MAX:
            return number
        try:
            digits = str(number)
        except ValueError:  # Python does not convert more than some thousand digits
            return f"{MARK} [an integer of {number.bit_length()} bits]"
        return clean_text(digits, self._text)

    def _list(self, values: Any, depth: int) -> list[Any]:
        cleaned: list[Any] = []
        for place, value in enumerate(values):
            if self._left <= 0:
                cleaned.append(value if _is_mark(value) else f"{MARK} [cut: {len(values)} items, {place} of them here]")
                break
            self._left -= 1
            cleaned.append(self.clean(value, depth - 1))
        return cleaned

    def _object(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        numbers: dict[str, int] = {}
        for place, (key, value) in enumerate(values.items()):
            if self._left <= 0:
                mark = value if _is_mark(value) else f"{MARK} [cut: {len(values)} fields, {place} of them here]"
                cleaned[_fresh(MARK, cleaned, numbers)] = mark
                break
            self._left -= 1
            cleaned[_fresh(_key(key), cleaned, numbers)] = self.clean(value, depth - 1)
        return cleaned


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    return clean_key(str.__str__(key) if isinstance(key, str) else _shown(key))


def _fresh(key: str, taken: Mapping[str, Any], numbers: dict[str, int]) -> str:
    """Return a key that is not taken: two that differ in what was escaped or cut must not become one.

    `numbers` holds the number that follows the last one of each key: to count from 2 again for each of thousands takes minutes.
    """
    if key not in taken:
        return key
    begin = key[: KEY_LIMIT - 8]
    number = numbers.get(begin, 2)
    while (other := f"{begin} ({number})") in taken:
        number += 1
    numbers[begin] = number + 1
    return other


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  a class of the user's may raise whatever it likes
        return f"<{type(value).__name__}>"


def _is_mark(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(MARK)


def _too_deep() -> str:
    return f"{MARK} [cut: nested too deep]"


@functools.cache
def _escapes() -> dict[int, str]:
    return {code: _spelled(code) for code in (*range(0xA0), *range(0xD800, 0xE000)) if _UNSAFE.match(chr(code))}


def _escape(found: re.Match[str]) -> str:
    return _spelled(ord(found[0]))


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def parse_long(text: str) -> Any:
    """Return the value of a JSON text, as `json.loads` does; raises `ValueError`, also for text that is nested too deep.

    Takes two to three times as long. `json.loads` holds the interpreter lock until it returns, up to a second for 24 MB of
    numbers. Even in a thread it blocks the event loop of the process, which in a triggerer is shared by the triggers of all
    tasks. Here the same C scanner is called for a few kilobytes at a time, and Python switches threads in between.
    """
    value, end = _Parser(text).value(_after_space(text, 0), 0, 0)
    end = _after_space(text, end)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


class _Parser:
    """The parser of one text; each method returns a value and the offset behind it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, start: int, depth: int, tried_from: int) -> tuple[Any, int]:
        """Parse any value; the C scanner is tried for containers that begin at `tried_from` or behind it."""
        opening = self._text[start : start + 1]
        if opening not in ("[", "{") or not opening:
            return self._scalar(start)
        if start >= tried_from:
            try:
                value, end = _scan(self._text[start : start + _PART], 0)
            except (StopIteration, ValueError, RecursionError):  # longer than a part, or invalid: that is found below
                tried_from = start + _UNTRIED
            else:
                return value, start + end
        if depth >= _DEPTH:
            raise ValueError(f"the JSON value is nested too deeply; at most {_DEPTH} levels are allowed")
        return self._list(start, depth, tried_from) if opening == "[" else self._object(start, depth, tried_from)

    def _scalar(self, start: int) -> tuple[Any, int]:
        try:
            found: tuple[Any, int] = _scan(self._text, start)
        except StopIteration as stop:
            raise json.JSONDecodeError("Expecting value", self._text, stop.value) from None
        return found

    def _list(self, start: int, depth: int, tried_from: int) -> tuple[list[Any], int]:
        text, items = self._text, list[Any]()
        at = _after_space(text, start + 1)
        if text[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, at = self.value(at, depth + 1, tried_from)
            items.append(item)
            at, more = self._next(at, "]")
            if not more:
                return items, at

    def _object(self, start: int, depth: int, tried_from: int) -> tuple[dict[str, Any], int]:
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
            fields[key], at = self.value(_after_space(text, at + 1), depth + 1, tried_from)
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
