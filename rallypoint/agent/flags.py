"""torchrun's command line, and dlrover-run's, as a parser. What is accepted has its effect; the rest is refused and told why.

Both spellings of a flag (`--nproc-per-node`, `--nproc_per_node`), its unique beginnings and the `PET_*` variables work as they
do in torchrun. What the values mean is in `options`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rallypoint.agent.accelerators import ASCEND, CPU, NVIDIA
from rallypoint.agent.dlrover_flags import CHOICES as DLROVER_CHOICES
from rallypoint.agent.dlrover_flags import NAMES, add_dlrover_flags
from rallypoint.wire.arguments import WORDS

__all__ = ["CHOICES", "OURS", "REFUSED", "WHY", "NoSwitch", "RunParser", "add_run_flags"]

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
        *("dynamic_failover_extension", "hang_detection", "hang_downtime"),
        *NAMES,
    }
)


class RunParser(argparse.ArgumentParser):
    """A parser for which flags of ours do not make the beginning of one of torchrun's ambiguous."""

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        theirs = [match for match in found if match[0].dest not in OURS]
        return theirs if len({match[0].dest for match in theirs}) == 1 else found


class NoSwitch(str):
    """A variable that says nothing that could be, and what it says. An error for those alone who run something."""

    __slots__ = ()


class _Refused(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        name = self.option_strings[0]
        parser.error(f"{option_string}: not supported: {REFUSED[name]}")


def add_run_flags(parser: argparse.ArgumentParser, env: Mapping[str, str] = os.environ) -> None:
    """Add all flags; the values of PET_* variables in `env` are their defaults."""
    _add_nodes(_Flags(parser.add_argument_group("nodes and workers"), env))
    _add_rendezvous(_Flags(parser.add_argument_group("rendezvous"), env))
    _add_launch(_Flags(parser.add_argument_group("what is run"), env))
    _add_recovery(_Flags(parser.add_argument_group("what follows a fault"), env))
    _add_devices(_Flags(parser.add_argument_group("devices"), env))
    _add_logs(_Flags(parser.add_argument_group("logs"), env))
    add_dlrover_flags(_Flags(parser.add_argument_group("of dlrover-run and its master"), env))
    for name in REFUSED:
        parser.add_argument(*_spellings(name), action=_Refused, help=argparse.SUPPRESS)
    parser.add_argument("training_script", help="script, module (-m) or program (--no-python) that each worker runs")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")


class _Flags:
    """Adds flags with torchrun's spellings and environment variables."""

    def __init__(self, group: Any, env: Mapping[str, str]) -> None:
        self._group, self._env = group, env

    def value(self, *names: str, default: Any, text: str, read: Callable[[str], Any] | None = None, metavar: str) -> None:
        """Add a flag with a value."""
        self._group.add_argument(
            *_spellings(*names),
            default=self._said(names) or default,
            help=text,
            metavar=metavar,
            **({"type": read} if read else {}),
        )

    def _said(self, names: Sequence[str]) -> str:
        """Return what the environment says of a flag, by torchrun's variable or by ours for an argument of DLRover's."""
        theirs = _variable(names)
        word = WORDS.get(theirs.removeprefix("PET_").lower())
        ours = "" if word is None else word.variable
        said = self._env.get(theirs, ""), self._env.get(ours, "") if ours else ""
        if all(said) and said[0] != said[1]:
            return NoSwitch(f"{theirs} {said[0]!r} and {ours} {said[1]!r}, which are names of one flag")
        return said[0] or said[1]

    def switch(self, *names: str, text: str) -> None:
        """Add a flag without a value; its variable switches it on with any number but 0."""
        number = {"true": "1", "false": "0"}.get(self._said(names).strip().lower(), self._said(names).strip()) or "0"
        on = int(number) != 0 if number.isdecimal() else NoSwitch(f"{_variable(names)} {number!r}")
        self._group.add_argument(*_spellings(*names), action="store_true", default=on, help=text)


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
    flags.value("--rdzv-id", default="none", metavar="ID", text="name of the run, the same on all nodes")
    flags.value(
        "--rdzv-conf",
        default="",
        metavar="KEY=VALUE,...",
        text="join_timeout (or timeout), last_call_timeout, node_lease, fence_timeout in seconds, node_unit, is_host; "
        "torchrun's other keys are accepted with a warning",
    )
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
        "--signals-to-handle",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,...",
        text="signals on which the agent stops its workers and leaves; others than these four reach the workers as they are",
    )


def _add_recovery(flags: _Flags) -> None:
    flags.switch("--save-at-breakpoint", text="persist the last snapshot in memory when a worker died (docs/snapshots.md)")
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
