"""DLRover's arguments: the name of each, and the field of a job that it sets. Pure.

One table for all places where they are set: keys at the top level of a job file, annotations, flags of the command line,
environment variables, the defaults of a connection, and the page that tells of them (docs/reference/arguments.md). What an
argument may say is the rule of its field, unless that document allows less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.capabilities import modules
from rallypoint.job.document import read_yaml
from rallypoint.job.errors import JobError
from rallypoint.job.part import Model
from rallypoint.job.platform import PLATFORM
from rallypoint.job.policies import FaultTolerance, Health, Logs, Recovery, Rendezvous
from rallypoint.job.role import Role
from rallypoint.job.rules import NAME, NAMESPACE, Rule, rule_of, whole
from rallypoint.job.values import RefusedError
from rallypoint.wire.arguments import PREFIX, WORDS, unquoted
from rallypoint.wire.pre_check import BUILT_IN_MODULE, NO_PRE_CHECK

__all__ = [
    "ARGUMENTS",
    "PREFIX",
    "Argument",
    "Field",
    "argument_of",
    "field_default",
    "field_rule",
    "names_of",
    "read_variable",
]

#: A field of a job: its block and its name; the block `roles` stands for each role, "" for the job itself.
Field = tuple[str, str]

#: Fields of the job itself; the model that has them reads its documents by means of this table.
_OF_THE_JOB: Mapping[str, Rule] = {"name": NAME, "platform": PLATFORM, "namespace": NAMESPACE}

_MODELS: Mapping[str, type[Model]] = {
    "roles": Role,
    "fault_tolerance": FaultTolerance,
    "recovery": Recovery,
    "rendezvous": Rendezvous,
    "health": Health,
    "logs": Logs,
}

#: Keys of rdzv_conf. The document names the first; DLRover reads lastcall_timeout, too, and the others are ours.
_RDZV_CONF: Mapping[str, Field] = {
    "join_timeout": ("rendezvous", "join_timeout"),
    "lastcall_timeout": ("rendezvous", "last_call_timeout"),
    "last_call_timeout": ("rendezvous", "last_call_timeout"),
    "fence_timeout": ("rendezvous", "fence_timeout"),
    "node_lease": ("health", "node_lease"),
}


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument.

    Attributes:
        name: in the document, with underscores.
        field: the field that it sets; for rdzv_conf, which sets several fields, the first.
        rule: reads its value, and describes the allowed values.
        seed: the default of the document, as it is written there.
        note: difference from DLRover and its reason; "" if there is none.
        annotation: it may be an annotation.
        of_run: `rallypoint-agent run` has it as a flag.
    """

    name: str
    field: Field
    rule: Rule
    seed: str
    note: str = ""
    annotation: bool = True
    of_run: bool = True

    @property
    def flag(self) -> str:
        """Its flag, spelled with hyphens."""
        return WORDS[self.name].flag

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return WORDS[self.name].variable

    @property
    def switch(self) -> bool:
        """Whether its flag has no value."""
        return not WORDS[self.name].metavar

    def read(self, value: object) -> dict[Field, Any]:
        """Return the fields that a value sets, in the form of the job document; raises `RefusedError`."""
        read = self.rule.read(value)
        return read if self.name == "rdzv_conf" else {self.field: self.rule.write(read)}


def names_of(field: Field) -> tuple[str, ...]:
    """Return the keys that a block's document may have for a field: its name, and its other names."""
    block, name = field
    others = _MODELS[block].other_names if block else {}
    return (name, *(other for other, ours in others.items() if ours == name))


def field_rule(field: Field) -> Rule:
    """Return the rule of a field."""
    block, name = field
    if not block:
        return _OF_THE_JOB[name]
    rule = rule_of(_MODELS[block].model_fields[name].metadata)
    if rule is None:
        raise LookupError(f"{block}.{name}: no argument can set this field of the job, because its annotation has no Rule")
    return rule


def field_default(field: Field) -> Any:
    """Return the default of a field in the form of the document; "" if it is set elsewhere."""
    block, name = field
    if not block:
        return ""
    default = _MODELS[block].model_fields[name].get_default(call_default_factory=True)
    return "" if default in (None, "") else field_rule(field).write(default)


def _read_rdzv_conf(value: object) -> dict[Field, Any]:
    found: dict[Field, Any] = {}
    names: dict[Field, str] = {}
    for key, text in _pairs(value).items():
        if key not in _RDZV_CONF:
            raise RefusedError(f"only the keys {', '.join(_RDZV_CONF)}; {key!r} is not one of them")
        field = _RDZV_CONF[key]
        rule = field_rule(field)
        try:
            written = rule.write(rule.read(text))
        except RefusedError:
            raise RefusedError(f"the value of the key {key} to be {rule.allowed}, not {text!r}") from None
        other = names.setdefault(field, key)
        if found.setdefault(field, written) != written:
            target = ".".join(filter(None, field))
            raise RefusedError(f"the same value for the keys {other} and {key}, because both set the job's field {target}")
    return found


