"""Convert DLRover's arguments in a document and its annotations to fields of the job. Pure.

A job file overrides its annotations, and both override other sources (`completed`). A command line overrides all of them
(`overridden`). Two spellings of one argument in the same source must have the same value. The original places are stored, so
that errors name them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.job.arguments import ARGUMENTS, PREFIX, Argument, Field, argument_of, field_rule, names_of, read_variable
from rallypoint.job.errors import JobError, Problem, Step, dotted, show
from rallypoint.job.values import RefusedError

__all__ = ["Spelled", "completed", "overridden", "place_in", "said_by_annotations", "spell", "variables"]

_ANNOTATIONS = "annotations"

#: A place in a document.
Spot = tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Spelled:
    """A document whose arguments stand at their fields; `moved` has the place where each was written, by its field's."""

    document: Mapping[str, Any]
    moved: Mapping[str, str] = field(default_factory=dict)

    def told(self, error: JobError) -> JobError:
        """Return an error about the document as one about what was written."""
        problems = (dataclasses.replace(problem, path=self.moved.get(problem.path, problem.path)) for problem in error.problems)
        return JobError(problems, error.source)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """An argument, as it is `written` at a `path`, and the fields that it sets."""

    argument: Argument
    path: str
    written: object
    fields: Mapping[Field, Any]


def spell(document: Mapping[str, Any]) -> Spelled:
    """Return the document in our own words; raises `JobError` for every argument that is wrong or said twice otherwise."""
    keys, wrong = _keys(document)
    notes, more = _annotated(document)
    wrong += [*more, *_misplaced(document)]
    told = {problem.path for problem in wrong}
    moved: dict[str, str] = {}
    spelled = {item.path for item in keys}
    whole: Mapping[str, Any] = {key: value for key, value in document.items() if key not in spelled}
    for item, over in (*((item, False) for item in keys), *((item, True) for item in notes)):
        whole, problems = (whole, []) if item.path in told else _put(whole, item, moved, over=over)
        wrong += problems
    if wrong:
        raise JobError(wrong)
    return Spelled(document=whole, moved=moved)


def said_by_annotations(document: Mapping[str, Any]) -> frozenset[Field]:
    """Return the fields that annotations of arguments set; what is wrong with them is told by `spell`."""
    return frozenset(found for item in _annotated(document)[0] for found in item.fields)


def completed(document: Mapping[str, Any], values: Mapping[str, object], *, at: Callable[[Argument], str]) -> dict[str, Any]:
    """Return the document with arguments that neither it nor its annotations say; `at` names the place of one, for errors.

    Raises `JobError` for a value that is not allowed, and for one of a role where the job has several that do not say it.
    """
    said: list[_Said] = []
    wrong: list[Problem] = []
    for key, value in values.items():
        argument = argument_of(key)
        if argument is None:
            wrong.append(Problem(path=key, text=f"is not a known argument; {_hint(key)}"))
            continue
        found, problem = _read(argument, at(argument), value, argument.read)
        said += found
        wrong += problem
    return _completed(document, said, wrong)


