"""From a `LaunchConfig` to one agent of a run: checked, and with nothing left to guess. Pure.

Every error names the field, its value and what is allowed. What cannot have an effect here is refused, unless it never had one
on the result (timings of torch's own rendezvous): that is told in a note.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.flags import CHOICES
from rallypoint.agent.limits import SHUTDOWN_TIMEOUT
from rallypoint.agent.options import C10D_PORT, FENCE_TIMEOUT, MasterAddress, Meeting, RunOptions
from rallypoint.agent.workers.tee import DEFAULT_PREFIX
from rallypoint.compat.launch_agent.config import DEFAULT_TIMEOUT, LaunchConfig, read_streams
from rallypoint.wire import codec
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.function import ARGUMENTS, LAUNCHED_MODULE, PICKLE, SentCall
from rallypoint.wire.plan import Entry, Plan, RendezvousSettings
from rallypoint.wire.sections import build

__all__ = [
    "Entrypoint",
    "EtcdPlace",
    "Settled",
    "lay_down",
    "name_of",
    "read_entrypoint",
    "read_signals",
    "require_valid",
    "settle",
]


@dataclass(frozen=True, kw_only=True)
class Entrypoint:
    """The part of a plan that says what is run; `name` is for people."""

    entry: Entry
    entrypoint: str
    args: tuple[str, ...]
    name: str


def name_of(entrypoint: Callable[..., Any] | str | None, args: Sequence[object]) -> str:
    """Return how messages call an entrypoint, as torch does: "" for none.

    A function has its own name, and the interpreter that of the first argument which is no flag.
    """
    if entrypoint is None:
        return ""
    if not isinstance(entrypoint, str):
        return str(getattr(entrypoint, "__name__", None) or getattr(entrypoint, "__qualname__", type(entrypoint).__name__))
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith("-")), "")
    return entrypoint


def read_entrypoint(entrypoint: Callable[..., Any] | str | None, args: Sequence[object], folder: Path) -> Entrypoint:
    """Return what each worker runs; `folder` is where a function will be laid down. Raises `ValueError`."""
    name = name_of(entrypoint, args)
    if callable(entrypoint):
        return Entrypoint(entry=Entry.MODULE, entrypoint=LAUNCHED_MODULE, args=(str(folder),), name=name)
    if not isinstance(entrypoint, str) or not entrypoint:
        raise ValueError(f"entrypoint: {entrypoint!r} is not allowed; expected a function or the name of a program")
    words = tuple(os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args)
    if entrypoint == sys.executable:
        return _python(words, name)
    return Entrypoint(entry=Entry.COMMAND, entrypoint=entrypoint, args=words, name=name)


def _python(words: tuple[str, ...], name: str) -> Entrypoint:
    """Tell a script or module from other command lines of Python: only those two may be started from a warm interpreter."""
    rest = words[1:] if words[:1] == ("-u",) else words
    if len(rest) > 1 and rest[0] == "-m":
        return Entrypoint(entry=Entry.MODULE, entrypoint=rest[1], args=rest[2:], name=name)
    if rest and not rest[0].startswith("-"):
        return Entrypoint(entry=Entry.SCRIPT, entrypoint=rest[0], args=rest[1:], name=name)
    return Entrypoint(entry=Entry.COMMAND, entrypoint=sys.executable, args=words, name=name)


def lay_down(folder: Path, function: Callable[..., Any], args: Sequence[Any], name: str) -> None:
    """Write a function and its arguments into `folder`, readable by us alone; raises `ValueError` for what cannot be pickled.

    cloudpickle takes lambdas, closures and what the main program defines along; where it is not installed, the plain pickle
    must do, which takes functions that can be imported.
    """
    try:
        import cloudpickle  # noqa: PLC0415  an extra
    except ImportError:
        cloudpickle = pickle
    try:
        pickled = cloudpickle.dumps((function, tuple(args)))
    except Exception as error:
        raise ValueError(f"entrypoint: {name} or one of its args cannot be pickled: {type(error).__name__}: {error}") from error
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    sent = SentCall(name=name, python=version, sys_path=tuple(sys.path))
    _write(folder / PICKLE, pickled)
    _write(folder / ARGUMENTS, codec.dumps(sent).encode())


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """`holds` for the values that are allowed, which `expected` describes."""

    holds: Callable[[Any], bool]
    expected: str


def _integer(least: int) -> _Rule:
    def holds(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return _Rule(holds=holds, expected=f"an integer of at least {least}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_path(value: object) -> bool:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return isinstance(text, str) and bool(text) and "\0" not in text


def _or_none(rule: _Rule) -> _Rule:
    return _Rule(holds=lambda value: value is None or rule.holds(value), expected=f"None or {rule.expected}")


_TEXT = _Rule(holds=_is_text, expected="a string of printable characters")
_NAME = _Rule(
    holds=lambda value: _is_text(value) and bool(value.strip()), expected="a non-empty string of printable characters"
)
_SECONDS = _Rule(holds=_is_seconds, expected="a number of seconds, 0 or more")
_KEYED = _Rule(
    holds=lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    expected="a dict with string keys",
)

#: The fields whose values are compared, or read by a function of their own, are not listed.
_RULES: Mapping[str, _Rule] = {
    "min_nodes": _integer(1),
    "max_nodes": _integer(1),
    "nproc_per_node": _integer(1),
    "run_id": _TEXT,
    "role": _NAME,
    "rdzv_endpoint": _TEXT,
    "rdzv_backend": _TEXT,
    "rdzv_configs": _KEYED,
    "rdzv_timeout": _Rule(
        holds=lambda value: _is_seconds(value) or (value == -1 and not isinstance(value, bool)),
        expected="a number of seconds, 0 or more, or -1 to use rdzv_configs",
    ),
    "max_restarts": _integer(0),
    "monitor_interval": _Rule(holds=lambda value: _is_seconds(value) and value > 0, expected="more than 0 seconds"),
    "start_method": _TEXT,
    "log_dir": _or_none(_Rule(holds=_is_path, expected="a non-empty path")),
    "metrics_cfg": _KEYED,
    "log_line_prefix_template": _or_none(_Rule(holds=lambda value: isinstance(value, str), expected="a string")),
    "local_addr": _or_none(_NAME),
    "signals_to_handle": _TEXT,
    "virtual_local_rank": _Rule(holds=lambda value: isinstance(value, bool), expected="True or False"),
    "shutdown_timeout": _or_none(_SECONDS),
}


def require_valid(config: LaunchConfig) -> None:
    """Raise `ValueError` for the first field with a value that is not allowed; it names the field, the value and what is."""
    if not isinstance(config, LaunchConfig):
        raise ValueError(f"config: {config!r} is not allowed; expected a LaunchConfig of rallypoint.agent")  # noqa: TRY004
    for name, rule in _RULES.items():
        value = getattr(config, name)
        if not rule.holds(value):
            raise ValueError(f"{name}: {value!r} is not allowed; expected {rule.expected}")
    if config.min_nodes > config.max_nodes:
        given = f"{config.min_nodes}, {config.max_nodes}"
        raise ValueError(f"min_nodes, max_nodes: {given} is not allowed; expected 1 <= min_nodes <= max_nodes")


#: Who meets by our own coordinator, and who would by etcd; nobody but its maker has the last.
_OURS, _ETCD, _ZEUS = ("c10d", "rallypoint"), ("etcd", "etcd-v2"), "zeus-adapter"
_BACKENDS = (*_OURS, "static", *_ETCD, _ZEUS)

_START_METHODS = CHOICES["--start-method"]

_ETCD_PORT = 2379

#: Keys of `rdzv_configs` by what they are for; the values of the first are fields of the plan.
_LIMITS = {"last_call_timeout": "last_call", "node_lease": "node_lease", "fence_timeout": "fence_timeout"}

#: torch's two keys that say together when a silent node is lost, with its defaults.
_ALIVE = {"keep_alive_interval": 5.0, "keep_alive_max_attempt": 3.0}

_PLACES = ("rank", "is_host", "insecure_token", "protocol", "cacert", "ssl_cert", "ssl_cert_key", "etcd_prefix")
_THEIRS = (
    "close_timeout",
    "heartbeat_timeout",
    "local_addr",
    "read_timeout",
    "store_type",
    "use_libuv",
)

#: torch's newer fields that cannot have an effect here, with the one value that asks for none.
_WITHOUT: Mapping[str, tuple[object, str]] = {
    "logs_specs": (None, "Rallypoint defines the layout of the log files; see log_dir, redirects and tee"),
    "event_log_handler": ("null", "expected 'null'"),
}

_NUMA = CHOICES["--numa-binding"]


@dataclass(frozen=True, kw_only=True)
class EtcdPlace:
    """An etcd server, and the key under which a run's agents settle where its coordinator is."""

    host: str
    port: int
    key: str
    protocol: str = "http"
    cacert: str = ""
    cert: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What `launch_agent` does: `options` of the agent, the etcd server if there is one, and what must be told before."""

    options: RunOptions
    etcd: EtcdPlace | None
    notes: tuple[str, ...]


def settle(config: LaunchConfig, entrypoint: Entrypoint, env: Mapping[str, str], *, has_etcd: bool) -> Settled:
    """Return what a config asks for; `has_etcd` says whether etcd's Python client can be imported. Raises `ValueError`."""
    _check(config)
    notes = _notes(config.rdzv_configs)
    meeting, etcd, trouble = _meeting(config, has_etcd=has_etcd)
    static = config.rdzv_backend == "static" and config.max_nodes > 1
    options = RunOptions(
        plan=_plan(config, entrypoint, env),
        meeting=None if config.rdzv_backend == "static" and config.max_nodes == 1 else meeting,
        master=_master(config, meeting),
        node=_rank(config) if static else -1,
        local_addr=config.local_addr or "",
        log_dir=os.fspath(config.log_dir) if config.log_dir else "",
        streams=dataclasses.replace(
            read_streams(config.redirects, config.tee),
            duplicate_out=_filters(config.duplicate_stdout_filters, "duplicate_stdout_filters"),
            duplicate_err=_filters(config.duplicate_stderr_filters, "duplicate_stderr_filters"),
        ),
        prefix=config.log_line_prefix_template or env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or DEFAULT_PREFIX,
        insecure_token=_flag(config, "insecure_token", default=False),
    )
    return Settled(options=options, etcd=etcd, notes=(*notes, *trouble))


