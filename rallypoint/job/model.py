"""`ElasticJob`: the job of a user."""

from __future__ import annotations

import difflib
import json
import os
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails
from typing_extensions import Self

from rallypoint.job import several
from rallypoint.job.document import BYTES_LIMIT, NODES_LIMIT, check_values, read_document, read_yaml, write_yaml
from rallypoint.job.errors import JobError, Problem, Step, dotted, show
from rallypoint.job.fields import JobFields
from rallypoint.job.profiles import specs
from rallypoint.job.role import DEFAULT_ROLE, ELASTIC, Role, resolve
from rallypoint.job.rules import REFUSED, rule_of
from rallypoint.job.settle import settle
from rallypoint.job.shape import ROLE_KEYS, Form, Shape, normal
from rallypoint.job.spelling import Spelled, spell

__all__ = ["ElasticJob", "JobSource", "load_job", "problems"]

#: Names in torchrun or DLRover that are not similar to the field's name here.
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

#: Position of pydantic's mark for a mapping's key.
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
    path, value, allowed = dotted(shape.place(steps)), details["input"], _allowed(steps, root)
    if details["type"] == "missing":
        return Problem(path=path, text=f"is missing; expected {allowed}")
    return Problem(path=path, text=f"{show(value)} is not allowed; expected {allowed}")


def _refused(details: ErrorDetails, place: tuple[Step, ...]) -> Problem:
    context = details.get("ctx", {})
    at = context["at"]
    value = details["input"] if context["value"] is None else context["value"]
    path, allowed = dotted((*place, at) if at else place), context["allowed"]
    return Problem(path=path, text=f"{show(value)} is not allowed; expected {allowed}")


def _unknown(steps: tuple[Step, ...], root: type[BaseModel], shape: Shape) -> Problem:
    steps = (*steps[:-1], str(steps[-1]))  # a key that is a number is still no index
    return Problem(path=dotted(shape.place(steps)), text=f"is not a known key; {_hint(steps, root, shape)}")


def _allowed(steps: tuple[Step, ...], root: type[BaseModel]) -> str:
    """Return the allowed value at `steps`: from the field's rule, or the keys of that part of the job."""
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


def _hint(steps: tuple[Step, ...], root: type[BaseModel], shape: Shape) -> str:
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


#: What a role may have of its own beside what it has from the job.
_OWN = {"labels", "annotations"}