def variables(environ: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what completes a document by the arguments of an environment, as `completed` does."""

    def complete(document: Mapping[str, Any]) -> dict[str, Any]:
        said: list[_Said] = []
        wrong: list[Problem] = []
        for argument in ARGUMENTS.values():
            text = environ.get(argument.variable)
            if text:
                read = _reader(argument)
                found, problem = _read(argument, f"environment variable {argument.variable}", text, read)
                said += found
                wrong += problem
        return _counted(_completed(document, said, wrong), environ)

    return complete


def _counted(document: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with the nodes that `auto_config` finds where nobody says how many: NODE_NUM, as in DLRover."""
    at, count = ("roles", "auto_config"), environ.get("NODE_NUM", "")
    if not count:
        return document
    spelled = spell(document).document
    wished = (_given(spelled, spot, at) for spot in _spots(spelled, at))
    if not any(given and str(value).lower() == "true" for given, value in wished):
        return document
    return completed(document, {"nnodes": count}, at=lambda _: "environment variable NODE_NUM")


def overridden(document: Mapping[str, Any], values: Mapping[str, object]) -> dict[str, Any]:
    """Return the document with arguments of a command line in the place of whatever it says; raises `JobError`."""
    whole: Mapping[str, Any] = document
    wrong: list[Problem] = []
    for name, value in values.items():
        argument = ARGUMENTS[name]
        found, problem = _read(argument, argument.flag, value, argument.read)
        wrong += problem
        for item in found:
            bare = {key: old for key, old in whole.items() if argument_of(key) is not argument or key in _own(argument)}
            for at in item.fields:
                bare = _without(bare, at)
            whole, problems = _put(bare, item, {}, over=False)
            wrong += problems
    if wrong:
        raise JobError(wrong)
    return dict(whole)


def place_in(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the `platform` and the `namespace` of a spelled document, where they are allowed; the job tells of others."""
    found = {}
    for name in ("platform", "namespace"):
        if name in document:
            with contextlib.suppress(RefusedError):
                found[name] = str(ARGUMENTS[name].read(document[name])["", name])
    return found


def _reader(argument: Argument) -> Callable[[object], dict[Field, Any]]:
    return lambda text: read_variable(argument, str(text))


def _completed(document: Mapping[str, Any], said: list[_Said], wrong: list[Problem]) -> dict[str, Any]:
    notes = said_by_annotations(document)
    known = {at for item in _keys(document)[0] for at in item.fields} | notes
    whole: Mapping[str, Any] = document
    for item in said:
        open_ = {at: value for at, value in item.fields.items() if at not in known}
        whole, problems = _put(whole, dataclasses.replace(item, fields=open_), {}, over=True)
        wrong = [*wrong, *problems]
    if wrong:
        raise JobError(wrong)
    return dict(whole)


# --- What is written where -------------------------------------------------------------------------------------------------


def _own(argument: Argument) -> tuple[str, ...]:
    """Return the key of a document that is the argument's field itself, and no other spelling of it."""
    block, name = argument.field
    return (name,) if block in ("", "roles") and name == argument.name else ()


def _keys(document: Mapping[str, Any]) -> tuple[list[_Said], list[Problem]]:
    """Return the arguments among the keys of a document; a key that is the field itself is left to the field's own rule."""
    found: list[_Said] = []
    wrong: list[Problem] = []
    for key, value in document.items():
        argument = argument_of(key)
        if argument is None or key in _own(argument):
            continue
        said, problem = _read(argument, key, value, argument.read)
        found += said
        wrong += problem
    return found, [*wrong, *_twice(found)]


def _annotated(document: Mapping[str, Any]) -> tuple[list[_Said], list[Problem]]:
    found: list[_Said] = []
    wrong: list[Problem] = []
    notes = document.get(_ANNOTATIONS)
    for key, text in notes.items() if isinstance(notes, Mapping) else ():
        argument = argument_of(str(key).removeprefix(PREFIX))
        path = dotted((_ANNOTATIONS, str(key)))
        if argument is not None and argument.annotation:
            said, problem = _read(argument, path, text, argument.read)
            found += said
            wrong += problem
        elif str(key).startswith(PREFIX):
            told = "cannot be an annotation; move it to the job file" if argument else "is not a known argument"
            advice = "" if argument else f"; {_hint(str(key).removeprefix(PREFIX))}"
            wrong.append(Problem(path=path, text=f"{told}{advice}"))
    return found, [*wrong, *_twice(found)]


def _misplaced(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what would have no effect where it stands: an argument among the annotations of a role, or among labels."""
    roles = document.get("roles")
    named = roles.items() if isinstance(roles, Mapping) else enumerate(roles if isinstance(roles, (list, tuple)) else ())
    for name, role in named:
        notes = role.get(_ANNOTATIONS) if isinstance(role, Mapping) else None
        for key in notes if isinstance(notes, Mapping) else ():
            if str(key).startswith(PREFIX):
                path = dotted(("roles", name, _ANNOTATIONS, str(key)))
                yield Problem(path=path, text="has no effect in a role; move this key to annotations at the top level")
    labels = document.get("labels")
    for key in labels if isinstance(labels, Mapping) else ():
        if str(key).startswith(PREFIX) and argument_of(str(key).removeprefix(PREFIX)):
            yield Problem(path=dotted(("labels", str(key))), text="has no effect in labels; move this key to annotations")


def _read(
    argument: Argument, path: str, value: object, read: Callable[[object], dict[Field, Any]]
) -> tuple[list[_Said], list[Problem]]:
    try:
        return [_Said(argument=argument, path=path, written=value, fields=read(value))], []
    except RefusedError as error:
        allowed = str(error) or argument.rule.allowed
        return [], [Problem(path=path, text=f"{show(value)} is not allowed; expected {allowed}")]


def _twice(found: list[_Said]) -> Iterator[Problem]:
    """Yield each spelling of an argument that says otherwise than an earlier one at the same door."""
    first: dict[Field, _Said] = {}
    for item in found:
        for at, value in item.fields.items():
            known = first.setdefault(at, item)
            if known.fields[at] != value:
                own, other = show(item.written), show(known.written)
                yield Problem(
                    path=item.path,
                    text=f"{own} is not allowed; expected {other}, the value of {known.path}, because both names stand for "
                    "the same argument; set only one of them",
                )
                break


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), ARGUMENTS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(ARGUMENTS)}"


# --- Where a field stands in a document ------------------------------------------------------------------------------------


def _spots(document: Mapping[str, Any], at: Field) -> tuple[Spot, ...]:
    """Return where a field stands: at one place, or at each role."""
    block, name = at
    if not block:
        return ((name,),)
    if block != "roles":
        return ((block, name),)
    if "roles" not in document:
        return ((name,),)
    roles = document["roles"]
    if isinstance(roles, Mapping):
        return tuple(("roles", key, name) for key in roles)
    return tuple(("roles", index, name) for index in range(len(roles))) if isinstance(roles, (list, tuple)) else ()


def _holder(document: Any, spot: Spot) -> Any:
    for step in spot[:-1]:
        if isinstance(step, str):
            document = document.get(step, {}) if isinstance(document, Mapping) else None
        else:
            document = document[step]
    return {} if document is None else document


def _given(document: Mapping[str, Any], spot: Spot, at: Field) -> tuple[bool, Any]:
    """Return whether a field is given at a spot, and its value."""
    holder = _holder(document, spot)
    if not isinstance(holder, Mapping):
        return True, None  # what stands there is wrong, and its own error says so
    return next(((True, holder[name]) for name in names_of(at) if name in holder), (False, None))


def _put(
    document: Mapping[str, Any], item: _Said, moved: dict[str, str], *, over: bool
) -> tuple[Mapping[str, Any], list[Problem]]:
    """Return the document with an argument at its fields; where it is given there, `over` lets that be, else it must agree."""
    wrong: list[Problem] = []
    for at, value in item.fields.items():
        spots = _spots(document, at)
        free = [spot for spot in spots if not _given(document, spot, at)[0]]
        if len(spots) > 1 and free:
            told = f"is not allowed for a job with several roles; set {at[1]} in each role"
            wrong.append(Problem(path=item.path, text=f"{show(item.written)} {told}"))
            continue
        for spot in spots:
            if spot in free:
                document = _set(document, spot, value)
                moved[dotted(spot)] = item.path
            elif not over and not _agrees(_given(document, spot, at)[1], at, value):
                told = f"it conflicts with {dotted(spot)}; set one of them"
                wrong.append(Problem(path=item.path, text=f"{show(item.written)} is not allowed; {told}"))
    return document, wrong


def _agrees(given: Any, at: Field, value: Any) -> bool:
    rule = field_rule(at)
    try:
        return bool(rule.write(rule.read(given)) == value)
    except RefusedError:
        return True  # its own error says what is wrong with it


def _set(holder: Any, spot: Spot, value: Any) -> Any:
    """Return a copy of what holds a spot, with a value there."""
    step, *rest = spot
    inner = value
    if rest:
        known = holder[step] if isinstance(step, int) else holder.get(step)
        inner = _set({} if known is None else known, tuple(rest), value)
    if isinstance(step, int):
        return [inner if index == step else item for index, item in enumerate(holder)]
    return {**holder, step: inner}


def _without(document: Mapping[str, Any], at: Field) -> dict[str, Any]:
    """Return the document without what it says of a field."""
    whole: dict[str, Any] = dict(document)
    for spot in _spots(whole, at):
        holder = _holder(whole, spot)
        if not isinstance(holder, Mapping) or not holder.keys() & set(names_of(at)):
            continue
        kept = {key: value for key, value in holder.items() if key not in names_of(at)}
        whole = _set(whole, spot[:-1], kept) if spot[:-1] else kept
    return whole
