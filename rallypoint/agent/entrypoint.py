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
    if not name:
        raise ConfigError("the name of the script is empty; expected a script, -m with a module or --no-python with a program")
    if plan.entry is Entry.SCRIPT and not Path(name).exists():
        raise ConfigError(f"script {name}: file not found (current folder: {Path.cwd()})")
    if plan.entry is Entry.SCRIPT and not os.access(name, os.R_OK):
        raise ConfigError(f"script {name}: no permission to read the file")
    if plan.entry is Entry.SCRIPT and Path(name).is_dir() and not Path(name, "__main__.py").exists():
        raise ConfigError(f"script {name}: is a folder without __main__.py; expected a file")
    other_python = os.environ.get("PYTHON_EXEC", sys.executable) != sys.executable
    if plan.entry is Entry.MODULE and not other_python:
        _require_module(name)
    if plan.entry is Entry.COMMAND and shutil.which(name) is None:
        there = "is not an executable file" if Path(name).exists() else "was not found, neither here nor on PATH"
        raise ConfigError(f"program {name}: {there}")


def _require_module(name: str) -> None:
    """Raise `ConfigError` for a module that is not there; what lies in a package is found only by importing that."""
    top, _, below = name.partition(".")
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    except (ImportError, ValueError):
        return  # it is there and unusual: the worker will report it
    if spec is None:
        raise ConfigError(f"module {name}: not found in {Path.cwd()}, on PYTHONPATH or in the installed packages")
    if below and spec.submodule_search_locations is None and top not in sys.modules:
        hint = f"expected -m {top}, or the script {name} without -m" if below == "py" else f"expected -m {top}"
        raise ConfigError(f"module {name}: {top} is a module, not a package; {hint}")
