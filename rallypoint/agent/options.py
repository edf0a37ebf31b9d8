"""What `rallypoint-agent run` was asked for: torchrun's flags, checked, as one frozen value. Pure but for counting devices."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rallypoint.agent import limits
from rallypoint.agent.accelerators import accelerator
from rallypoint.agent.argument_flags import argument_fields, argument_notes
from rallypoint.agent.devices import workers_per_node
from rallypoint.agent.errors import ConfigError, UsageError
from rallypoint.agent.flags import CHOICES, NO_ID, WHY, WrongVariable
from rallypoint.agent.rdzv_conf import RdzvConf, parse_rdzv_conf
from rallypoint.agent.signals import SIGNALS, parse_signals
from rallypoint.agent.workers.logs import STDERR, STDOUT, Streams
from rallypoint.agent.workers.tee import DEFAULT_PREFIX
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.node_range import NODE_RANGE_ALLOWED, parse_node_range
from rallypoint.wire.plan import ElasticMode, Entry, Plan, RendezvousSettings
from rallypoint.wire.python import run_code
from rallypoint.wire.sections import build, known_fields

__all__ = [
    "C10D_PORT",
    "FENCE_TIMEOUT",
    "MasterAddress",
    "Meeting",
    "RunOptions",
    "parse_nnodes",
    "read_options",
    "read_streams",
]

#: torchrun's ports: of the c10d store, and of the static rendezvous.
C10D_PORT, _STATIC_PORT = 29400, 29500

#: Seconds without the coordinator after which a node ends. Nobody replaces the agent that hosts it: waiting long is no use.
FENCE_TIMEOUT = 30.0

#: Errors begin with the flag that they are about.
_FLAG = re.compile(r"--([a-z][a-z-]*)")

_RUN_PATH = "import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the agents of a run meet: `may_host` says whether this one may open the port itself."""

    host: str
    port: int
    may_host: bool = True


@dataclass(frozen=True, kw_only=True)
class MasterAddress:
    """The address that the command line gives the workers' store, and the flag that gives its port."""

    host: str
    port: int
    flag: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a worker that name it."""
        return {"MASTER_ADDR": self.host, "MASTER_PORT": str(self.port)}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One agent of a run.

    Attributes:
        plan: of the run, the same on every node.
        meeting: None for a node by itself.
        master: None where any free port will do.
        node: slot, or -1 for any.
        local_addr: address under which others reach this node; "" finds it out.
        log_dir: where a folder for the logs is made; "" is a temporary one.
        streams, prefix: of the console and the files.
        signals: on which the agent leaves.
        secret_file: file with the run's secret; "" takes it from the environment.
        tls: folder with the run's certificates; None is without TLS.
        insecure_token: the run may do without a secret.
        notes: what was accepted and has no effect, a sentence each.
    """

    plan: Plan
    meeting: Meeting | None
    master: MasterAddress | None = None
    node: int
    local_addr: str
    log_dir: str
    streams: Streams
    prefix: str
    signals: tuple[signal.Signals, ...] = SIGNALS
    secret_file: str = ""
    tls: str | None = None
    insecure_token: bool = False
    notes: tuple[str, ...] = ()


def read_options(args: argparse.Namespace, env: Mapping[str, str]) -> RunOptions:
    """Return what the flags say; raises `UsageError` naming the flag or its variable, the value and what is allowed."""
    try:
        return _read(args, env)
    except (UsageError, ConfigError) as error:
        raise type(error)(_with_origin(str(error), args.variables)) from error.__cause__


def _with_origin(problem: str, variables: Mapping[str, str]) -> str:
    """Return the text of an error, in which a flag that an environment variable set is called by that variable's name."""
    flag = _FLAG.match(problem)
    variable = variables.get(flag[1].replace("-", "_")) if flag else None
    return problem if flag is None or variable is None else f"environment variable {variable}{problem[flag.end() :]}"