def read_signals(text: str) -> tuple[signal.Signals, ...]:
    """Return the signals that `SIGTERM,SIGINT` names; raises `ValueError`."""
    found = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP", "SIGCHLD"):
            raise ValueError(f"signals_to_handle: {name!r} is not allowed; expected names such as SIGTERM,SIGINT")
        found.append(signal.Signals[name])
    return tuple(found)


def _check(config: LaunchConfig) -> None:
    require_valid(config)
    if config.rdzv_backend not in _BACKENDS:
        raise ValueError(f"rdzv_backend: {config.rdzv_backend!r} is not allowed; expected one of {', '.join(_BACKENDS)}")
    if config.start_method not in _START_METHODS:
        raise ValueError(f"start_method: {config.start_method!r} is not allowed; expected one of {', '.join(_START_METHODS)}")
    for name, (allowed, why) in _WITHOUT.items():
        if getattr(config, name) != allowed:
            raise ValueError(f"{name}: {getattr(config, name)!r} is not supported: {why}")
    read_signals(config.signals_to_handle)


def _seconds(value: object, field: str) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{field}: {value!r} is not allowed; expected seconds, 0 or more")
    return number


def _notes(configs: Mapping[str, Any]) -> tuple[str, ...]:
    known = {"timeout", "join_timeout", *_LIMITS, *_ALIVE, *_PLACES}
    unknown = sorted(set(configs) - known - set(_THEIRS))
    if unknown:
        raise ValueError(f"rdzv_configs: key {unknown[0]!r} is not allowed; expected one of {', '.join(sorted(known))}")
    idle = sorted(set(configs) & set(_THEIRS))
    return (f"rdzv_configs: {', '.join(idle)}: ignored; only torch's own rendezvous uses it",) if idle else ()


