"""torchrun's command line, and dlrover-run's, as a parser. What is accepted has its effect; the rest is refused with a reason.

Both spellings of a flag (`--nproc-per-node`, `--nproc_per_node`), its unique beginnings and the `PET_*` variables work as they
do in torchrun; `command_line` splits the line at the script. What the values mean is in `options`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rallypoint.agent.accelerators import ASCEND, CPU, NVIDIA
from rallypoint.agent.argument_flags import CHOICES as ARGUMENT_CHOICES
from rallypoint.agent.argument_flags import NAMES, add_argument_flags
from rallypoint.agent.command_line import RunParser
from rallypoint.usage import COMPATIBILITY_OPTIONS, HelpFormat
from rallypoint.wire.arguments import WORDS
from rallypoint.wire.plan import WorkerSettings

__all__ = ["CHOICES", "NO_ID", "OURS", "REFUSED", "WHY", "WrongVariable", "add_run_flags"]

#: The id of a run that was given none, as torchrun has it.
NO_ID = "none"

#: Flags with a few values. Checked when they are read, since their PET_ variables may say anything.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "--rdzv-backend": ("c10d", "rallypoint", "static"),
    "--start-method": ("spawn", "fork", "forkserver"),
    "--event-log-handler": ("null",),
    "--numa-binding": ("node", "socket", "exclusive", "core-complex"),
    "--accelerator": (NVIDIA, ASCEND, CPU),
    "--precheck": ("0", "1", "2"),
    "--hang-detection": ("0", "1", "2"),
    "--training-elastic-mode": ("base", "ucp"),
    **ARGUMENT_CHOICES,
}

#: Values that another launcher takes, and why they are refused; what stands in CHOICES is told beside it.
WHY: Mapping[str, Mapping[str, str]] = {
    "--rdzv-backend": {
        "etcd": "Rallypoint needs no etcd server; set --rdzv-endpoint HOST:PORT to one of the nodes",
        "etcd-v2": "Rallypoint needs no etcd server; set --rdzv-endpoint HOST:PORT to one of the nodes",
    },
    "--event-log-handler": {"console": "the agent logs its events to stderr; see RALLYPOINT_LOG_LEVEL"},
    "--accelerator": {
        "mthreads.com/gpu": "Rallypoint cannot count Moore Threads devices; set --nproc-per-node",
    },
}

#: Flags that are refused, and why.
REFUSED: Mapping[str, str] = {
    "--logs-specs": "Rallypoint defines the layout of the log files; see --log-dir, --redirects and --tee",
}

#: Flags that torchrun has not. A beginning that means a flag of torchrun means that here, too.
OURS = frozenset(
    {
        *("accelerator", "auto_config", "node_unit", "numa_affinity", "precheck", "preload", "standby"),
        *("save_at_breakpoint", "training_elastic_mode", "replica_every", "replica_limit"),
        *("network_check", "comm_perf_test", "exclude_straggler"),
        *("dynamic_failover_extension", "exit_grace", "hang_detection", "hang_downtime"),
        *("secret_file", "insecure_token", "tls"),
        *NAMES,
    }
)


@dataclass(frozen=True, kw_only=True)
class WrongVariable:
    """The default of a flag whose environment variable has a value that is not allowed.

    It is an error of `read_options`, not of the parser: an agent in a pod builds the same parser and does not read it.

    Attributes:
        problem: the variable, its value and what is allowed.
    """

    problem: str


class _Refused(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        name = self.option_strings[0]
        parser.error(f"{option_string}: not supported: {REFUSED[name]}")


def add_run_flags(parser: RunParser, env: Mapping[str, str] = os.environ) -> None:
    """Add all flags; the values of PET_* variables in `env` are their defaults."""
    parser.takes_script, parser.extra_flags = True, OURS
    parser.formatter_class = HelpFormat
    parser.epilog = "You can also write each option with underscores, such as --max_restarts for --max-restarts."
    parser.usage = "%(prog)s [options] training_script [arguments of the script]"
    for title, add in (
        ("common options (nodes and workers)", _add_nodes),
        ("common options (rendezvous)", _add_rendezvous),
        ("common options (script)", _add_script),
        ("common options (logs)", _add_logs),
        ("advanced options (recovery)", _add_recovery),
        ("advanced options (worker processes)", _add_processes),
        ("advanced options (devices)", _add_devices),
        (COMPATIBILITY_OPTIONS, add_argument_flags),
    ):
        add(_Flags(parser.add_argument_group(title), env, parser.variables))
    for name in REFUSED:
        parser.add_argument(*_spellings(name), action=_Refused, help=argparse.SUPPRESS)
    # Both are filled in by `RunParser`, which splits the line before argparse reads it.
    parser.add_argument(
        "training_script", nargs="?", help="training script to run; with -m a Python module, with --no-python a program"
    )
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="arguments of the training script")


class _Flags:
    """Adds flags with torchrun's spellings and environment variables."""

    def __init__(self, group: Any, env: Mapping[str, str], variables: dict[str, str]) -> None:
        self._group, self._env, self._variables = group, env, variables

    def value(self, *names: str, default: Any, text: str, read: Callable[[str], Any] | None = None, metavar: str) -> None:
        """Add a flag with a value."""
        action = self._group.add_argument(*_spellings(*names), default=default, help=text, metavar=metavar, type=read)
        variable, said = self._variable(names, action.dest)
        if isinstance(said, WrongVariable):
            action.default = said
        elif said:
            action.default = _read_variable(variable, said, read)

    def switch(self, *names: str, text: str) -> None:
        """Add a flag without a value; its variable switches it on with any number but 0."""
        action = self._group.add_argument(*_spellings(*names), action="store_true", help=text)
        variable, said = self._variable(names, action.dest)
        if isinstance(said, WrongVariable):
            action.default = said
        elif said:
            action.default = _read_switch(variable, said)

    def _variable(self, names: Sequence[str], dest: str) -> tuple[str, str | WrongVariable]:
        """Return the variable that sets a flag, and its value: torchrun's, or for an argument of DLRover's ours."""
        theirs = _variable(names)
        word = WORDS.get(theirs.removeprefix("PET_").lower())
        found = {name: self._env[name] for name in (theirs, word.variable if word else "") if self._env.get(name)}
        if not found:
            return "", ""
        if len(set(found.values())) > 1:
            both = " and ".join(f"{name} {value!r}" for name, value in found.items())
            return "", WrongVariable(problem=f"{both}: conflicting values of one flag; expected one value")
        variable, value = next(iter(found.items()))
        self._variables[dest] = variable
        return variable, value


