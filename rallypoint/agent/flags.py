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
from rallypoint.agent.command_line import RunParser
from rallypoint.agent.dlrover_flags import CHOICES as DLROVER_CHOICES
from rallypoint.agent.dlrover_flags import NAMES, add_dlrover_flags
from rallypoint.wire.arguments import WORDS
from rallypoint.wire.plan import Plan

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
    **DLROVER_CHOICES,
}

#: Values that another launcher takes, and why they are refused; what stands in CHOICES is told beside it.
WHY: Mapping[str, Mapping[str, str]] = {
    "--rdzv-backend": {
        "etcd": "no server is needed: name an --rdzv-endpoint HOST:PORT on one of the nodes",
        "etcd-v2": "no server is needed: name an --rdzv-endpoint HOST:PORT on one of the nodes",
    },
    "--event-log-handler": {"console": "the agent tells its events on stderr anyway; see RALLYPOINT_LOG_LEVEL"},
    "--accelerator": {
        "mthreads.com/gpu": "devices of Moore Threads are not counted or told apart here; set --nproc-per-node",
    },
}

#: Flags that are refused, and why.
REFUSED: Mapping[str, str] = {
    "--logs-specs": "per-rank files are laid out by Rallypoint; see --log-dir, --redirects and --tee",
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
    parser.usage = "%(prog)s [flags] training_script [arguments of the script]"
    for title, add in (
        ("nodes and workers", _add_nodes),
        ("rendezvous", _add_rendezvous),
        ("what is run", _add_launch),
        ("what follows a fault", _add_recovery),
        ("devices", _add_devices),
        ("logs", _add_logs),
        ("of dlrover-run and its master", add_dlrover_flags),
    ):
        add(_Flags(parser.add_argument_group(title), env, parser.variables))
    for name in REFUSED:
        parser.add_argument(*_spellings(name), action=_Refused, help=argparse.SUPPRESS)
    # Both are filled in by `RunParser`, which splits the line before argparse reads it.
    parser.add_argument("training_script", nargs="?", help="script, module (-m) or program (--no-python) that each worker runs")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")


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
            return "", WrongVariable(problem=f"{both}, which are names of one flag: not allowed; expected one value")
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
    flags.value("--nnodes", default="1:1", metavar="N|MIN:MAX", text="number of nodes (default 1:1)")
    flags.value(
        "--nproc-per-node", default="1", metavar="N|cpu|gpu|auto", text="workers per node; gpu and auto count without torch"
    )
    flags.value(
        "--max-restarts",
        default=3,
        read=int,
        metavar="N",
        text="how often workers are restarted after a fault (default 3; torchrun: 0)",
    )
    flags.value("--node-unit", default=1, read=int, metavar="N", text="the world is a multiple of so many nodes (default 1)")
    flags.value("--node-rank", default=0, read=int, metavar="N", text="slot of this node, with --rdzv-backend static")
    flags.value("--master-addr", default="127.0.0.1", metavar="HOST", text="where node 0 is, with --rdzv-backend static")
    flags.value("--master-port", default=None, read=int, metavar="PORT", text="port on node 0, static only (default 29500)")
    flags.value("--local-addr", default=None, metavar="HOST", text="address under which the other nodes reach this one")
    flags.switch("--auto-config", text="nodes from NODE_NUM where that is set, and one worker per GPU where there are any")


def _add_rendezvous(flags: _Flags) -> None:
    flags.value(
        "--rdzv-backend",
        default="static",
        metavar="c10d|rallypoint|static",
        text="c10d and rallypoint are the same: our own coordinator; static gives each node the slot --node-rank",
    )
    flags.value("--rdzv-endpoint", default="", metavar="HOST:PORT", text="coordinator; the agent that can open it hosts it")
    flags.value("--rdzv-id", default=NO_ID, metavar="ID", text="name of the run, the same on all nodes")
    flags.value(
        "--rdzv-conf",
        default="",
        metavar="KEY=VALUE,...",
        text="join_timeout (or timeout), last_call_timeout, node_lease, fence_timeout in seconds, node_unit, is_host, "
        "insecure_token; torchrun's other keys are accepted with a warning",
    )
    flags.value(
        "--secret-file",
        default="",
        metavar="FILE",
        text="file with the run's secret, the same on all nodes (default: RALLYPOINT_SECRET)",
    )
    flags.value(
        "--tls",
        default="",
        metavar="DIR",
        text="mutual TLS with ca.crt, tls.crt and tls.key in this folder (docs/guides/tls.md)",
    )
    flags.switch("--insecure-token", text="run without a secret: who knows the run id can join")
    flags.switch("--standalone", text="one node by itself: no endpoint, port or id is needed")


def _add_launch(flags: _Flags) -> None:
    flags.value("--role", default="default", metavar="NAME", text="name of the workers' role")
    flags.switch("-m", "--module", text="the script is a Python module, as in python -m")
    flags.switch("--no-python", text="the script is any program")
    flags.switch("--run-path", text="run the script by runpy.run_path")
    flags.value(
        "--start-method",
        default=None,
        metavar="spawn|fork|forkserver",
        text="fork takes workers from a warm process, the others start each as a program (default: fork where it can be)",
    )
    flags.value(
        "--standby", default=None, read=int, metavar="N", text="warm workers that wait for a fault (default one per worker)"
    )
    flags.value("--preload", default="", metavar="MODULE,...", text="what they import beside torch and what the script does")
    flags.value(
        "--monitor-interval",
        default=1.0,
        read=float,
        metavar="S",
        text="period of health reports (default 1; torchrun: 0.1); the end of a worker is seen at once, not by polling",
    )
    flags.value("--event-log-handler", default="null", metavar="null", text="events go to the log; there is no other handler")
    flags.value(
        "--shutdown-timeout",
        default=None,
        read=float,
        metavar="S",
        text="SIGTERM to SIGKILL when workers are stopped (default 30)",
    )
    flags.value(
        "--exit-grace",
        default=Plan.exit_grace,
        read=float,
        metavar="S",
        text="time for a finished worker to end; then it is killed and its own status counts (default 10; 0 is off)",
    )
    flags.value(
        "--signals-to-handle",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,...",
        text="signals on which the agent stops its workers and leaves; others than these four reach the workers as they are",
    )


def _add_recovery(flags: _Flags) -> None:
    flags.switch(
        "--save-at-breakpoint", text="persist the last snapshot in memory when a worker died (docs/guides/snapshots.md)"
    )
    flags.value(
        "--training-elastic-mode",
        default="base",
        metavar="base|ucp",
        text="ucp: the next round waits until the last snapshot is in storage and proven, but not for ever",
    )
    flags.value(
        "--replica-every",
        default=0,
        read=int,
        metavar="STEPS",
        text="keep snapshots of steps that are a multiple of it in another node's memory, too; 0 keeps none",
    )
    flags.value(
        "--replica-limit",
        default=0,
        read=int,
        metavar="BYTES",
        text="bytes that a node keeps of other nodes' snapshots at the most",
    )
    flags.value(
        "--hang-detection",
        default="1",
        metavar="0|1|2",
        text="what is done about a hang: 0 it is logged, 1 it is told, 2 the workers are restarted (default 1)",
    )
    flags.value(
        "--hang-downtime",
        default=30.0,
        read=float,
        metavar="MINUTES",
        text="so long without a sign of life of any rank is a hang; 0 is off (default 30)",
    )
    flags.value(
        "--dynamic-failover-extension",
        default="",
        metavar="MODULE::CLASS",
        text="is asked about each failure",
    )


def _add_devices(flags: _Flags) -> None:
    flags.value(
        "--numa-binding",
        default=None,
        metavar="node|socket|exclusive|core-complex",
        text="bind each worker to the CPUs near its GPU; without GPUs, to the NUMA nodes in turn",
    )
    flags.switch("--numa-affinity", text="dlrover-run's name for --numa-binding node")
    flags.switch("--virtual-local-rank", text="LOCAL_RANK is 0 in each worker, which sees its own GPU alone")
    flags.value(
        "--accelerator", default=NVIDIA, metavar="NAME", text="what devices there are: nvidia.com/gpu, ascend-npu or cpu"
    )
    flags.value(
        "--precheck",
        default="0",
        metavar="0|1|2",
        text="nodes are checked before they train: 0 not at all, 1 in pairs, 2 and then all together",
    )
    flags.switch("--network-check", text="the same as --precheck 1")
    flags.switch("--comm-perf-test", text="the same as --precheck 2")
    flags.switch("--exclude-straggler", text="a node that is slow in the check leaves, as one at fault does")


def _add_logs(flags: _Flags) -> None:
    flags.value("--log-dir", default=None, metavar="DIR", text="where a folder with the workers' logs is made")
    form = "0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:N,..."
    flags.value("-r", "--redirects", default="0", metavar="STD", text=f"streams that go to files: {form}")
    flags.value("-t", "--tee", default="0", metavar="STD", text=f"streams that go to files and to the console: {form}")
    flags.value("--local-ranks-filter", default="", metavar="N,...", text="local ranks that may write to the console")
    for stream in ("stdout", "stderr"):
        flags.value(
            f"--duplicate-{stream}-filters",
            default=[],
            read=_items,
            metavar="TEXT,...",
            text=f"lines of teed {stream} with one of these texts go to filtered_{stream}.log, too",
        )
