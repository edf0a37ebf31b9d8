"""The check that a script, a module or a program is there, before an agent that was started by hand takes part in a run.

An agent of a supervised job does not make it: there a volume may be mounted late, and a first worker that cannot start is
judged by the table of verdicts.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from rallypoint.agent.errors import ConfigError
from rallypoint.wire.plan import Entry, Plan

__all__ = ["require_entrypoint"]


def require_entrypoint(plan: Plan) -> None:
    """Raise `ConfigError` for an entrypoint that no worker could be started with; one with a macro in it is not checked."""
    name = plan.entrypoint
    if "${" in name:
        return
    if plan.entry is Entry.SCRIPT and not Path(name).exists():
        raise ConfigError(f"script {name}: file not found (current folder: {Path.cwd()})")
    if plan.entry is Entry.SCRIPT and not os.access(name, os.R_OK):
        raise ConfigError(f"script {name}: no permission to read the file")
    other_python = os.environ.get("PYTHON_EXEC", sys.executable) != sys.executable
    if plan.entry is Entry.MODULE and not other_python and not _has_module(name.partition(".")[0]):
        raise ConfigError(f"module {name}: not found in {Path.cwd()}, on PYTHONPATH or in the installed packages")
    if plan.entry is Entry.COMMAND and shutil.which(name) is None:
        there = "is not an executable file" if Path(name).exists() else "was not found, neither here nor on PATH"
        raise ConfigError(f"program {name}: {there}")


def _has_module(name: str) -> bool:
    """Return whether a top-level module is there; what is below it is found only by importing it."""
    try:
        found = name in sys.modules or importlib.util.find_spec(name) or PathFinder.find_spec(name, [str(Path.cwd())])
    except (ImportError, ValueError):
        return True  # it is there and unusual: the worker will tell
    return bool(found)
