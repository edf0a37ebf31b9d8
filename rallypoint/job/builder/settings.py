"""The settings of `submit()`: arguments, DLROVER_UNIFIED_* variables and defaults, and their fields in the job document."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import TypedDict

from rallypoint.job.errors import JobError, Problem, show
from rallypoint.job.rules import NAME, WORD, Rule, choice, duration, one_of, whole
from rallypoint.job.values import RefusedError, read_text

__all__ = [
    "PLACE",
    "PREFIX",
    "SETTINGS",
    "Given",
    "Setting",
    "SubmitArguments",
    "SubmitSettings",
    "from_environment",
    "read",
    "read_place",
]

PREFIX = "DLROVER_UNIFIED_"

#: Variables of DLRover that are ignored.
_THEIRS = {"DL_CONFIG", "MASTER_STATE_BACKEND_CONFIG"}


class SubmitSettings(TypedDict, total=False):
    """The keyword arguments of `submit()`; docs/guides/roles.md tells what each does."""

    master_cpu: float
    master_mem: int
    master_memory: int
    master_create_timeout: float
    timeout: float
    node_max_restart: int
    job_max_restart: int
    master_max_restart: int
    master_isolation_schedule_resource: str
    worker_isolation_schedule_resource: str
    image: str
    failover_trigger_strategy: int
    failover_exec_strategy: int
    master_state_backend_type: str
    master_state_backend_config: dict[str, Any]


class SubmitArguments(SubmitSettings, total=False):
    """The settings, and where the job runs: an Airflow connection, or options of `rallypoint submit` by their names."""

    conn_id: str
    backend: str
    home: str
    namespace: str
    context: str
    kubeconfig: str
    kind: str
    supervisor_image: str
    supervisor_account: str
    address: str
    storage: str
    runtime_env: str


#: The arguments that say where a job runs.
PLACE = tuple(name for name in SubmitArguments.__annotations__ if name not in SubmitSettings.__annotations__)


def _read_cores(value: Any) -> float:
    try:
        cores = float(read_text(value) if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise RefusedError from None
    if isinstance(value, bool) or not 0 <= cores < 1_000_000:
        raise RefusedError
    return int(cores) if cores.is_integer() else cores


def _read_name(value: Any) -> str:
    # DLRover allows rl_job; a name is part of host names here.
    name: str = NAME.read(re.sub(r"[_.]", "-", read_text(value).lower()))
    return name


def _plain(value: Any) -> str:
    text = read_text(value)
    if not text.isprintable():
        raise RefusedError
    return text


_JOB_NAME = Rule(kind="name", allowed=NAME.allowed, read=_read_name, schema={})
_CORES = Rule(kind="cores", allowed="a number of cores, 0 or more", read=_read_cores, schema={})
_MIB = whole(0, 2**40, unit="MiB")
_WORD = Rule(kind="text", allowed=WORD.allowed, read=lambda value: WORD.read(value) if value != "" else "", schema={})
_BACKEND = choice("local", "kubernetes", "ray")
_TEXT = Rule(kind="text", allowed="a text without control characters", read=_plain, schema={})
_STATE = Rule(kind="text", allowed="any", read=read_text, schema={})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: DLRover's; `others` are further names of it.
        default: of `submit`; None where there is none.
        put: puts a value into a document; a default never takes the place of what the document has.
    """

    name: str
    rule: Rule
    default: Any = None
    others: tuple[str, ...] = ()
    put: Callable[[dict[str, Any], Any], None]


def _in(block: str, key: str, write: Callable[[Any], Any] = lambda value: value) -> Callable[[dict[str, Any], Any], None]:
    def put(document: dict[str, Any], value: Any) -> None:
        document.setdefault(block, {})[key] = write(value)

    return put


def _roles(document: dict[str, Any]) -> list[dict[str, Any]]:
    return list(document["roles"].values()) if "roles" in document else [document]


def _answer(document: dict[str, Any], value: str) -> None:
    for role in _roles(document):
        role["on_failure"] = value


def _put_image(document: dict[str, Any], value: str) -> None:
    for role in _roles(document):
        role.setdefault("image", value)


def _put_exec(document: dict[str, Any], value: int) -> None:
    _answer(document, {0: "none", 1: "job", 2: "role"}[value])


def _put_trigger(document: dict[str, Any], value: int) -> None:
    if value == 0:
        _answer(document, "none")


def _put_worker_isolation(document: dict[str, Any], value: str) -> None:
    if value:
        document["worker_isolation"] = value


def _put_master_isolation(document: dict[str, Any], value: str) -> None:
    if value:
        document.setdefault("master", {})["isolation"] = value


