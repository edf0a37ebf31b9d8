"""`ElasticJob`: what the user asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from typing_extensions import Self

from rallypoint.job import several
from rallypoint.job.document import read_document, write_yaml
from rallypoint.job.errors import JobError
from rallypoint.job.fields import JobFields
from rallypoint.job.problems import problems
from rallypoint.job.role import DEFAULT_ROLE, ELASTIC, Role, resolve
from rallypoint.job.settle import WITHOUT_EFFECT, settle
from rallypoint.job.shape import normal
from rallypoint.job.spelling import Spelled, spell
from rallypoint.wire.plan import Profile

__all__ = ["ElasticJob"]

#: What a role may have of its own beside what it has from the job.
_OWN = {"labels", "annotations"}


class ElasticJob(JobFields):
    """An elastic training job.

    Construct it from the normal form or the short one; either way a wrong document raises `JobError` and nothing else.
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
        if self.profile is Profile.MINDCLUSTER:
            for block, _, field in (path.partition(".") for path in WITHOUT_EFFECT):
                document[block].pop(field, None)
        else:
            del document["mindcluster"]
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
