"""The checks, in the order in which they run, each with the seconds that it may take on a GPU and dry."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.result import Result

__all__ = ["CHECKS", "Check"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: the function `run` of a module here; `limit` seconds after its start it is ended and has failed.

    The module is imported when the check runs: half of them need no torch, which takes seconds to import.
    """

    name: str
    module: str
    limit: float
    dry_limit: float = 240.0

    def run(self, machine: Machine) -> Result:
        """Run it, here and now."""
        result: Result = importlib.import_module(f"benchmarks.gpu.checks.{self.module}").run(machine)
        return result


#: The limits on a GPU are 510 s together: nine minutes, and half a minute for the start and the end.
CHECKS = (
    Check(name="errors", module="errors", limit=15.0),
    Check(name="memory", module="memory", limit=40.0),
    Check(name="node check", module="node_check", limit=30.0),
    Check(name="snapshot", module="snapshot", limit=60.0),
    Check(name="endless kernel", module="endless_kernel", limit=40.0),
    Check(name="mismatched collective", module="mismatched_collective", limit=40.0),
    Check(name="tuned batch", module="batch", limit=60.0),
    Check(name="recovery", module="recovery", limit=225.0),
)
