"""Job files: YAML or JSON text to plain values, and back to YAML.

The YAML read here is that of YAML 1.2 where it matters, since 1.1 has traps for jobs: `nodes: 1:2` would be the number 62,
`VERSION: 1.10` in an environment the number 1.1, `0123` the number 83, `on` and `no` booleans, and a date an object. Here only
`true` and `false` are booleans, only plain decimal integers are numbers, and everything else stays as it is written.

Only inside the top-level key `config`, which holds settings of the user's own, plain numbers with a point or an exponent are
numbers, too.

A document is bounded in bytes, nodes and depth, where an alias and a merge count as what they stand for: a few hundred bytes of
YAML can expand to gigabytes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rallypoint.job.errors import JobError, Problem, Step, dotted

__all__ = ["BYTES_LIMIT", "DEPTH_LIMIT", "NODES_LIMIT", "check_values", "read_document", "read_json", "read_yaml", "write_yaml"]

#: Limits of a document: bytes, values (with expanded aliases) and nesting. Readers and validation are slow.
BYTES_LIMIT, NODES_LIMIT, DEPTH_LIMIT = 512 * 1024, 20_000, 64

_WIDTH = 128
_FLOAT = "tag:yaml.org,2002:float"
_FRACTIONAL = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?", re.ASCII)
#: The top-level key whose numbers may have a point.
_CONFIG = "config"
_TOO_DEEP = Problem(path="job", text="the document is nested too deeply")
_TOO_LONG = f"the document exceeds {BYTES_LIMIT} bytes"
_TEXT = "tag:yaml.org,2002:str"
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029]")
#: Texts that PyYAML would write without quotes, and that Kubernetes would read as numbers or booleans.
_DOUBTFUL = re.compile(r"[yYnN]|[-+]?(?:0[xXoObB][\da-fA-F_]+|\.?\d[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)?)", re.ASCII)


_TOO_MANY = Problem(path="job", text=f"with all YAML aliases expanded, the document has more than {NODES_LIMIT} values")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the resolvers below and no others, and with bounds."""

    def __init__(self, text: str, most: int) -> None:
        super().__init__(text)
        self._depth, self._nodes, self._most = 0, 0, most

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node; raises `JobError` above a bound, before more is read."""
        self._depth += 1
        self._nodes += 1
        if self._depth > DEPTH_LIMIT:
            raise JobError([_TOO_DEEP])
        if self._nodes > self._most:
            raise JobError([_TOO_MANY])
        composed: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return composed


def _tagged_int(loader: yaml.SafeLoader, node: yaml.Node) -> int:
    """Return the number of `!!int`. Base 60 of YAML 1.1 is an error: its time grows with the square of the digits."""
    if not isinstance(node, yaml.ScalarNode) or ":" in node.value:
        raise yaml.constructor.ConstructorError(None, None, "expected an integer", node.start_mark)
    return int(loader.construct_yaml_int(node))


def _tagged_float(loader: yaml.SafeLoader, node: yaml.Node) -> float:
    """Return the number of `!!float`; not in base 60 of YAML 1.1, as for `!!int`."""
    if not isinstance(node, yaml.ScalarNode) or ":" in node.value:
        raise yaml.constructor.ConstructorError(None, None, "expected a number", node.start_mark)
    return float(loader.construct_yaml_float(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _tagged_int)
_Loader.add_constructor(_FLOAT, _tagged_float)
_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^-?(?:0|[1-9][0-9]*)$"), list("-0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])


class _Dumper(yaml.SafeDumper):
    """No anchors: a person reads the file."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value out each time it occurs."""
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Keep lines as lines, quote what a reader may take for another thing, and escape the rarer line breaks.

        PyYAML writes those plain and reads them back as spaces.
        """
        style = '"' if _ODD_BREAKS.search(text) else "|" if "\n" in text else "'" if _DOUBTFUL.fullmatch(text) else None
        return self.represent_scalar(_TEXT, text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def read_document(path: Path) -> Any:
    """Return the plain values of a job file: JSON where it ends in `.json` or reads as JSON, YAML otherwise.

    Raises `JobError`, with the path as its source, when it cannot be read, is neither, or gives a key twice.
    """
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_LIMIT + 1).decode()
    except UnicodeDecodeError as error:
        if len(error.object) <= BYTES_LIMIT:
            raise _unreadable(path, "the file is not valid UTF-8 text") from error
        raise _unreadable(path, _TOO_LONG) from error  # the text may be cut inside a character
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    try:
        return read_json(text) if _looks_like_json(path, text) else read_yaml(text)
    except JobError as error:
        raise error.with_source(str(path)) from None


def read_yaml(text: str, *, limit: int = BYTES_LIMIT, nodes: int = NODES_LIMIT) -> Any:
    """Return the plain values of one YAML document; raises `JobError` for bad YAML and for a key given twice.

    `limit`: bytes of the text, and characters of its values; `nodes`: keys and values. Both with aliases expanded.
    """
    _check_length(text, limit)
    try:
        loader = _Loader(text, nodes)
        node = loader.get_single_node()
        _check_expanded(node, limit, nodes)
        twice = tuple(_duplicates(node, (), set()))
        if twice:
            raise JobError(twice)
        _mark_numbers(node)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "job"
        raise JobError([Problem(path=place, text=f"is not valid YAML; {error.problem or error.context}")]) from error
    except RecursionError as error:
        raise JobError([_TOO_DEEP]) from error
    except (AttributeError, LookupError) as error:  # PyYAML's, of `!!timestamp x` and `!!bool x`
        raise JobError([Problem(path="job", text="is not valid YAML; a value does not fit its tag")]) from error
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:  # a value that its own tag (`!!int x`) does not fit
        raise JobError([Problem(path="job", text=f"is not valid YAML; {str(error).splitlines()[0]}")]) from error


def _mark_numbers(node: yaml.Node | None) -> None:
    """Mark the numbers with a point of the top-level key `config` as numbers."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[int] = set()
    left = [value for key, value in node.value if key.value == _CONFIG]
    while left:
        found = left.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, yaml.ScalarNode):
            if found.style is None and found.tag == _TEXT and _FRACTIONAL.fullmatch(found.value):
                found.tag = _FLOAT
        elif isinstance(found, yaml.MappingNode):
            left += [value for _, value in found.value]
        else:
            left += found.value


