"""Snapshots on the command line."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ARGUMENTS", "DIFFERENCES", "RUN_SWITCHES"]

#: DLRover's arguments: the one that it follows in DLRover's document, name, metavar ("" for a switch), text of --help.
ARGUMENTS = (
    (
        "pre_check_ops",
        "training_elastic_mode",
        "base|ucp",
        "base (default) or ucp; with ucp, the agents write the last snapshot to storage before workers restart",
    ),
    (
        "exclude_straggler",
        "save_at_breakpoint",
        "",
        "if a worker dies, the agent writes the last in-memory snapshot to storage",
    ),
)

#: Where DLRover's code does something else than its document says: the argument, the document, the code.
DIFFERENCES: Mapping[int, tuple[str, str, str]] = {}

#: Switches of `rallypoint-agent run`, each with the field of the plan that it sets; those of snapshots are in `agent.flags`.
RUN_SWITCHES: Mapping[str, str] = {}