def _read(args: argparse.Namespace, env: Mapping[str, str]) -> RunOptions:
    for value in vars(args).values():
        if isinstance(value, WrongVariable):
            raise UsageError(f"environment variable {value.problem}")
    for flag, allowed in CHOICES.items():
        _require_choice(flag, getattr(args, flag[2:].replace("-", "_")), allowed)
    args = _configured(args, env) if args.auto_config else args
    conf = parse_rdzv_conf(args.rdzv_conf)
    low, high = _nodes(args)
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts}: not allowed; expected a number of restarts, 0 or more")
    static = args.rdzv_backend == "static" and high > 1
    streams, meeting = read_streams(args), _meeting(args, high, conf)
    return RunOptions(
        plan=_plan(args, env, low, high, conf),
        meeting=meeting,
        master=_master(args, high),
        node=limits.slot(args.node_rank, high) if static else -1,
        local_addr=args.local_addr or "",
        log_dir="" if args.log_dir in (None, os.devnull) else args.log_dir,
        streams=streams,
        # A folder for the logs that was asked for alone leaves the console as it is without one.
        prefix=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or ("" if _copies_all(args) else DEFAULT_PREFIX),
        signals=parse_signals(args.signals_to_handle),
        secret_file=args.secret_file,
        tls=args.tls or None,
        insecure_token=args.insecure_token or conf.insecure_token,
        notes=(*conf.notes, *_notes(args, high, streams, alone=meeting is None), *argument_notes(args)),
    )