def _pairs(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, str):
        raise RefusedError
    if value.strip().startswith("{"):
        return _mapping(value)
    found: dict[str, object] = {}
    for item in filter(None, (part.strip() for part in unquoted(value).split(","))):
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not text or found.setdefault(key, text) != text:
            raise RefusedError
    return found


def _mapping(text: str) -> Mapping[str, object]:
    try:
        found = read_yaml(text)
    except JobError as error:
        raise RefusedError from error
    if not isinstance(found, Mapping):
        raise RefusedError
    return found


_CONF = Rule(
    kind="mapping, or KEY=VALUE,...",
    allowed=f"a mapping or comma-separated KEY=VALUE pairs with the keys {', '.join(_RDZV_CONF)}; each value more than 0s",
    read=_read_rdzv_conf,
    schema={"type": ["object", "string"]},
)


def _of(name: str, block: str, field: str = "", *, rule: Rule | None = None, **words: Any) -> Argument:
    at = (block, field or name)
    return Argument(name=name, field=at, rule=rule or field_rule(at), **words)


def _master() -> tuple[Argument, ...]:
    return (
        _of("job_name", "", "name", seed="n/a (required)", annotation=False, of_run=False),
        _of(
            "namespace",
            "",
            seed="default",
            annotation=False,
            of_run=False,
            note="from `--namespace`, the connection or the kubeconfig context",
        ),
        _of(
            "platform",
            "",
            seed="pyk8s",
            of_run=False,
            note="from `--backend`, the connection or RALLYPOINT_BACKEND, or local",
        ),
        _of("pending_timeout", "fault_tolerance", seed="900", of_run=False),
        _of("pending_fail_strategy", "fault_tolerance", seed="1", of_run=False),
        _of("service_type", "rendezvous", seed="grpc"),
        _of("xpu_type", "health", seed="nvidia"),
        _of("hang_detection", "health", seed="1"),
        _of("hang_downtime", "health", seed="30"),
        _of(
            "pre_check_ops",
            "health",
            seed=f'[("{BUILT_IN_MODULE}", "{NO_PRE_CHECK}", True)]',
        ),
        _of("dynamic_failover_extension", "fault_tolerance", seed="None"),
    )


def _training() -> tuple[Argument, ...]:
    return (
        _of("precheck", "health", seed="0"),
        _of("node_unit", "roles", seed="1"),
        _of("nnodes", "roles", "nodes", seed="1"),
        _of("rdzv_conf", "rendezvous", "join_timeout", rule=_CONF, seed="n/a", note="join_timeout defaults to 600 s"),
        _of(
            "max_restarts",
            "recovery",
            rule=whole(1, unit="restarts"),
            seed="3",
            note="`recovery.max_restarts` and `rallypoint-agent run` also accept 0; profile `mindcluster`: 32767",
        ),
        _of(
            "relaunch_on_worker_failure",
            "recovery",
            "node_replacements",
            rule=whole(1, unit="replacements"),
            seed="3",
            note="`recovery.node_replacements` also accepts 0; default 0 in the profiles `appwrapper` and `mindcluster`; "
            "`rallypoint-agent run` ignores it with a warning",
        ),
        _of("log_dir", "logs", "dir", seed="n/a"),
        _of("auto_config", "roles", seed="False"),
        _of("exclude_straggler", "health", seed="False", note="an error without a check"),
        _of("accelerator", "roles", seed="nvidia.com/gpu", note="also `cpu`"),
        _of("numa_affinity", "roles", seed="False"),
        _of("network_check", "health", seed="False"),
        _of("comm_perf_test", "health", seed="False"),
        _of("training_port", "rendezvous", seed="60000"),
    )


def _of_capabilities() -> Iterator[Argument]:
    for module in modules("spec"):
        for name, meaning in getattr(module, "ARGUMENTS", {}).items():
            yield _of(name, **meaning)


_KNOWN = {argument.name: argument for argument in (*_master(), *_training(), *_of_capabilities())}

#: By name, in the order of the document.
ARGUMENTS: Mapping[str, Argument] = {name: _KNOWN[name] for name in WORDS}


def argument_of(key: object) -> Argument | None:
    """Return the argument that a key names, in either spelling."""
    return ARGUMENTS.get(key.replace("-", "_")) if isinstance(key, str) else None


def read_variable(argument: Argument, text: str) -> dict[Field, Any]:
    """As `Argument.read` of an environment variable, where 1 and 0 switch as they do for torchrun; raises `RefusedError`."""
    return argument.read({"1": "true", "0": "false"}.get(text, text) if argument.switch else text)