def _put_nothing(_document: dict[str, Any], value: str) -> None:
    warnings.warn(
        f"master_state_backend_type {value}: no effect; the record of a job is stored by its backend", UserWarning, stacklevel=2
    )


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(name="job_name", rule=_JOB_NAME, put=_in("", "")),
        Setting(name="master_cpu", rule=_CORES, default=2, put=_in("master", "cpu", lambda value: f"{value:g}")),
        Setting(
            name="master_mem",
            rule=_MIB,
            default=4096,
            others=("master_memory",),
            put=_in("master", "memory", lambda value: f"{value}Mi"),
        ),
        Setting(
            name="master_create_timeout",
            rule=duration(positive=True),
            default=600,
            others=("timeout",),
            put=_in("master", "create_timeout"),
        ),
        Setting(name="node_max_restart", rule=whole(0, 999_999), default=10, put=_in("recovery", "node_replacements")),
        Setting(name="job_max_restart", rule=whole(0, 100), default=10, put=_in("fault_tolerance", "retry_limit")),
        Setting(name="master_max_restart", rule=whole(0, 999_999), default=10, put=_in("master", "max_restarts")),
        Setting(name="master_isolation_schedule_resource", rule=_WORD, put=_put_master_isolation),
        Setting(name="worker_isolation_schedule_resource", rule=_WORD, put=_put_worker_isolation),
        Setting(name="image", rule=WORD, put=_put_image),
        Setting(name="failover_trigger_strategy", rule=one_of(0, 1, 2), put=_put_trigger),
        Setting(name="failover_exec_strategy", rule=one_of(0, 1, 2), put=_put_exec),
        Setting(name="master_state_backend_type", rule=_STATE, put=_put_nothing),
    )
}
_NAMES = {name: setting for setting in SETTINGS.values() for name in (setting.name, *setting.others)}


@dataclass(frozen=True, kw_only=True)
class Given:
    """Settings by name, read; `defaults` are those that nothing gives."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job's name; "" where none is given."""
        return str(self.values.get("job_name", ""))

    def with_defaults(self) -> Given:
        """Return the same with the defaults of `submit`."""
        defaults = {
            name: setting.default
            for name, setting in SETTINGS.items()
            if setting.default is not None and name not in self.values
        }
        return dataclasses.replace(self, defaults=defaults)

    def applied(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with the settings; a default leaves what the document has."""
        changed = copy.deepcopy(document)
        for name, value in self.defaults.items():
            before: dict[str, Any] = {}
            SETTINGS[name].put(before, value)
            for block, fields in before.items():
                changed[block] = {**fields, **changed.get(block, {})}
        for name, value in self.values.items():
            if name != "job_name":
                SETTINGS[name].put(changed, value)
        return changed


def from_environment(arguments: Mapping[str, Any]) -> Given:
    """Return the settings of this process: arguments win over its variables. Raises `JobError`."""
    return read(arguments, os.environ)


def read(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Given:
    """Return settings from arguments, then from variables; raises `JobError` with every problem.

    An empty variable counts as not set. Two names of one setting may be given if they agree.
    """
    variables = {
        key.removeprefix(PREFIX).lower(): text for key, text in environ.items() if key.startswith(PREFIX) and text != ""
    }
    wrong: list[Problem] = []
    values = dict(_read(variables, wrong, lambda name: f"${PREFIX}{name.upper()}"))
    values.update(_read(arguments, wrong, lambda name: name))
    if wrong:
        raise JobError(wrong)
    return Given(values=values)


def _read(given: Mapping[str, Any], wrong: list[Problem], path: Callable[[str], str]) -> Iterator[tuple[str, Any]]:
    first: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        if name.upper() in _THEIRS:
            warnings.warn(f"{path(name)}: no effect; the record of a job is stored by its backend", UserWarning, stacklevel=4)
            continue
        setting = _NAMES.get(name)
        if setting is None:
            wrong.append(Problem(path=path(name), text=f"is not a setting of submit(){_hint(name)}"))
            continue
        try:
            found = setting.rule.read(value)
        except RefusedError as error:
            allowed = str(error) or setting.rule.allowed
            wrong.append(Problem(path=path(name), text=f"{show(value)} is not allowed; expected {allowed}"))
            continue
        other, known = first.setdefault(setting.name, (name, found))
        if known != found:
            told = f"expected the value of {path(other)} ({known}), which is the same setting, or no value"
            wrong.append(Problem(path=path(name), text=f"{show(value)} is not allowed; {told}"))
            continue
        yield setting.name, found


def read_place(arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the arguments that say where the job runs, and the others; raises `JobError` with every problem."""
    place: dict[str, str] = {}
    wrong: list[Problem] = []
    for name in PLACE:
        value = arguments.get(name)
        if value is None or value == "":
            continue
        rule = _BACKEND if name == "backend" else _TEXT
        try:
            place[name] = rule.read(value)
        except RefusedError:
            wrong.append(Problem(path=name, text=f"{show(value)} is not allowed; expected {rule.allowed}"))
    if wrong:
        raise JobError(wrong)
    return place, {name: value for name, value in arguments.items() if name not in PLACE}


def _hint(name: str) -> str:
    known = (*_NAMES, *PLACE)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(known)}"