def read_json(text: str) -> Any:
    """Return the plain values of one JSON document; numbers with a point stay text, as in YAML, except in `config`.

    Raises `JobError`.
    """
    _check_length(text, BYTES_LIMIT)
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_float=_Fractional, parse_constant=_no_constant)
    except RecursionError as error:
        raise JobError([_TOO_DEEP]) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise JobError([Problem(path=place, text=f"is not valid JSON; {error.msg}")]) from error
    except ValueError as error:  # more digits than Python converts
        raise JobError([Problem(path="job", text="is not valid JSON; an integer has too many digits")]) from error
    check_values(document)
    if not isinstance(document, dict):
        return _as_text(document)
    return {key: _as_number(value) if key == _CONFIG else _as_text(value) for key, value in document.items()}


class _Fractional(str):
    """A number with a point of a JSON document, as it is written."""

    __slots__ = ()


def _as_text(value: Any) -> Any:
    return _replaced(value, str)


def _as_number(value: Any) -> Any:
    return _replaced(value, float)


def _replaced(value: Any, convert: Callable[[str], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, convert) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, convert) for item in value]
    return convert(str(value)) if isinstance(value, _Fractional) else value


def write_yaml(document: Any) -> str:
    """Return YAML in the document's own order, which YAML 1.1 and 1.2 read alike."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH))


def _looks_like_json(path: Path, text: str) -> bool:
    if path.suffix.lower() in {".yaml", ".yml"}:
        return False
    return path.suffix.lower() == ".json" or _is_json(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_length(text: str, limit: int) -> None:
    # A character has at least one byte.
    if len(text) > limit or len(text.encode(errors="replace")) > limit:
        raise JobError([Problem(path="job", text=f"cannot be read; the document exceeds {limit} bytes")])


def _check_expanded(node: yaml.Node | None, limit: int, nodes: int) -> None:
    """Raise `JobError` where aliases and merges make too much of a document, or lead to themselves."""
    values, size = (0, 0) if node is None else _expanded(node, {}, set())
    if values > nodes:
        raise JobError([_TOO_MANY])
    if size > limit:
        raise JobError([Problem(path="job", text=f"cannot be read; with all YAML aliases expanded, {_TOO_LONG}")])


def _expanded(node: yaml.Node, known: dict[int, tuple[int, int]], around: set[int]) -> tuple[int, int]:
    """Return how many values a node stands for, and characters; each node is counted once and remembered."""
    if isinstance(node, yaml.ScalarNode):
        return 1, len(node.value)
    if id(node) in around:
        raise JobError([Problem(path="job", text="cannot be read; a YAML alias refers to its own parent")])
    if id(node) not in known:
        around.add(id(node))
        inside = itertools.chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value
        counts = [_expanded(item, known, around) for item in inside]
        known[id(node)] = 1 + sum(values for values, _ in counts), sum(size for _, size in counts)
        around.remove(id(node))
    return known[id(node)]


def check_values(document: Any) -> None:
    """Raise `JobError` for a document with too many values, too much text, or nested too deep."""
    level, count, size = [document], 0, 0
    for _ in range(DEPTH_LIMIT + 1):
        if not level:
            return
        count += len(level)
        size += sum(len(value) for value in level if isinstance(value, str))
        if count > NODES_LIMIT:
            raise JobError([_TOO_MANY])
        if size > BYTES_LIMIT:
            raise JobError([Problem(path="job", text=f"{_TOO_LONG} of text")])
        level = [item for value in level for item in _items(value)]
    raise JobError([_TOO_DEEP])


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _duplicates(node: yaml.Node | None, place: tuple[Step, ...], seen: set[int]) -> Iterator[Problem]:
    # An alias refers to the same node, perhaps to its own parent.
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicates(item, (*place, index), seen)
    if isinstance(node, yaml.MappingNode):
        yield from _duplicates_of_mapping(node, place, seen)


def _duplicates_of_mapping(node: yaml.MappingNode, place: tuple[Step, ...], seen: set[int]) -> Iterator[Problem]:
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        path, line = (*place, str(key.value)), key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode):
            word = (key.tag, key.value)
            if word in lines:
                yield Problem(path=dotted(path), text=f"is set twice, on lines {lines[word]} and {line}; remove all but one")
            lines.setdefault(word, line)
        yield from _duplicates(value, path, seen)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    counts = Counter(key for key, _ in pairs)
    twice = sorted(key for key, count in counts.items() if count > 1)
    raise JobError([Problem(path=key, text="is set twice in one object; remove all but one") for key in twice])


def _no_constant(word: str) -> Any:
    raise JobError([Problem(path="job", text=f"is not valid JSON; {word} is not a JSON value")])


def _unreadable(path: Path, reason: str) -> JobError:
    return JobError([Problem(path="job", text=f"cannot be read; {reason}")], str(path))