def _read_variable(variable: str, text: str, read: Callable[[str], Any] | None) -> Any:
    try:
        return text if read is None else read(text)
    except (ValueError, argparse.ArgumentTypeError):
        kind = "a whole number" if read is int else "a number"
        return WrongVariable(problem=f"{variable} {text!r}: not allowed; expected {kind}")


def _read_switch(variable: str, text: str) -> bool | WrongVariable:
    number = {"true": "1", "false": "0"}.get(text.strip().lower(), text.strip())
    if not number.isdecimal():
        return WrongVariable(problem=f"{variable} {text!r}: not allowed; expected 0 or 1")
    return int(number) != 0


def _spellings(*names: str) -> list[str]:
    return list(dict.fromkeys(spelled for name in names for spelled in (name, _underscored(name))))


def _underscored(name: str) -> str:
    return "--" + name[2:].replace("-", "_") if name.startswith("--") else name


def _variable(names: Sequence[str]) -> str:
    return "PET_" + max(names, key=len)[2:].replace("-", "_").upper()


def _items(text: str) -> list[str]:
    """Return the items between commas; two commas in a row are one that belongs to its item."""
    return [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",")]


def _add_nodes(flags: _Flags) -> None:
    flags.value("--nnodes", default="1:1", metavar="N|MIN:MAX", text="number of nodes, or a range MIN:MAX (default: 1:1)")
    flags.value(
        "--nproc-per-node",
        default="1",
        metavar="N|cpu|gpu|auto",
        text="number of workers per node; cpu: one per CPU; gpu: one per GPU; auto: one per GPU, or per CPU without GPUs",
    )
    flags.value(
        "--max-restarts",
        default=3,
        read=int,
        metavar="N",
        text="maximum number of worker restarts after faults (default: 3; default of torchrun: 0)",
    )
    flags.value(
        "--node-unit",
        default=1,
        read=int,
        metavar="N",
        text="the number of training nodes is always a multiple of this number (default: 1)",
    )
    flags.value("--node-rank", default=0, read=int, metavar="N", text="rank of this node; only with --rdzv-backend static")
    flags.value("--master-addr", default="127.0.0.1", metavar="HOST", text="address of node 0; only with --rdzv-backend static")
    flags.value(
        "--master-port",
        default=None,
        read=int,
        metavar="PORT",
        text="port of the store (TCPStore) on node 0; only with --rdzv-backend static (default: 29500)",
    )
    flags.value("--local-addr", default=None, metavar="HOST", text="address at which other nodes reach this node")


def _add_rendezvous(flags: _Flags) -> None:
    flags.value(
        "--rdzv-backend",
        default="static",
        metavar="c10d|rallypoint|static",
        text="rendezvous backend: static (default), c10d or rallypoint; c10d and rallypoint are the same",
    )
    flags.value(
        "--rdzv-endpoint",
        default="",
        metavar="HOST:PORT",
        text="address of the coordinator, as HOST:PORT; the agent on HOST starts the coordinator",
    )
    flags.value("--rdzv-id", default=NO_ID, metavar="ID", text="ID of the run; set the same ID on all nodes")
    flags.value(
        "--rdzv-conf",
        default="",
        metavar="KEY=VALUE,...",
        text="rendezvous settings as KEY=VALUE pairs with commas between them, such as join_timeout=600",
    )
    flags.value(
        "--secret-file",
        default="",
        metavar="FILE",
        text="file that contains the secret of the run (default: the secret in $RALLYPOINT_SECRET)",
    )
    flags.value(
        "--tls",
        default="",
        metavar="DIR",
        text="folder with the files ca.crt, tls.crt and tls.key, with which the agents use mutual TLS",
    )
    flags.switch("--insecure-token", text="use no secret, so that any process that knows the ID of the run can join")
    flags.switch("--standalone", text="run on one node; --rdzv-endpoint, --master-port and --rdzv-id are not needed")


