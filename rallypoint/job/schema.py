"""JSON schema of the job file. `python -m rallypoint.job.schema [FOLDER]` writes the schema and the reference page."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rallypoint.job.annotations import ANNOTATIONS, PREFIX
from rallypoint.job.arguments import ARGUMENTS, Argument
from rallypoint.job.cluster import Cluster, Group, Master, Rpc
from rallypoint.job.endings import EndingRule
from rallypoint.job.model import ElasticJob
from rallypoint.job.part import Model
from rallypoint.job.policies import BudgetRefill, FaultTolerance, Health, Logs, Recovery, Refills, Rendezvous
from rallypoint.job.profiles import ProfileSpec, defaults_of, specs
from rallypoint.job.role import InstanceResources, NodeGroupFailover, Resources, Role
from rallypoint.job.rules import rule_of
from rallypoint.job.shape import ROLE_KEYS
from rallypoint.wire import sections
from rallypoint.wire.plan import Profile
from rallypoint.wire.sanitize import NON_FINITE
from rallypoint.wire.status import JobStatus

__all__ = ["DIALECT", "job_schema", "reference", "references", "wire_schema"]

_HEAD = """\
<!-- Written by `python -m rallypoint.job.schema`; change the models, not this file. -->

# The job file

After reading this page, you can look up every field of a job with its type, default and unit. A job file is YAML or JSON. In
Python, `rallypoint.job.load_job` also accepts a dict or keyword arguments with the same fields. Unknown fields and values out
of range are errors. JSON schema: [job.schema.json](job.schema.json).

```yaml
name: digits
entrypoint: train.py            # or: -m pkg.train, pkg.train:run, [bash, -c, ...], {script|module|function|command: ...}
args: [--epochs, 20]
nodes: 1:2                      # from one node to two
nproc_per_node: 2
checkpoint_dir: checkpoints
recovery:
  max_restarts: 3
rendezvous:
  last_call_timeout: 10s
```

A job with several roles has the field `roles`, a list or a mapping from name to role. A job with the field `roles`
must not have fields of a role at the top level. `labels` and `annotations` at the top level apply to the job and all its pods.

## Values

| Type of a value | Syntax |
|---|---|
| duration | `90s`, `1h30m`, `7d`, `300ms`, ISO 8601 without years and months (`PT1M30S`, `P1DT2H`), or \
a number of seconds; a negative duration is an error |
| YAML | `nodes: 1:2` is a range; `1.10`, `0123`, `0x1f`, `on`, `off`, `yes`, `no` and dates are text; \
only `true` and `false` are booleans; duplicate keys are errors; in the field `config`, `1e-5` and `1.5` are numbers |
| job document | at most 512 KiB; at most 20,000 values and 64 levels of nesting, counted after YAML aliases \
and merges are expanded |
| environment value | numbers and booleans become text (`1`, `true`); `null` is an error; for an empty value, write `''` |
| quantity | as in Kubernetes: `500m`, `2`, `1.5`, `8Gi` |
| path | relative to the folder of the job file (for a dict: to the current folder); `checkpoint_dir` and the script are \
relative to `workdir`; `~` is the home of the submitting user; URLs such as `s3://bucket/key` are not changed |
"""

_PROFILES = """\
## Profiles

The field `profile` of a job selects supervision rules and defaults. {chosen}

- `ladder` (default): lost nodes are replaced, and the number of nodes changes between MIN and MAX.
- `appwrapper`: AppWrapper's rules: a fixed number of nodes (MIN = MAX), and a restart of the whole job after a node is lost.
{summaries}

The table shows the fields whose defaults depend on the profile; a field that the job sets keeps the job's value.
`rallypoint plan` prints all fields of a job with their values.

{defaults}
{notes}

## Annotations of AppWrapper

Each annotation sets a field of `fault_tolerance`; if the job also sets this field, both values must be equal. Keys begin with
`{prefix}`. In a job file, an annotation with an invalid value is an error. In an AppWrapper manifest, Rallypoint corrects
invalid values as the AppWrapper controller does, and logs a warning.

{appwrapper}
{keys}"""

_KEYS = """\
## Labels and annotations of {title}

Each label or annotation sets a field of the block `{block}`; if the job also sets this field, both values must be equal.

