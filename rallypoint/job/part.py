"""Base class of all parts of a job document: a frozen model that rejects unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from rallypoint.capabilities import modules
from rallypoint.job.rules import refusal

__all__ = ["Model", "extended"]


class Model(BaseModel):
    """A frozen part of a job; a key that it does not know is an error.

    Attributes:
        other_names: names that keys have elsewhere, which are read, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    other_names: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_other_names(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not cls.other_names.keys() & data.keys():
            return data
        for other, name in cls.other_names.items():
            if other in data and name in data and str(data[other]) != str(data[name]):
                allowed = f"the same value as {name} ({data[name]}); both are names of one field, set one of them"
                raise refusal(allowed, at=other, value=data[other])
        return {cls.other_names.get(key, key): value for key, value in data.items()}


def extended(part: type[Model], block: str) -> type[Model]:
    """Return a part with the fields that optional capabilities add to its block of the document, behind its own.

    A capability's `spec.py` has them in `FIELDS`, by block.
    """
    added = tuple(module.FIELDS[block] for module in modules("spec") if block in module.FIELDS)
    others = {other: name for model in (part, *added) for other, name in model.other_names.items()}
    # Annotated: pydantic takes a value without an annotation for a field.
    annotations = {"__annotations__": {"other_names": ClassVar[Mapping[str, str]]}, "other_names": others}
    kind: Any = type(part)
    made: type[Model] = kind(
        part.__name__.lstrip("_"),
        (*added, part),
        {"__module__": part.__module__, "__doc__": part.__doc__, **annotations},
    )
    return made
