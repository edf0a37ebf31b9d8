"""Job files: YAML or JSON text to plain values, and back to YAML.

The YAML read here is that of YAML 1.2 where it matters, since 1.1 has traps for jobs: `nodes: 1:2` would be the number 62,
`VERSION: 1.10` in an environment the number 1.1, `0123` the number 83, `on` and `no` booleans, and a date an object. Here only
`true` and `false` are booleans, only plain decimal integers are numbers, and everything else stays as it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rallypoint.job.errors import JobError, Problem, Step, dotted

__all__ = ["read_document", "read_json", "read_yaml", "write_yaml"]

_WIDTH = 128
_TOO_DEEP = Problem(path="job", text="cannot be read; it is nested too deeply")
_TEXT = "tag:yaml.org,2002:str"
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029]")
#: Texts that PyYAML would leave plain, and that Kubernetes' reader takes for numbers or booleans.
_DOUBTFUL = re.compile(r"[yYnN]|[-+]?(?:0[xXoObB][\da-fA-F_]+|\.?\d[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)?)", re.ASCII)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the resolvers below and no others."""


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
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(path, "it is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        raise _unreadable(path, getattr(error, "strerror", None) or str(error)) from error
    try:
        return read_json(text) if _looks_like_json(path, text) else read_yaml(text)
    except JobError as error:
        raise error.with_source(str(path)) from None


def read_yaml(text: str) -> Any:
    """Return the plain values of one YAML document; raises `JobError` for bad YAML and for a key given twice."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        twice = tuple(_duplicates(node, (), set()))
        if twice:
            raise JobError(twice)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "job"
        raise JobError([Problem(path=place, text=f"is not YAML; {error.problem or error.context}")]) from error
    except RecursionError as error:
        raise JobError([_TOO_DEEP]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a value that its own tag (`!!int x`) does not fit
        raise JobError([Problem(path="job", text=f"is not YAML; {str(error).splitlines()[0]}")]) from error


def read_json(text: str) -> Any:
    """Return the plain values of one JSON document; numbers with a point stay text, as in YAML. Raises `JobError`."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_float=str, parse_constant=_no_constant)
    except RecursionError as error:
        raise JobError([_TOO_DEEP]) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise JobError([Problem(path=place, text=f"is not JSON; {error.msg}")]) from error


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


def _duplicates(node: yaml.Node | None, place: tuple[Step, ...], seen: set[int]) -> Iterator[Problem]:
    # An alias leads to the same node again, perhaps to one that holds it.
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
                yield Problem(path=dotted(path), text=f"is given twice, on lines {lines[word]} and {line}; keep one")
            lines.setdefault(word, line)
        yield from _duplicates(value, path, seen)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    raise JobError([Problem(path=key, text="is given twice in one object; keep one") for key in twice])


def _no_constant(word: str) -> Any:
    raise JobError([Problem(path="job", text=f"is not JSON; {word} is not a JSON value")])


def _unreadable(path: Path, reason: str) -> JobError:
    return JobError([Problem(path="job", text=f"cannot be read; {reason}")], str(path))
