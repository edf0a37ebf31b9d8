"""JSON schema of the job file. `python -m rallypoint.job.schema [FOLDER]` writes it and the reference made from the models."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from rallypoint.job.arguments import ARGUMENTS, Argument
from rallypoint.job.cluster import Cluster, Group, Master
from rallypoint.job.endings import EndingRule
from rallypoint.job.mindcluster import MindCluster
from rallypoint.job.model import ElasticJob
from rallypoint.job.part import Model
from rallypoint.job.policies import BudgetRefill, FaultTolerance, Health, Logs, Recovery, Refills, Rendezvous
from rallypoint.job.reference import reference
from rallypoint.job.role import InstanceResources, NodeGroupFailover, Resources, Role
from rallypoint.job.rules import rule_of
from rallypoint.job.shape import ROLE_KEYS
from rallypoint.job.wire_schema import DIALECT, wire_schema
from rallypoint.wire.status import JobStatus

__all__ = ["job_schema", "references"]

_PARTS = (
    Role,
    Resources,
    InstanceResources,
    NodeGroupFailover,
    FaultTolerance,
    EndingRule,
    Recovery,
    Refills,
    BudgetRefill,
    Rendezvous,
    Health,
    MindCluster,
    Logs,
    Cluster,
    Group,
    Master,
)
_FOLDER = Path("docs/reference")


def job_schema() -> dict[str, Any]:
    """Return the schema of a job file, in all three forms that roles can be written in."""
    role = _properties(Role)
    short = {key: role[key] for key in ROLE_KEYS}
    listed = _properties(ElasticJob)
    listed["roles"]["anyOf"] = [
        {key: listed["roles"].pop(key) for key in ("type", "items", "minItems")},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/Role"}, "minProperties": 1},
    ]
    return {
        "$schema": DIALECT,
        "title": "ElasticJob",
        "description": "A Rallypoint job file: one role at the top level, or several under roles.",
        "type": "object",
        "properties": {"name": listed.pop("name"), **short, **listed, **_arguments({*short, *listed, "name"})},
        "anyOf": [{"required": ["name"]}, {"required": ["job_name"]}, {"required": ["job-name"]}],
        "oneOf": [
            {"required": ["entrypoint"], "not": {"required": ["roles"]}},
            {"required": ["roles"], "not": {"anyOf": [{"required": [key]} for key in ROLE_KEYS]}},
        ],
        "additionalProperties": False,
        "$defs": {part.__name__: _object(part) for part in _PARTS},
    }


def _arguments(known: set[str]) -> dict[str, Any]:
    """Return the keys that are DLRover's arguments, in both spellings."""
    return {
        key: {"description": f"DLRover argument; {_meaning(argument)}.", **argument.rule.schema}
        for argument in ARGUMENTS.values()
        for key in dict.fromkeys((argument.name, argument.name.replace("_", "-")))
        if key not in known
    }


def _meaning(argument: Argument) -> str:
    return f"same as {'.'.join(word for word in argument.field if word not in ('', 'roles'))}"


def references() -> dict[str, str]:
    """Return the text of each generated file of `docs/reference` by its name."""
    return {
        "job.md": reference(),
        "job.schema.json": _text(job_schema()),
        "status.schema.json": _text(wire_schema(JobStatus)),
    }


def _object(model: type[Model]) -> dict[str, Any]:
    properties = _properties(model)
    others = {
        other: {**properties[name], "description": f"Another name of {name}."} for other, name in model.other_names.items()
    }
    return {
        "description": model.__doc__,
        "type": "object",
        "properties": {**properties, **others},
        "required": [name for name, field in model.model_fields.items() if field.is_required()],
        "additionalProperties": False,
    }


def _properties(model: type[Model]) -> dict[str, Any]:
    return {name: _property(field) for name, field in model.model_fields.items()}


def _property(field: FieldInfo) -> dict[str, Any]:
    schema = {"description": field.description, **_schema(field.annotation, field.metadata)}
    rule = rule_of(field.metadata)
    if rule is None or field.is_required():
        return schema
    default = rule.write(field.get_default(call_default_factory=True))
    return {**schema, "default": default} if default not in ("", {}, [], None) else schema


def _schema(kind: Any, metadata: Iterable[Any] = ()) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    rule = rule_of(metadata)
    if rule is not None:
        return dict(rule.schema)
    if origin is Annotated:
        return _schema(arguments[0], arguments[1:])
    if origin is tuple:
        least = sum(getattr(item, "least", 0) for item in metadata)
        return {"type": "array", "items": _schema(arguments[0]), **({"minItems": least} if least else {})}
    if origin is dict:
        return {"type": "object", "propertyNames": _schema(arguments[0]), "additionalProperties": _schema(arguments[1])}
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the generated files into the folder that `arguments` name, or into docs/reference; return 0."""
    folder = Path(arguments[0]) if arguments else _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in references().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
