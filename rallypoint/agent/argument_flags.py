"""Flags of dlrover-run and of its master that torchrun has not, where a run by hand can have them. Pure.

Each has its `PET_` variable, and as every argument of DLRover's document its `RALLYPOINT_` one, too.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeGuard

from rallypoint.agent.errors import UsageError
from rallypoint.capabilities import modules
from rallypoint.wire.arguments import WORDS
from rallypoint.wire.plan import DeviceSettings, Plan
from rallypoint.wire.pre_check import BUILT_IN_MODULE, NO_PRE_CHECK, PreCheckOp
from rallypoint.wire.sections import known_fields

__all__ = ["CHOICES", "NAMES", "Flags", "add_argument_flags", "argument_fields", "argument_notes"]

#: Flags with a few values.
CHOICES = {"--service-type": ("grpc", "http"), "--xpu-type": ("nvidia", "ascend")}

#: Switches of optional capabilities, each with the field of the plan that it sets.
_SWITCHES: Mapping[str, str] = {name: field for one in modules("arguments") for name, field in one.RUN_SWITCHES.items()}

NAMES = ("service_type", "xpu_type", "pre_check_ops", "training_port", *_SWITCHES, "relaunch_on_worker_failure")

_OPS = 'a list of (module, class, enabled), such as [("my.checks", "DiskCheck", True)]; enabled is True or False'


class Flags(Protocol):
    """Adds flags to a parser."""

    def value(self, *names: str, default: Any, text: str, read: Callable[[str], Any] | None = None, metavar: str) -> None:
        """Add a flag with a value."""

    def switch(self, *names: str, text: str) -> None:
        """Add a flag without one."""


def add_argument_flags(flags: Flags) -> None:
    """Add them."""
    flags.value(
        "--service-type",
        default=None,
        metavar="grpc|http",
        text="protocol between agent and coordinator: grpc or http (default: http)",
    )
    flags.value("--xpu-type", default=DeviceSettings.xpu_type, metavar="nvidia|ascend", text=WORDS["xpu_type"].text)
    flags.value("--pre-check-ops", default="", metavar="LIST", text=WORDS["pre_check_ops"].text)
    flags.value(
        "--training-port", default=DeviceSettings.training_port, read=int, metavar="PORT", text=WORDS["training_port"].text
    )
    for name in _SWITCHES:
        flags.switch(WORDS[name].flag, text=WORDS[name].text)
    flags.switch("--auto-config", text="set --nnodes to the value of $NODE_NUM, and start one worker per GPU")
    flags.switch("--network-check", text="same as --precheck 1")
    flags.switch("--comm-perf-test", text="same as --precheck 2")
    flags.switch("--numa-affinity", text="same as --numa-binding node")
    flags.value(
        "--relaunch-on-worker-failure",
        default=None,
        read=int,
        metavar="N",
        text="has no effect, because `rallypoint-agent run` cannot replace nodes",
    )


def argument_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the plan that they set; raises `UsageError` naming the flag, the value and what is allowed."""
    port, relaunches = args.training_port, args.relaunch_on_worker_failure
    if not 1024 <= port <= 65520:
        raise UsageError(f"--training-port {port}: not allowed; expected a port, 1024 to 65520")
    if relaunches is not None and relaunches < 1:
        raise UsageError(f"--relaunch-on-worker-failure {relaunches}: not allowed; expected a number of relaunches, 1 or more")
    return {
        "accelerator": args.accelerator,
        "service_type": args.service_type or "",
        "xpu_type": args.xpu_type,
        **known_fields(Plan, pre_check_ops=tuple(_ops(args.pre_check_ops))),
        "training_port": port,
        **{field: getattr(args, name) for name, field in _SWITCHES.items()},
    }


def argument_notes(args: argparse.Namespace) -> Iterator[str]:
    """Yield what has no effect here."""
    if args.relaunch_on_worker_failure is not None:
        told = "this command cannot replace nodes; in a job, set recovery.node_replacements"
        yield f"--relaunch-on-worker-failure {args.relaunch_on_worker_failure}: ignored: {told}"


def _ops(text: str) -> Iterator[PreCheckOp]:
    """Yield the operators, without those that find nothing. The text is a literal, and never evaluated."""
    try:
        found = ast.literal_eval(text.strip() or "[]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, (list, tuple)):
        raise UsageError(f"--pre-check-ops {text}: not allowed; expected {_OPS}")
    for entry in found:
        module, name, enabled = entry if isinstance(entry, (list, tuple)) and len(entry) == 3 else ("", "", None)
        if not _is_name(module, dotted=True) or not _is_name(name) or not isinstance(enabled, bool):
            raise UsageError(f"--pre-check-ops: {entry!r} is not allowed; expected {_OPS}")
        if (module, name) != (BUILT_IN_MODULE, NO_PRE_CHECK):
            yield PreCheckOp(module=module, name=name, enabled=enabled)


def _is_name(word: object, *, dotted: bool = False) -> TypeGuard[str]:
    pattern = r"[^\W\d]\w*(\.[^\W\d]\w*)*" if dotted else r"[^\W\d]\w*"
    return isinstance(word, str) and re.fullmatch(pattern, word) is not None
