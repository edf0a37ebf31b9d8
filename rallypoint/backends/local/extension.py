"""Whether a job's failover extension can be loaded here: tried in a process, as the agents will do it."""

from __future__ import annotations

import os
import subprocess
import sys

from rallypoint.backends.contract import SubmitError
from rallypoint.wire.plan import Entry, Plan

__all__ = ["check_extension"]

_FIELD = "fault_tolerance.dynamic_failover_extension"

#: Seconds for everything that its module imports.
_WITHIN = 60.0


def check_extension(plan: Plan, *, within: float = _WITHIN) -> None:
    """Raise `SubmitError` when the plan names an extension that cannot be loaded within so many seconds."""
    if not plan.failover_extension:
        return
    beside = ["--beside", plan.entrypoint] if plan.entry is Entry.SCRIPT else []
    command = [sys.executable, "-m", "rallypoint.agent.node.extension", *beside, plan.failover_extension]
    # It is only looked at: nothing may be left beside the user's files.
    variables = {**os.environ, **plan.env, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        tried = subprocess.run(
            command,
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
        raise SubmitError(f"{_FIELD}: {plan.failover_extension}: it was not loaded within {within:g} s") from error
    if tried.returncode != 0:
        said = [line.strip() for line in tried.stderr.splitlines() if line.strip()]
        why = next((line for line in said if line.startswith(_FIELD)), None)
        ended = f"its process ended with exit code {tried.returncode}: {said[-1] if said else 'it said nothing'}"
        raise SubmitError(why or f"{_FIELD}: {plan.failover_extension}: {ended}")
