"""From pydantic's errors to problems in the words of a settings file: path, value, what is allowed. Pure."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rallypoint.job.errors import Problem, Step, dotted, show
from rallypoint.job.rules import REFUSED, rule_of

__all__ = ["keys_of", "problems"]

#: What people write who come from a job file or from Kubernetes, where no letters lead to the chart's word.
_SYNONYMS = {
    "name": "jobName",
    "image": "containerImage",
    "nodes": "numPods",
    "replicas": "numPods",
    "env": "environmentVariables",
    "entrypoint": "mainProgram",
    "priorityclassname": "priority",
    "labels": "customLabels",
}


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a part by the keys that the file has."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def problems(error: ValidationError, root: type[BaseModel]) -> tuple[Problem, ...]:
    """Return every problem that pydantic found in settings of the kind `root`."""
    return tuple(_problem(details, root) for details in error.errors(include_url=False))


def _problem(details: ErrorDetails, root: type[BaseModel]) -> Problem:
    steps = tuple(details["loc"])
    if details["type"] == REFUSED:
        return _refused(details, steps)
    if details["type"] in {"extra_forbidden", "invalid_key"}:
        steps = (*steps[:-1], str(steps[-1]))
        return Problem(
            path=dotted(steps), text=f"is not a known setting; {_advice(str(steps[-1]), _kind_at(steps[:-1], root))}"
        )
    allowed = _allowed(steps, root)
    if details["type"] == "missing":
        return Problem(path=dotted(steps), text=f"is missing; expected {allowed}")
    return Problem(path=dotted(steps), text=f"{show(details['input'])} is not allowed; expected {allowed}")


def _refused(details: ErrorDetails, steps: tuple[Step, ...]) -> Problem:
    context = details.get("ctx", {})
    path = (*steps, context["at"]) if context["at"] else steps
    # Where a part as a whole is refused for what it lacks at `at`, pydantic's input is the part and says nothing.
    value = details["input"] if context["value"] is None and not context["at"] else context["value"]
    return Problem(path=dotted(path), text=f"{show(value)} is not allowed; expected {context['allowed']}")


def _allowed(steps: tuple[Step, ...], root: type[BaseModel]) -> str:
    if isinstance(steps[-1], str):
        rule = rule_of(keys_of(_kind_at(steps[:-1], root))[steps[-1]].metadata)
        if rule is not None:
            return rule.allowed
    return f"a mapping with {', '.join(keys_of(_kind_at(steps, root)))}"


def _kind_at(steps: Iterable[Step], root: type[BaseModel]) -> type[BaseModel]:
    """Return the part that stands at `steps`, or of which there is a list."""
    kind = root
    for step in steps:
        if isinstance(step, str):
            kind = _part(keys_of(kind)[step].annotation)
    return kind


def _part(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_part(item) for item in typing.get_args(annotation) if item not in (None, type(None), ...))


def _advice(key: str, part: type[BaseModel]) -> str:
    known = {name.lower(): name for name in keys_of(part)}
    word = key.lower().replace("_", "").replace("-", "")
    close = known.get(word) or _SYNONYMS.get(word)
    if close in keys_of(part):
        return f"did you mean {close!r}?"
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"did you mean {known[near[0]]!r}?"
    (nearest,) = difflib.get_close_matches(word, known, n=1, cutoff=0.0)
    return f"the most similar setting is {known[nearest]!r}"