class ElasticJob(JobFields):
    """An elastic training job.

    Construct it from the normal form or the short form; an invalid document raises `JobError` and no other error.
    Paths stay as they are given until `with_base`, which `from_file` and `load_job` call.
    """

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the job of a YAML or JSON file, its paths absolute against the file's folder; raises `JobError`."""
        path = Path(path)
        document = read_document(path)
        try:
            return cls.model_validate(document).with_base(path.parent)
        except JobError as error:
            raise error.with_source(str(path)) from None

    def with_base(self, base: Path) -> Self:
        """Return the job with `workdir`, `checkpoint_dir` and `logs.dir` absolute, relative ones against `base`."""
        base = base.absolute()
        logs = self.logs.model_copy(update={"dir": resolve(self.logs.dir, base)}) if self.logs.dir else self.logs
        return self.model_copy(update={"roles": tuple(role.with_base(base) for role in self.roles), "logs": logs})

    def to_document(self) -> dict[str, Any]:
        """Return the canonical document: plain JSON values that read back as an equal job.

        Policies are written in full, so that a saved job means the same under other defaults. What is not given is left out,
        and so are settings without effect in the job's profile.
        """
        document = _given(self)
        document["roles"] = [self._own(role) for role in self.roles]
        if self.config:
            document["config"] = self.config  # whole: an empty value inside is content
        for profile, spec in specs().items():
            if self.profile is not profile:
                del document[spec.BLOCK]
                continue
            for block, _, field in (path.partition(".") for path in spec.WITHOUT_EFFECT):
                document[block].pop(field, None)
        if len(self.roles) == 1 and self.roles[0].name == DEFAULT_ROLE and not _OWN & document["roles"][0].keys():
            (role,) = document.pop("roles")
            short = {key: value for key, value in role.items() if key != "name"}
            return {"name": document.pop("name"), **short, **document}
        return document

    def _own(self, role: Role) -> dict[str, Any]:
        """Return the document of a role, without the labels and annotations that it has from the job."""
        inherited = {name: getattr(self, name) for name in _OWN}
        own = {
            name: {key: text for key, text in getattr(role, name).items() if inherited[name].get(key) != text} for name in _OWN
        }
        document = _given(role.model_copy(update=own))
        usual = {"launch"} if role.launch == ELASTIC else {"nodes", "node_unit", "nproc_per_node"}
        return {key: value for key, value in document.items() if key not in usual}

    def to_yaml(self) -> str:
        """Return the canonical document as YAML."""
        return write_yaml(self.to_document())

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Return the job of which `text` is the `to_yaml`; raises `JobError`.

        Such a text is indented, has each alias expanded, and its keys count as values. So it may be larger than a job file.
        """
        return cls.model_validate(read_yaml(text, limit=8 * BYTES_LIMIT, nodes=2 * NODES_LIMIT + 1))

    def to_json(self) -> str:
        """Return the canonical document as JSON."""
        return json.dumps(self.to_document(), indent=2, ensure_ascii=False) + "\n"

    @model_validator(mode="wrap")
    @classmethod
    def _speak_of_the_document(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, ElasticJob):
            return handler(data)
        spelled = spell(data) if isinstance(data, Mapping) else Spelled(document=data)
        try:
            return cls._read(spelled.document, handler)
        except JobError as error:
            raise spelled.told(error) from None

    @classmethod
    def _read(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        document, shape = normal(data)
        try:
            job = handler(document)
        except ValidationError as error:
            beside = several.problems_beside(document, shape.place)
            raise JobError((*problems(error, root=ElasticJob, shape=shape), *beside)) from None
        for name, value in settle(job, shape.place).items():
            # In place: pydantic's constructor keeps the object that it has begun, whatever a validator returns.
            object.__setattr__(job, name, value)
        return job


def _given(model: BaseModel) -> dict[str, Any]:
    """Return the fields of `model` that hold something, as plain JSON values."""
    plain: Mapping[str, Any] = model.model_dump(mode="json")
    values = {name: _plain(getattr(model, name), plain[name]) for name in type(model).model_fields}
    # By length: an empty mapping inside of a pod's field (`emptyDir: {}`) is content and stays.
    return {
        name: value for name, value in values.items() if value is not None and (not hasattr(value, "__len__") or len(value))
    }


def _plain(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel):
        return _given(value)
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return [_given(item) for item in value]
    return dumped


JobSource = str | os.PathLike[str] | Mapping[str, Any] | ElasticJob


def load_job(
    source: JobSource | None = None, /, *, base: str | Path | None = None, based: bool = True, **fields: Any
) -> ElasticJob:
    """Return the job that `source` describes, with `fields` in the place of its top-level keys of the same name.

    Args:
        source: path of a YAML or JSON file, a document as a dict, or a job; None for a job of `fields` alone.
        base: folder that relative paths of the job start from; without it the file's folder, or else the current one.
        based: false leaves relative paths as they are written: those of a job whose pods have them in their image.
        fields: keys of the document: `load_job(name="digits", entrypoint="train.py", nodes="1:2")`.

    Raises:
        JobError: it cannot be read or is not a job; the text names every problem.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _job(read_document(path), fields, Path(base or path.parent) if based else None, source=str(path))
    document = source.to_document() if isinstance(source, ElasticJob) else {} if source is None else source
    return _job(document, fields, Path(base or Path.cwd()) if based else None, source="")


def _job(document: Any, fields: Mapping[str, Any], base: Path | None, *, source: str) -> ElasticJob:
    try:
        merged = _merged(document, fields)
        check_values(merged)
        job = ElasticJob.model_validate(merged)
        # A short form may stand for more values: the canonical document is stored, and read again.
        check_values(job.to_document())
        return job if base is None else job.with_base(base)
    except JobError as error:
        raise error.with_source(source) from None


def _merged(document: Any, fields: Mapping[str, Any]) -> Any:
    if not fields:
        return document
    if not isinstance(document, Mapping):
        raise JobError(
            [Problem(path="job", text=f"{show(document)} is not allowed; expected a mapping with name and entrypoint")]
        )
    return {**document, **fields}