def _require_choice(flag: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        why = WHY.get(flag, {}).get(value)
        told = f"; {why}" if why else ""
        raise UsageError(f"{flag} {value}: not allowed; expected {', '.join(allowed)}{told}")


def _configured(args: argparse.Namespace, env: Mapping[str, str]) -> argparse.Namespace:
    """Return the flags as --auto-config has them."""
    found = argparse.Namespace(**vars(args))
    if env.get("NODE_NUM"):
        found.nnodes = env["NODE_NUM"]
    if accelerator(args.accelerator).count(env):
        found.nproc_per_node = "gpu"
    return found


def _nodes(args: argparse.Namespace) -> tuple[int, int]:
    low, high = parse_nnodes(args.nnodes)
    if not args.standalone or high == 1:
        return low, high
    if low > 1:
        raise UsageError(
            f"--standalone: not allowed with --nnodes {args.nnodes}; expected --nnodes 1, or omit --standalone and set "
            "--rdzv-endpoint"
        )
    return 1, 1


def _notes(args: argparse.Namespace, high: int, streams: Streams, *, alone: bool) -> Iterator[str]:
    """Yield the flags without effect here or beside the other flags; `alone`: no other node can join."""
    if args.standalone and args.nnodes not in ("1", "1:1"):
        yield f"--nnodes {args.nnodes}: ignored; --standalone runs one node"
    if args.rdzv_backend != "static" and args.node_rank:
        yield f"--node-rank {args.node_rank}: ignored; --rdzv-backend {args.rdzv_backend} assigns the ranks"
    elif args.node_rank and high == 1:
        yield f"--node-rank {args.node_rank}: ignored; the run has one node"
    for name, texts, bit in (("stdout", streams.duplicate_out, STDOUT), ("stderr", streams.duplicate_err, STDERR)):
        if texts and not any(number & bit for number in (streams.tee, *streams.tee_of.values())):
            yield f"--duplicate-{name}-filters: ignored; --tee does not copy {name}"
    for flag, path in (("--tls", args.tls), ("--secret-file", args.secret_file)):
        if path and alone and flag[2:].replace("-", "_") not in args.variables:
            yield f"{flag} {path}: ignored; the run has one node and listens on no port for others"
    if args.numa_affinity and args.numa_binding:
        yield f"--numa-affinity: ignored; --numa-binding {args.numa_binding} is set"


def _plan(args: argparse.Namespace, env: Mapping[str, str], low: int, high: int, conf: RdzvConf) -> Plan:
    entry, entrypoint, script_args = _entry(args, env)
    bounds = conf.limits
    return build(
        Plan,
        name=_run_id(args, high),
        role=args.role,
        min_nodes=low,
        max_nodes=high,
        node_unit=limits.node_unit(conf.node_unit or args.node_unit, low, high),
        nproc_per_node=_workers(args, env),
        entry=entry,
        entrypoint=entrypoint,
        args=script_args,
        max_restarts=args.max_restarts,
        node_replacements=0,  # by hand there is no supervisor that could
        stop_grace=limits.shutdown_timeout(args.shutdown_timeout, env),
        exit_grace=limits.exit_grace(args.exit_grace),
        join_timeout=bounds.get("join_timeout", RendezvousSettings.join_timeout),
        last_call=bounds.get("last_call", RendezvousSettings.last_call),
        node_lease=bounds.get("node_lease", RendezvousSettings.node_lease),
        fence_timeout=bounds.get("fence_timeout", FENCE_TIMEOUT),
        report_interval=limits.interval(args.monitor_interval),
        **known_fields(Plan, hang_detection=int(args.hang_detection), hang_downtime=limits.hang_downtime(args.hang_downtime)),
        failover_extension=limits.extension(args.dynamic_failover_extension),
        **known_fields(Plan, check_level=limits.check_level(args), exclude_straggler=args.exclude_straggler),
        start_method=args.start_method or "",
        standbys=limits.standbys(args.standby),
        **known_fields(
            Plan,
            save_at_breakpoint=args.save_at_breakpoint,
            elastic_mode=ElasticMode(args.training_elastic_mode),
            replica_every=limits.replica_every(args),
            replica_limit=args.replica_limit,
        ),
        preload=limits.preload(args.preload),
        virtual_local_rank=args.virtual_local_rank,
        numa_binding=args.numa_binding or ("node" if args.numa_affinity else ""),
        **argument_fields(args),
    )


def _run_id(args: argparse.Namespace, high: int) -> str:
    """Return the id of the run. A node by itself without one gets a fresh one, as from torchrun: scripts name files by it."""
    alone = args.rdzv_backend == "static" and not args.rdzv_endpoint and not args.master_port and high == 1
    return str(uuid.uuid4()) if args.rdzv_id == NO_ID and (args.standalone or alone) else str(args.rdzv_id)


def _workers(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    text = args.nproc_per_node
    if args.accelerator == "cpu" and text in ("gpu", "auto"):
        if text == "gpu":
            raise UsageError("--nproc-per-node gpu: not allowed with --accelerator cpu; expected a number, cpu or auto")
        text = "cpu"
    return workers_per_node(text, env, accelerator(args.accelerator).count(env) if text in ("gpu", "auto") else None)


def _entry(args: argparse.Namespace, env: Mapping[str, str]) -> tuple[Entry, str, tuple[str, ...]]:
    script_args = tuple(args.training_script_args)
    if args.run_path:
        python = (env.get("PYTHON_EXEC") or sys.executable, "-u")
        program, *words = run_code(_RUN_PATH, args.training_script, *script_args, python=python)
        return Entry.COMMAND, program, tuple(words)
    if args.no_python and args.module:
        raise UsageError("--no-python, --module: not allowed together; expected one of them")
    if args.no_python:
        return Entry.COMMAND, args.training_script, script_args
    return Entry.MODULE if args.module else Entry.SCRIPT, args.training_script, script_args


def _meeting(args: argparse.Namespace, high: int, conf: RdzvConf) -> Meeting | None:
    if args.standalone:
        return None
    static = args.rdzv_backend == "static"
    if static and high == 1:
        return None  # the address of the command line is the store's alone
    if args.rdzv_endpoint:
        host, port = _address(args.rdzv_endpoint, _STATIC_PORT if static else C10D_PORT)
        if port == 0 and high == 1:
            return None  # torchrun's way to say: by itself, at any port
        if port == 0:
            raise UsageError(
                f"--rdzv-endpoint {args.rdzv_endpoint}: port 0 is not allowed with {high} nodes; expected a fixed port"
            )
        may_host = not static or args.node_rank == 0
        return Meeting(host=host, port=port, may_host=may_host if conf.is_host is None else conf.is_host)
    if high == 1:
        return None
    if static:
        host, port = _master_address(args)
        return Meeting(host=host, port=port, may_host=args.node_rank == 0)
    raise UsageError(f"--rdzv-endpoint: is required for --nnodes {args.nnodes}; expected HOST:PORT, the same on every node")


def _master(args: argparse.Namespace, high: int) -> MasterAddress | None:
    """Return where the static rendezvous of torchrun has its store, which scripts may know from their own arguments."""
    if args.standalone or args.rdzv_backend != "static":
        return None
    if args.rdzv_endpoint:
        flag, (host, port) = "--rdzv-endpoint", _address(args.rdzv_endpoint, _STATIC_PORT)
    elif high == 1 and args.master_port is None:
        return None
    else:
        flag, (host, port) = "--master-port", _master_address(args)
    return MasterAddress(host=host, port=port, flag=flag) if port else None


def _master_address(args: argparse.Namespace) -> tuple[str, int]:
    port = _STATIC_PORT if args.master_port is None else args.master_port
    if not 0 <= port < 65536:
        raise UsageError(f"--master-port {port}: not allowed; expected a port from 1 to 65535")
    return args.master_addr.removeprefix("[").removesuffix("]"), port


def _address(text: str, default_port: int) -> tuple[str, int]:
    bare = ":" not in text or text.endswith("]")
    try:
        host, port = split_address(f"{text}:{default_port}" if bare else text)
    except ValueError:
        raise UsageError(f"--rdzv-endpoint {text}: not allowed; expected HOST:PORT") from None
    if not host or not 0 <= port < 65536:
        raise UsageError(f"--rdzv-endpoint {text}: not allowed; expected HOST:PORT with a port from 1 to 65535")
    return host, port


def parse_nnodes(text: str) -> tuple[int, int]:
    """Return the bounds in `N` or `MIN:MAX`; raises `UsageError`."""
    try:
        nodes = parse_node_range(text)
    except ValueError:
        raise UsageError(f"--nnodes {text}: not allowed; expected {NODE_RANGE_ALLOWED}") from None
    return nodes.min, nodes.max


def read_streams(args: argparse.Namespace) -> Streams:
    """Return what --log-dir, --redirects, --tee and the filters say; raises `UsageError`.

    A --log-dir alone copies both streams there, as with dlrover-run; under torchrun it would stay empty.
    """
    redirects, redirects_of = _parse_std(args.redirects, "--redirects")
    tee, tee_of = _parse_std(args.tee, "--tee")
    if _copies_all(args):
        tee = STDOUT | STDERR
    if args.log_dir == os.devnull:  # torchrun's way to keep no file
        redirects, redirects_of, tee, tee_of = 0, {}, 0, {}
    return Streams(
        redirects=redirects,
        redirects_of=redirects_of,
        tee=tee,
        tee_of=tee_of,
        console=_console(args.local_ranks_filter),
        duplicate_out=tuple(filter(None, args.duplicate_stdout_filters)),
        duplicate_err=tuple(filter(None, args.duplicate_stderr_filters)),
    )


def _copies_all(args: argparse.Namespace) -> bool:
    """Return whether --log-dir is given, but no flag selects the streams that are written there."""
    return bool(args.log_dir) and args.log_dir != os.devnull and not args.given & {"redirects", "tee"}


def _console(text: str) -> frozenset[int] | None:
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--local-ranks-filter {text}: not allowed; expected local ranks such as 0,1")
    return frozenset(map(int, parts))


def _parse_std(text: str, flag: str) -> tuple[int, dict[int, int]]:
    """Return the streams for every rank, or by local rank, in `0|1|2|3` or `RANK:STD,...`; raises `UsageError`."""
    if text in ("0", "1", "2", "3"):
        return int(text), {}
    by_rank = {}
    for item in text.split(","):
        rank, _, std = item.strip().partition(":")
        if not rank.isdecimal() or std not in ("0", "1", "2", "3"):
            raise UsageError(
                f"{flag} {text}: not allowed; expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), "
                "or such a number for each local rank, as in 0:1,1:3"
            )
        by_rank[int(rank)] = int(std)
    return 0, by_rank
