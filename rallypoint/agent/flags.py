"""torchrun's command line, read into a plan. What is accepted has its effect; the rest is refused with the reason.

Both spellings of a flag (`--nproc-per-node`, `--nproc_per_node`) and the `PET_*` variables work as they do in torchrun.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["CHOICES", "REFUSED", "add_run_flags"]

#: Flags with a few values. Checked when they are read, since their PET_ variables may say anything.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "--rdzv-backend": ("c10d", "rallypoint", "static"),
    "--start-method": ("spawn", "fork", "forkserver"),
    "--event-log-handler": ("null",),
}

#: Flags of torchrun that are refused, and why.
REFUSED: Mapping[str, str] = {
    "--duplicate-stdout-filters": "filter the per-rank files of --log-dir instead",
    "--duplicate-stderr-filters": "filter the per-rank files of --log-dir instead",
    "--logs-specs": "per-rank files are laid out by Rallypoint; see --log-dir, --redirects and --tee",
    "--numa-binding": "workers are not bound to CPUs; start the agent under numactl",
    "--signals-to-handle": "SIGTERM, SIGINT, SIGHUP and SIGQUIT end the agent; no other signal is passed on",
    "--virtual-local-rank": "LOCAL_RANK is always the number of the worker on its node",
}


class _Refused(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        name = self.option_strings[0]
        parser.error(f"{option_string}: not supported: {REFUSED[name]}")


def add_run_flags(parser: argparse.ArgumentParser, env: Mapping[str, str] = os.environ) -> None:
    """Add torchrun's flags; the values of PET_* variables in `env` are their defaults."""
    _add_nodes(_Flags(parser.add_argument_group("nodes and workers"), env))
    _add_rendezvous(_Flags(parser.add_argument_group("rendezvous"), env))
    _add_launch(_Flags(parser.add_argument_group("what is run"), env))
    _add_logs(_Flags(parser.add_argument_group("logs"), env))
    for name in REFUSED:
        parser.add_argument(*_spellings(name), action=_Refused, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("training_script", help="script, module (-m) or program (--no-python) that each worker runs")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")


class _Flags:
    """Adds flags with torchrun's spellings and environment variables."""

    def __init__(self, group: Any, env: Mapping[str, str]) -> None:
        self._group, self._env = group, env

    def value(self, *names: str, default: Any, text: str, **kwargs: Any) -> None:
        """Add a flag with a value."""
        default = self._env.get(_variable(names), default)
        self._group.add_argument(*_spellings(*names), default=default, help=text, **kwargs)

    def switch(self, *names: str, text: str) -> None:
        """Add a flag without a value; its variable switches it on with any number but 0."""
        on = self._env.get(_variable(names), "0") not in ("", "0")
        self._group.add_argument(*_spellings(*names), action="store_true", default=on, help=text)


def _spellings(*names: str) -> list[str]:
    return list(dict.fromkeys(spelled for name in names for spelled in (name, _underscored(name))))


def _underscored(name: str) -> str:
    return "--" + name[2:].replace("-", "_") if name.startswith("--") else name


def _variable(names: tuple[str, ...]) -> str:
    return "PET_" + max(names, key=len)[2:].replace("-", "_").upper()


def _add_nodes(flags: _Flags) -> None:
    flags.value("--nnodes", default="1:1", metavar="N|MIN:MAX", text="number of nodes (default 1:1)")
    flags.value(
        "--nproc-per-node", default="1", metavar="N|cpu|gpu|auto", text="workers per node; gpu and auto count without torch"
    )
    flags.value(
        "--max-restarts", default=0, type=int, metavar="N", text="how often workers are restarted after a fault (default 0)"
    )
    flags.value("--node-rank", default=0, type=int, metavar="N", text="slot of this node, with --rdzv-backend static")
    flags.value("--master-addr", default="127.0.0.1", metavar="HOST", text="where node 0 is, with --rdzv-backend static")
    flags.value("--master-port", default=None, type=int, metavar="PORT", text="port on node 0, static only (default 29500)")
    flags.value("--local-addr", default=None, metavar="HOST", text="address under which the other nodes reach this one")


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
        text="seconds: join_timeout (or timeout), last_call_timeout, node_lease, fence_timeout",
    )
    flags.switch("--standalone", text="one node by itself: no endpoint, port or id is needed")


def _add_launch(flags: _Flags) -> None:
    flags.value("--role", default="default", metavar="NAME", text="name of the workers' role")
    flags.switch("-m", "--module", text="the script is a Python module, as in python -m")
    flags.switch("--no-python", text="the script is any program")
    flags.switch("--run-path", text="run the script by runpy.run_path")
    flags.value(
        "--start-method",
        default="spawn",
        metavar="spawn|fork|forkserver",
        text="as in torchrun it only matters for Python functions; scripts are always started as programs",
    )
    flags.value(
        "--monitor-interval",
        default=0.1,
        type=float,
        metavar="S",
        text="accepted; the end of a worker is seen at once, not by polling",
    )
    flags.value("--event-log-handler", default="null", metavar="null", text="events go to the log; there is no other handler")
    flags.value(
        "--shutdown-timeout",
        default=None,
        type=float,
        metavar="S",
        text="SIGTERM to SIGKILL when workers are stopped (default 30)",
    )


def _add_logs(flags: _Flags) -> None:
    flags.value("--log-dir", default=None, metavar="DIR", text="where a folder with the workers' logs is made")
    form = "0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:N,..."
    flags.value("-r", "--redirects", default="0", metavar="STD", text=f"streams that go to files: {form}")
    flags.value("-t", "--tee", default="0", metavar="STD", text=f"streams that go to files and to the console: {form}")
    flags.value("--local-ranks-filter", default="", metavar="N,...", text="local ranks that may write to the console")
