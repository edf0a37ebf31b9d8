"""The reference of the job file in Markdown, made from the models: field, type, default, unit, meaning. Pure."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rallypoint.job import mindcluster
from rallypoint.job.annotations import ANNOTATIONS, PREFIX
from rallypoint.job.cluster import Cluster, Group, Master
from rallypoint.job.endings import EndingRule
from rallypoint.job.mindcluster import MindCluster
from rallypoint.job.model import ElasticJob
from rallypoint.job.policies import BudgetRefill, FaultTolerance, Health, Logs, Recovery, Refills, Rendezvous
from rallypoint.job.profiles import DEFAULTS
from rallypoint.job.role import InstanceResources, NodeGroupFailover, Resources, Role
from rallypoint.job.rules import rule_of
from rallypoint.wire.plan import Profile

__all__ = ["reference"]

_HEAD = """\
<!-- Written by `python -m rallypoint.job.schema`; change the models, not this file. -->

# The job file

After this page you can look up every field of a job with its type, default and unit. A job file is YAML or JSON; the same
document can be a dict or keyword arguments (`load_job`). Unknown fields and values out of range are errors. JSON schema:
[job.schema.json](job.schema.json).

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

Several roles are listed under `roles`, as a list or a mapping from name to role; fields of a role at the top level are then an
error. `labels` and `annotations` at the top level apply to the job and all its pods.

## Values

| Type | Syntax |
|---|---|
| duration | `90s`, `1h30m`, `7d`, `300ms`, ISO 8601 without years and months (`PT1M30S`, `P1DT2H`), or seconds; not negative |
| YAML | `nodes: 1:2` is a range; `1.10`, `0123`, `0x1f`, `on`, `off`, `yes`, `no` and dates are text; \
only `true` and `false` are booleans; duplicate keys are errors; inside `config`, `1e-5` and `1.5` are numbers |
| document | at most 512 KiB, 20,000 values and 64 levels, with aliases and merges expanded |
| environment value | numbers and booleans become text (`1`, `true`); `null` is an error, `''` the empty value |
| quantity | as in Kubernetes: `500m`, `2`, `1.5`, `8Gi` |
| path | relative to the folder of the job file (of a dict: the current folder); `checkpoint_dir` and a script to `workdir`; \
`~` is the home of the submitting user; `s3://bucket/key` stays as it is |
"""

_PROFILES = """\
## Profiles

`profile` selects rules and defaults. A label or annotation of MindCluster (except `framework`), or a block `mindcluster`,
selects `mindcluster` if no profile is set, and is an error with another profile.

- `ladder` (default): lost nodes are replaced, the world shrinks and grows between MIN and MAX, rank 0 is not special.
- `appwrapper`: AppWrapper's rules: a fixed world (MIN = MAX), no replacement of nodes, a loss past its grace resets the job.
- `mindcluster`: the scheduler of Ascend MindCluster ([rules](../guides/mindcluster.md)).

A profile sets values that the job omits; `rallypoint plan` prints them, and the stored job contains them.

{defaults}
In `mindcluster`, `retry_limit` and `node_replacements` follow `fault-retry-times`, also beyond the 100 that a job file may set.

## Annotations of AppWrapper

Each annotation sets a field of `fault_tolerance`; if both are given, they must agree. Keys begin with `{prefix}`. Invalid
values are errors. Values read from an AppWrapper (`rallypoint.job.annotations.read_annotations`) are corrected as its
controller does, with a warning; `write_annotations` writes them in Go's units.

{appwrapper}
## Labels and annotations of MindCluster

Each one sets a field of the block `mindcluster`; if both are given, they must agree.

{mindcluster}"""

_COLUMNS = "| Field | Type | Default | Unit | Meaning |\n|---|---|---|---|---|"

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
    ("mindcluster", MindCluster),
    ("logs", Logs),
    ("cluster", Cluster),
    ("groups", Group),
    ("master", Master),
)


def reference() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, _profiles(), *(_section(title, model) for title, model in _SECTIONS)])


def _profiles() -> str:
    appwrapper = ((f"`{key}`", f"`{known.field}`", known.allowed) for key, known in ANNOTATIONS.items())
    keys = (("label", mindcluster.LABELS), ("annotation", mindcluster.ANNOTATIONS))
    words = (
        (f"{kind} `{key}`", f"`{known.field}`", known.allowed) for kind, known_keys in keys for key, known in known_keys.items()
    )
    return _PROFILES.format(
        prefix=PREFIX,
        defaults=_table(("Field", *(f"`{profile.value}`" for profile in Profile)), _default_rows()),
        appwrapper=_table(("Key", "Field", "Allowed"), appwrapper),
        mindcluster=_table(("Key", "Field", "Allowed"), words),
    )


def _default_rows() -> Iterator[tuple[str, ...]]:
    for path in DEFAULTS[Profile.LADDER]:
        block, name = path.split(".")
        rule = rule_of(dict(_SECTIONS)[block].model_fields[name].metadata)
        values = (DEFAULTS[profile][path] for profile in Profile)
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
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return f"mapping from {_kind(arguments[0])} to {_kind(arguments[1])}"
    return next(f"[{title}](#{title.lower().replace(' ', '-')})" for title, model in _SECTIONS if model is kind)