def _plan(config: LaunchConfig, entrypoint: Entrypoint, env: Mapping[str, str]) -> Plan:
    configs = config.rdzv_configs
    limits = {
        field: _seconds(configs[key], f"rdzv_configs[{key!r}]")
        for key, field in _LIMITS.items()
        if configs.get(key) is not None
    }
    # A later change of rdzv_timeout counts as well: it wins, as when the config was made.
    timeout = config.rdzv_timeout if config.rdzv_timeout != -1 else configs.get("timeout", DEFAULT_TIMEOUT)
    return build(
        Plan,
        name=config.run_id,
        role=config.role,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        nproc_per_node=config.nproc_per_node,
        entry=entrypoint.entry,
        entrypoint=entrypoint.entrypoint,
        args=entrypoint.args,
        max_restarts=config.max_restarts,
        node_replacements=0,  # by hand there is no supervisor that could
        stop_grace=_grace(config, env),
        start_method=str(config.start_method) if config.chose_start_method else "",
        virtual_local_rank=config.virtual_local_rank,
        numa_binding=_numa(config.numa_options),
        report_interval=float(config.monitor_interval),
        join_timeout=_seconds(configs.get("join_timeout", timeout), "rdzv_configs['timeout']"),
        last_call=limits.get("last_call", RendezvousSettings.last_call),
        node_lease=limits.get("node_lease", _lease(configs)),
        fence_timeout=limits.get("fence_timeout", FENCE_TIMEOUT),
    )


def _lease(configs: Mapping[str, Any]) -> float:
    if not any(key in configs for key in _ALIVE):
        return RendezvousSettings.node_lease
    interval, attempts = (_seconds(configs.get(key, default), f"rdzv_configs[{key!r}]") for key, default in _ALIVE.items())
    return interval * attempts


def _filters(texts: object, field: str) -> tuple[str, ...]:
    if texts is None:
        return ()
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{field}: {texts!r} is not allowed; expected None or a list of strings")
    return tuple(texts)