{table}"""

_COLUMNS = "| Field | Type | Default | Unit | Meaning |\n|---|---|---|---|---|"

#: Names of several values of one type.
_PLURALS = {
    "mapping": "mappings",
    "shell command": "shell commands",
    "string": "strings",
    "string or number": "strings or numbers",
}

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The job", ElasticJob),
    ("A role", Role),
    ("resources", Resources),
    ("instance_resources", InstanceResources),
    ("node_group_failover", NodeGroupFailover),
    ("fault_tolerance", FaultTolerance),
    ("rules", EndingRule),
    ("recovery", Recovery),
    ("refill", Refills),
    ("a refill", BudgetRefill),
    ("rendezvous", Rendezvous),
    ("health", Health),
    *((spec.BLOCK, spec.MODEL) for spec in specs().values()),
    ("logs", Logs),
    ("cluster", Cluster),
    ("groups", Group),
    ("master", Master),
    ("rpc", Rpc),
)


def reference() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, _profiles(), *(_section(title, model) for title, model in _SECTIONS)])


def _profiles() -> str:
    appwrapper = ((f"`{key}`", f"`{known.field}`", known.allowed) for key, known in ANNOTATIONS.items())
    known = specs()
    return _PROFILES.format(
        prefix=PREFIX,
        defaults=_table(("Field", *(f"`{profile.value}`" for profile in Profile)), _default_rows()),
        appwrapper=_table(("Key", "Field", "Allowed values"), appwrapper),
        chosen=" ".join(spec.CHOSEN for spec in known.values()),
        summaries="\n".join(f"- `{profile.value}`: {spec.SUMMARY}." for profile, spec in known.items()),
        notes="\n".join(spec.NOTE for spec in known.values()),
        keys="\n".join(map(_keys, known.values())),
    )


def _keys(spec: ProfileSpec) -> str:
    keys = (("label", spec.LABELS), ("annotation", spec.ANNOTATIONS))
    rows = ((f"{kind} `{key}`", f"`{known.field}`", known.allowed) for kind, group in keys for key, known in group.items())
    return _KEYS.format(title=spec.TITLE, block=spec.BLOCK, table=_table(("Key", "Field", "Allowed values"), rows))


def _default_rows() -> Iterator[tuple[str, ...]]:
    for path in defaults_of(Profile.LADDER):
        block, name = path.split(".")
        rule = rule_of(dict(_SECTIONS)[block].model_fields[name].metadata)
        values = (defaults_of(profile)[path] for profile in Profile)
        yield (f"`{path}`", *(f"`{rule.write(value) if rule else value}`" for value in values))


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(titles)
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _section(title: str, model: type[BaseModel]) -> str:
    rows = "\n".join(_row(name, field) for name, field in model.model_fields.items())
    return f"## {title}\n\n{(model.__doc__ or '').splitlines()[0]}\n\n{_COLUMNS}\n{rows}\n"


def _row(name: str, field: FieldInfo) -> str:
    rule = rule_of(field.metadata)
    cells = (
        f"`{name}`",
        _kind(field.annotation, field.metadata),
        _default(field),
        rule.unit if rule else "",
        " ".join((field.description or "").split()),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    rule = rule_of(field.metadata)
    if isinstance(value, BaseModel) or value in ("", (), {}, None):
        return ""
    return f"`{rule.write(value) if rule else value}`"


def _kind(kind: Any, metadata: Iterable[Any] = ()) -> str:
    """Return the name of a type, with those of its parts for lists and mappings."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    rule = rule_of(metadata)
    if rule is not None:
        return rule.kind
    if origin is Annotated:
        return _kind(arguments[0], arguments[1:])
    if origin is tuple:
        return f"list of {_PLURALS.get(kind := _kind(arguments[0]), kind)}"
    if origin is dict:
        return f"mapping from {_kind(arguments[0])} to {_kind(arguments[1])}"
    return next(f"[{title}](#{title.lower().replace(' ', '-')})" for title, model in _SECTIONS if model is kind)


DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS = {str: "string", int: "integer", bool: "boolean", type(None): "null"}

_FLOAT: dict[str, Any] = {
    "description": "A number, or the name of one that JSON does not have.",
    "anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}],
}


def wire_schema(root: type) -> dict[str, Any]:
    """Return the schema of the dataclass `root`; what it is made of stands under `$defs`, by class name."""
    defs: dict[str, Any] = {}
    _wire_type(root, defs)
    body = defs.pop(root.__name__)
    return {"$schema": DIALECT, "title": root.__name__, **body, "$defs": dict(sorted(defs.items()))}


def _wire_type(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_wire_type(arm, defs) for arm in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _wire_type(arguments[0], defs)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _wire_type(arguments[1], defs)}
    if kind is float:
        defs["Float"] = _FLOAT
        return {"$ref": "#/$defs/Float"}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    return _named(kind, defs)


def _named(kind: type, defs: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in defs:
        defs[kind.__name__] = {}  # holds the place while a type that contains itself is read
        defs[kind.__name__] = _enumeration(kind) if issubclass(kind, enum.Enum) else _wire_object(kind, defs)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _enumeration(kind: type[enum.Enum]) -> dict[str, Any]:
    return {"description": _description(kind), "enum": [member.value for member in kind]}


def _wire_object(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    own = [field for field in dataclasses.fields(kind) if field.name != sections.FIELD]
    known = sections.of_record(kind) if len(own) < len(dataclasses.fields(kind)) else ()
    hints = {name: hint for one in (kind, *known) for name, hint in typing.get_type_hints(one).items()}
    fields = (*own, *(field for one in known for field in dataclasses.fields(one)))
    return {
        "description": _description(kind),
        "type": "object",
        "properties": {field.name: _wire_type(hints[field.name], defs) for field in fields},
        "required": [field.name for field in fields if _is_required(field)],
        "additionalProperties": False,
    }


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _description(kind: type) -> str:
    return inspect.getdoc(kind) or kind.__name__


_PARTS: tuple[type[Model], ...] = (
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
    *(spec.MODEL for spec in specs().values()),
    Logs,
    Cluster,
    Group,
    Master,
    Rpc,
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
