"""From pydantic's errors to problems in the words of the document: path, value, what is allowed. Pure."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rallypoint.job.errors import Problem, Step, dotted, show
from rallypoint.job.rules import REFUSED, rule_of
from rallypoint.job.shape import ROLE_KEYS, Form, Shape

__all__ = ["problems"]

#: What people who come from torchrun or DLRover write, where no letters lead to our word.
_SYNONYMS = {
    "nnodes": "nodes",
    "nproc": "nproc_per_node",
    "relaunch_on_worker_failure": "recovery.node_replacements",
    "log_dir": "logs.dir",
    "rdzv_timeout": "rendezvous.join_timeout",
    "script": "entrypoint",
    "module": "entrypoint",
    "command": "entrypoint",
}

#: How much alike a word must be to one of another place, out of 1: what is merely near is told from the keys of its own place.
_NEAR = 0.7

#: Where pydantic puts the mark of a mapping's key, as against its value.
_KEY_MARK = "[key]"


def problems(error: ValidationError, *, root: type[BaseModel], shape: Shape) -> tuple[Problem, ...]:
    """Return every problem that pydantic found in a document of `root` whose roles are written as `shape` tells."""
    return tuple(_problem(details, root, shape) for details in error.errors(include_url=False))


def _problem(details: ErrorDetails, root: type[BaseModel], shape: Shape) -> Problem:
    steps = tuple(step for step in details["loc"] if step != _KEY_MARK)
    if details["type"] == REFUSED:
        return _refused(details, shape.place(steps))
    if details["type"] in {"extra_forbidden", "invalid_key"}:
        return _unknown(steps, root, shape)
    path = dotted(shape.place(steps))
    if details["type"] == "missing":
        return Problem(path=path, text=f"is missing; expected {_allowed(steps, root)}")
    return Problem(path=path, text=f"{show(details['input'])} is not allowed; expected {_allowed(steps, root)}")


def _refused(details: ErrorDetails, place: tuple[Step, ...]) -> Problem:
    context = details.get("ctx", {})
    at = context["at"]
    value = details["input"] if context["value"] is None else context["value"]
    path = dotted((*place, at) if at else place)
    return Problem(path=path, text=f"{show(value)} is not allowed; expected {context['allowed']}")


def _unknown(steps: tuple[Step, ...], root: type[BaseModel], shape: Shape) -> Problem:
    steps = (*steps[:-1], str(steps[-1]))  # a key that is a number is still no index
    return Problem(path=dotted(shape.place(steps)), text=f"is not a known key; {_advice(steps, root, shape)}")


def _allowed(steps: tuple[Step, ...], root: type[BaseModel]) -> str:
    """Return what may stand at `steps`: the field's own rule, or the keys of the part of the job that belongs there."""
    parent = _kind_at(steps[:-1], root)
    if isinstance(steps[-1], str):
        rule = rule_of(parent.model_fields[steps[-1]].metadata)
        if rule is not None:
            return rule.allowed
    return f"a mapping with some of {', '.join(_kind_at(steps, root).model_fields)}"


def _kind_at(steps: Iterable[Step], root: Any) -> Any:
    """Return the type at `steps`: a part of the job, or a list of such parts."""
    kind = root
    for step in steps:
        kind = typing.get_args(kind)[0] if isinstance(step, int) else kind.model_fields[step].annotation
    return kind


def _advice(steps: tuple[Step, ...], root: type[BaseModel], shape: Shape) -> str:
    """Return where an unknown key belongs, the key that is meant, or the keys that are known at its place."""
    key, here = str(steps[-1]), tuple(_kind_at(steps[:-1], root).model_fields)
    known = _top_level(here, shape) if len(steps) == 1 else here
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")
    elsewhere = _keys_elsewhere(root, shape)
    if word in known:
        return f"did you mean {word!r}?"
    if word in elsewhere or word in _SYNONYMS:
        return f"did you mean {elsewhere.get(word) or _SYNONYMS[word]!r}?"
    near = difflib.get_close_matches(word, known, n=1) or difflib.get_close_matches(word, elsewhere, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {near[0] if near[0] in known else elsewhere[near[0]]!r}?"
    return f"expected one of {', '.join(known)}"


def _top_level(fields: tuple[str, ...], shape: Shape) -> tuple[str, ...]:
    return (*fields, *ROLE_KEYS) if shape.form is Form.SHORT else fields


def _keys_elsewhere(root: type[BaseModel], shape: Shape) -> Mapping[str, str]:
    """Return the path in the document of each key of the policies, of the resources, and of the top level."""
    found = {name: name for name in _top_level(tuple(root.model_fields), shape) if name not in {"name", "roles"}}
    blocks = [((name,), field.annotation) for name, field in root.model_fields.items()]
    role = _kind_at(("roles", 0), root)
    blocks += [((name,), field.annotation) for name, field in role.model_fields.items()]
    for place, kind in blocks:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found = {**{name: dotted((*place, name)) for name in kind.model_fields}, **found}
    return found