def _numa(options: Any) -> str:
    """Return the name of the binding in torch's `NumaOptions`, or given as a word."""
    if options is None:
        return ""
    mode = getattr(options, "affinity_mode", options)
    word = str(getattr(mode, "value", mode))
    if word not in _NUMA:
        raise ValueError(f"numa_options: {word!r} is not allowed; expected None or one of {', '.join(_NUMA)}")
    return word


def _grace(config: LaunchConfig, env: Mapping[str, str]) -> float:
    if config.shutdown_timeout is not None:
        return _seconds(config.shutdown_timeout, "shutdown_timeout")
    return _seconds(env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") or SHUTDOWN_TIMEOUT, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")


# --- Where nodes meet ------------------------------------------------------------------------------------------------------


def _meeting(config: LaunchConfig, *, has_etcd: bool) -> tuple[Meeting | None, EtcdPlace | None, tuple[str, ...]]:
    backend, endpoint = config.rdzv_backend, config.rdzv_endpoint.strip()
    if backend == "static":
        return _static(config, endpoint), None, ()
    if backend in _ETCD and has_etcd and endpoint:
        return None, _etcd(config, endpoint), ()
    notes: tuple[str, ...] = ()
    if backend not in _OURS:
        notes = (f"rdzv_backend: {backend}: {_why_not(backend, has_etcd=has_etcd)}; using the built-in rendezvous instead",)
    if not endpoint:
        if config.max_nodes > 1:
            raise ValueError(
                f"rdzv_endpoint: is required for max_nodes {config.max_nodes}; expected HOST:PORT, the same on every node"
            )
        return None, None, notes
    host, port = _address(endpoint, C10D_PORT)
    return Meeting(host=host, port=port, may_host=_flag(config, "is_host", default=True)), None, notes


def _why_not(backend: str, *, has_etcd: bool) -> str:
    if backend == _ZEUS:
        return "custom backends are not supported"
    return "rdzv_endpoint is not set" if has_etcd else "the Python module etcd is not installed"


def _static(config: LaunchConfig, endpoint: str) -> Meeting:
    if not endpoint:
        raise ValueError("rdzv_endpoint: is missing; rdzv_backend 'static' requires HOST:PORT of node 0")
    if ":" not in endpoint or endpoint.endswith("]"):
        raise ValueError(f"rdzv_endpoint: {endpoint!r} has no port; rdzv_backend 'static' requires HOST:PORT of node 0")
    host, port = _address(endpoint, 0)
    return Meeting(host=host, port=port, may_host=_rank(config) == 0)


def _master(config: LaunchConfig, meeting: Meeting | None) -> MasterAddress | None:
    """Return where torch's static rendezvous has the store of the workers."""
    if config.rdzv_backend != "static" or meeting is None:
        return None
    return MasterAddress(host=meeting.host, port=meeting.port, flag="rdzv_endpoint")


def _rank(config: LaunchConfig) -> int:
    rank = config.rdzv_configs.get("rank", 0 if config.max_nodes == 1 else None)
    number = int(str(rank)) if str(rank).isdecimal() else -1
    if not 0 <= number < config.max_nodes:
        raise ValueError(
            f"rdzv_configs['rank']: {rank!r} is not allowed; expected 0 to {config.max_nodes - 1} with rdzv_backend 'static'"
        )
    return number


def _flag(config: LaunchConfig, key: str, *, default: bool) -> bool:
    told = str(config.rdzv_configs.get(key, default)).strip().lower()
    if told not in ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"):
        raise ValueError(f"rdzv_configs[{key!r}]: {told!r} is not allowed; expected true or false")
    return told in ("1", "true", "t", "yes", "y")


def _etcd(config: LaunchConfig, endpoint: str) -> EtcdPlace:
    host, port = _address(endpoint, _ETCD_PORT)
    configs = config.rdzv_configs
    protocol = str(configs.get("protocol", "http")).lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"rdzv_configs['protocol']: {protocol!r} is not allowed; expected http or https")
    cert = (str(configs["ssl_cert"]), str(configs.get("ssl_cert_key", ""))) if configs.get("ssl_cert") else None
    prefix = "/" + str(configs.get("etcd_prefix", "/rallypoint")).strip("/")
    key = f"{prefix}/{config.run_id}/coordinator"
    return EtcdPlace(host=host, port=port, key=key, protocol=protocol, cacert=str(configs.get("cacert") or ""), cert=cert)


def _address(text: str, default_port: int) -> tuple[str, int]:
    bare = ":" not in text or text.endswith("]")
    try:
        host, port = split_address(f"{text}:{default_port}" if bare else text)
    except ValueError:
        host, port = "", 0
    if not host or not 0 < port < 1 << 16:
        raise ValueError(f"rdzv_endpoint: {text!r} is not allowed; expected HOST:PORT with a port from 1 to 65535")
    return host, port