def _add_script(flags: _Flags) -> None:
    flags.value("--role", default="default", metavar="NAME", text="name of the role of the workers, as in torchrun")
    flags.switch("-m", "--module", text="run a Python module instead of a script, as python -m does")
    flags.switch("--no-python", text="run a program that is not a Python script")
    flags.switch("--run-path", text="run the script with the function runpy.run_path of Python")


def _add_processes(flags: _Flags) -> None:
    flags.value(
        "--start-method",
        default=None,
        metavar="spawn|fork|forkserver",
        text="fork (default): fork workers from a process that has imported torch; "
        "spawn or forkserver: start each worker as a new Python process",
    )
    flags.value(
        "--standby",
        default=None,
        read=int,
        metavar="N",
        text="number of standby processes that wait to replace a worker (default: one per worker)",
    )
    flags.value("--preload", default="", metavar="MODULE,...", text="Python modules that standby processes import in advance")
    flags.value(
        "--monitor-interval",
        default=1.0,
        read=float,
        metavar="S",
        text="seconds between health reports of the agent to the coordinator (default: 1)",
    )
    flags.value(
        "--event-log-handler",
        default="null",
        metavar="null",
        text="event handler of torchrun; only the value null is supported",
    )
    flags.value(
        "--shutdown-timeout",
        default=None,
        read=float,
        metavar="S",
        text="seconds that workers have to exit after SIGTERM, before SIGKILL (default: 30)",
    )
    flags.value(
        "--exit-grace",
        default=WorkerSettings.exit_grace,
        read=float,
        metavar="S",
        text="seconds that a worker has to exit after its script ended, before SIGKILL; 0: no limit (default: 10)",
    )
    flags.value(
        "--signals-to-handle",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,...",
        text="signals on which the agent stops its workers and exits (default: SIGTERM, SIGINT, SIGHUP and SIGQUIT)",
    )


def _add_recovery(flags: _Flags) -> None:
    flags.switch("--save-at-breakpoint", text="if a worker dies, the agent writes the last in-memory snapshot to storage")
    flags.value(
        "--training-elastic-mode",
        default="base",
        metavar="base|ucp",
        text="base (default) or ucp; with ucp, the agents write the last snapshot to storage before workers restart",
    )
    flags.value(
        "--replica-every",
        default=0,
        read=int,
        metavar="STEPS",
        text="number of steps between two copies of a worker's snapshot to another node; 0 (default): no copies",
    )
    flags.value(
        "--replica-limit",
        default=0,
        read=int,
        metavar="BYTES",
        text="memory of this node, in bytes, for copies of the snapshots of other nodes",
    )
    flags.value(
        "--hang-detection",
        default="1",
        metavar="0|1|2",
        text=WORDS["hang_detection"].text,
    )
    flags.value(
        "--hang-downtime",
        default=30.0,
        read=float,
        metavar="MINUTES",
        text=WORDS["hang_downtime"].text,
    )
    flags.value(
        "--dynamic-failover-extension",
        default="",
        metavar="MODULE::CLASS",
        text=WORDS["dynamic_failover_extension"].text,
    )


def _add_devices(flags: _Flags) -> None:
    flags.value(
        "--numa-binding",
        default=None,
        metavar="node|socket|exclusive|core-complex",
        text="how to bind each worker to the CPUs near its GPU: node, socket, exclusive or core-complex",
    )
    flags.switch("--virtual-local-rank", text="set LOCAL_RANK to 0 in each worker, and show each worker only its own GPU")
    flags.value("--accelerator", default=NVIDIA, metavar="NAME", text=WORDS["accelerator"].text)
    flags.value(
        "--precheck",
        default="0",
        metavar="0|1|2",
        text=WORDS["precheck"].text,
    )
    flags.switch("--exclude-straggler", text="train without the nodes that are slow in the node check (see --precheck)")


def _add_logs(flags: _Flags) -> None:
    flags.value("--log-dir", default=None, metavar="DIR", text="folder for the log files of the workers")
    form = "0 none (default), 1 stdout, 2 stderr, 3 both"
    flags.value(
        "-r",
        "--redirects",
        default="0",
        metavar="N|LOCAL_RANK:N,...",
        text=f"which output of the workers is written to files: {form}",
    )
    flags.value(
        "-t",
        "--tee",
        default="0",
        metavar="N|LOCAL_RANK:N,...",
        text=f"which output of the workers is written to files and to the console: {form}",
    )
    flags.value(
        "--local-ranks-filter",
        default="",
        metavar="N,...",
        text="local ranks whose output is printed on the console (default: all)",
    )
    for stream in ("stdout", "stderr"):
        flags.value(
            f"--duplicate-{stream}-filters",
            default=[],
            read=_items,
            metavar="TEXT,...",
            text=f"copy the lines of {stream} that contain one of these texts to the file filtered_{stream}.log",
        )
