"""Whether what a plan names of the user's classes can be loaded here: tried in a process, as the agents will do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from rallypoint.backends.contract import SubmitError
from rallypoint.wire.plan import Entry, Plan

__all__ = ["check_extension", "check_pre_checks"]

#: Seconds for everything that their modules import.
_WITHIN = 60.0


def check_extension(plan: Plan, *, within: float = _WITHIN) -> None:
    """Raise `SubmitError` when the plan names a failover extension that cannot be loaded within so many seconds."""
    name = plan.failover_extension
    if name:
        field = "fault_tolerance.dynamic_failover_extension"
        _try(plan, "rallypoint.agent.node.extension", name, field=field, what=f"{name}: it was", within=within)


def check_pre_checks(plan: Plan, *, within: float = _WITHIN) -> None:
    """Raise `SubmitError` when the plan names an operator that cannot be loaded in so many seconds; not for bypassed ones."""
    names = [[op.module, op.name] for op in plan.pre_check_ops if op.enabled]
    if names:
        field = "health.pre_check_ops"
        _try(plan, "rallypoint.agent.precheck.host", json.dumps(names), field=field, what="the operators were", within=within)


def _try(plan: Plan, module: str, argument: str, *, field: str, what: str, within: float) -> None:
    beside = ["--beside", plan.entrypoint] if plan.entry is Entry.SCRIPT else []
    # They are only looked at: nothing may be left beside the user's files.
    variables = {**os.environ, **plan.env, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        tried = subprocess.run(
            [sys.executable, "-m", module, *beside, argument],
            env=variables,
            cwd=plan.workdir or None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=within,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SubmitError(f"{field}: {what} not loaded within {within:g} s") from error
    if tried.returncode != 0:
        raise SubmitError(_why(tried.returncode, tried.stderr.splitlines(), field))


def _why(code: int, lines: Sequence[str], field: str) -> str:
    said = [line.strip() for line in lines if line.strip()]
    ended = f"{field}: the process that loads it exited with code {code}: {said[-1] if said else 'no output'}"
    return next((line for line in said if line.startswith(field)), ended)
