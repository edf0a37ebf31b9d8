"""What `rallypoint-agent run` was asked for: torchrun's flags, checked, as one frozen value. Pure but for counting devices."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rallypoint.agent.devices import workers_per_node
from rallypoint.agent.errors import UsageError
from rallypoint.agent.flags import CHOICES
from rallypoint.agent.workers.logs import Streams
from rallypoint.agent.workers.tee import DEFAULT_PREFIX
from rallypoint.agent.workers.worker_env import split_address
from rallypoint.wire.plan import Entry, Plan

__all__ = ["Meeting", "RunOptions", "parse_nnodes", "parse_rdzv_conf", "parse_std", "read_options"]

#: torchrun's ports: of the c10d store, and of the static rendezvous.
_C10D_PORT, _STATIC_PORT = 29400, 29500

#: torchrun's seconds from SIGTERM to SIGKILL.
_SHUTDOWN_TIMEOUT = 30.0

#: Seconds without the coordinator after which a node ends. Nobody replaces the agent that hosts it: waiting long is no use.
_FENCE_TIMEOUT = 30.0

#: Keys of --rdzv-conf, and the field of the plan that each sets.
_CONF: Mapping[str, str] = {
    "join_timeout": "join_timeout",
    "timeout": "join_timeout",
    "last_call_timeout": "last_call",
    "node_lease": "node_lease",
    "fence_timeout": "fence_timeout",
}

_RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the agents of a run meet: `may_host` says whether this one may open the port itself."""

    host: str
    port: int
    may_host: bool = True


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One agent of a run.

    Attributes:
        plan: of the run, the same on every node.
        meeting: None for a node by itself.
        node: slot, or -1 for any.
        local_addr: address under which others reach this node; "" finds it out.
        log_dir: where a folder for the logs is made; "" is a temporary one.
        streams, prefix: of the console and the files.
    """

    plan: Plan
    meeting: Meeting | None
    node: int
    local_addr: str
    log_dir: str
    streams: Streams
    prefix: str


def read_options(args: argparse.Namespace, env: Mapping[str, str]) -> RunOptions:
    """Return what the flags say; raises `UsageError` naming the flag, the value and what is allowed."""
    for flag, allowed in CHOICES.items():
        _require_choice(flag, getattr(args, flag[2:].replace("-", "_")), allowed)
    low, high = parse_nnodes(args.nnodes)
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts}: not allowed; expected 0 or more")
    static = args.rdzv_backend == "static" and high > 1
    return RunOptions(
        plan=_plan(args, env, low, high),
        meeting=_meeting(args, high),
        node=_slot(args.node_rank, high) if static else -1,
        local_addr=args.local_addr or "",
        log_dir=args.log_dir or "",
        streams=_streams(args),
        prefix=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or DEFAULT_PREFIX,
    )


def _require_choice(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{flag} {value}: not allowed; expected {', '.join(allowed)}")


def _plan(args: argparse.Namespace, env: Mapping[str, str], low: int, high: int) -> Plan:
    entry, entrypoint, script_args = _entry(args, env)
    limits = parse_rdzv_conf(args.rdzv_conf)
    return Plan(
        name=args.rdzv_id,
        role=args.role,
        min_nodes=low,
        max_nodes=high,
        nproc_per_node=workers_per_node(args.nproc_per_node, env),
        entry=entry,
        entrypoint=entrypoint,
        args=script_args,
        max_restarts=args.max_restarts,
        node_replacements=0,  # by hand there is no supervisor that could
        stop_grace=_shutdown_timeout(args.shutdown_timeout, env),
        join_timeout=limits.get("join_timeout", Plan.join_timeout),
        last_call=limits.get("last_call", Plan.last_call),
        node_lease=limits.get("node_lease", Plan.node_lease),
        fence_timeout=limits.get("fence_timeout", _FENCE_TIMEOUT),
    )


def _entry(args: argparse.Namespace, env: Mapping[str, str]) -> tuple[Entry, str, tuple[str, ...]]:
    script_args = tuple(args.training_script_args)
    if args.run_path:
        return (
            Entry.COMMAND,
            env.get("PYTHON_EXEC") or sys.executable,
            ("-u", "-c", _RUN_PATH, args.training_script, *script_args),
        )
    if args.no_python and args.module:
        raise UsageError("--no-python and --module: only one of them is allowed")
    if args.no_python:
        return Entry.COMMAND, args.training_script, script_args
    return Entry.MODULE if args.module else Entry.SCRIPT, args.training_script, script_args


def _shutdown_timeout(given: float | None, env: Mapping[str, str]) -> float:
    if given is None:
        text = env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")
        given = _number(text, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT") if text else _SHUTDOWN_TIMEOUT
    if given < 0:
        raise UsageError(f"--shutdown-timeout {given:g}: not allowed; expected 0 or more seconds")
    return given


def _slot(node_rank: int, high: int) -> int:
    if not 0 <= node_rank < high:
        raise UsageError(f"--node-rank {node_rank}: not allowed; expected 0 to {high - 1}")
    return node_rank


def _meeting(args: argparse.Namespace, high: int) -> Meeting | None:
    if args.standalone:
        if high > 1:
            raise UsageError(f"--standalone with --nnodes {args.nnodes}: one node by itself is 1:1; name an --rdzv-endpoint")
        return None
    static = args.rdzv_backend == "static"
    if args.rdzv_endpoint:
        host, port = _address(args.rdzv_endpoint, _STATIC_PORT if static else _C10D_PORT)
        return Meeting(host=host, port=port, may_host=not static or args.node_rank == 0)
    if high == 1:
        return None
    if static:
        port = args.master_port or _STATIC_PORT
        return Meeting(host=args.master_addr, port=port, may_host=args.node_rank == 0)
    raise UsageError(f"--rdzv-endpoint: is needed for --nnodes {args.nnodes}; expected HOST:PORT, the same on every node")


def _address(text: str, default_port: int) -> tuple[str, int]:
    bare = ":" not in text or text.endswith("]")
    try:
        host, port = split_address(f"{text}:{default_port}" if bare else text)
    except ValueError:
        raise UsageError(f"--rdzv-endpoint {text}: not allowed; expected HOST:PORT") from None
    if not host or not 0 < port < 65536:
        raise UsageError(f"--rdzv-endpoint {text}: not allowed; expected HOST:PORT with a port from 1 to 65535")
    return host, port


def parse_nnodes(text: str) -> tuple[int, int]:
    """Return the bounds in `N` or `MIN:MAX`; raises `UsageError`."""
    low, _, high = text.partition(":")
    if not low.isdecimal() or not (high or low).isdecimal() or not 0 < int(low) <= int(high or low):
        raise UsageError(f"--nnodes {text}: not allowed; expected N or MIN:MAX with 1 <= MIN <= MAX")
    return int(low), int(high or low)


def parse_rdzv_conf(text: str) -> dict[str, float]:
    """Return the limits in `KEY=SECONDS,...` by the name of the plan's field; raises `UsageError`."""
    limits: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in _CONF:
            raise UsageError(f"--rdzv-conf {key}: not allowed; expected one of {', '.join(sorted(_CONF))}")
        limits[_CONF[key]] = _number(value, f"--rdzv-conf {key}")
    return limits


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"{where} {text!r}: not allowed; expected seconds, 0 or more") from None
    return number


def _streams(args: argparse.Namespace) -> Streams:
    redirects, redirects_of = parse_std(args.redirects, "--redirects")
    tee, tee_of = parse_std(args.tee, "--tee")
    return Streams(
        redirects=redirects, redirects_of=redirects_of, tee=tee, tee_of=tee_of, console=_console(args.local_ranks_filter)
    )


def _console(text: str) -> frozenset[int] | None:
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--local-ranks-filter {text}: not allowed; expected local ranks such as 0,1")
    return frozenset(map(int, parts))


def parse_std(text: str, flag: str) -> tuple[int, dict[int, int]]:
    """Return the streams for every rank, or by local rank, in `0|1|2|3` or `RANK:STD,...`; raises `UsageError`."""
    if text in ("0", "1", "2", "3"):
        return int(text), {}
    by_rank = {}
    for item in text.split(","):
        rank, _, std = item.strip().partition(":")
        if not rank.isdecimal() or std not in ("0", "1", "2", "3"):
            raise UsageError(f"{flag} {text}: not allowed; expected 0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:N,...")
        by_rank[int(rank)] = int(std)
    return 0, by_rank
