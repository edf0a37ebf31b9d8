"""Whether a job's pre-check operators can be loaded here: tried in a process, as the coordinator will do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rallypoint.backends.contract import SubmitError
from rallypoint.wire.plan import Entry, Plan

__all__ = ["check_pre_checks"]

_FIELD = "health.pre_check_ops"

#: Seconds for everything that their modules import.
_WITHIN = 60.0


def check_pre_checks(plan: Plan, *, within: float = _WITHIN) -> None:
    """Raise `SubmitError` when the plan names an operator that cannot be loaded in so many seconds; not for bypassed ones."""
    names = [[op.module, op.name] for op in plan.pre_check_ops if op.enabled]
    if not names:
        return
    beside = ["--beside", plan.entrypoint] if plan.entry is Entry.SCRIPT else []
    command = [sys.executable, "-m", "rallypoint.agent.precheck.host", *beside, json.dumps(names)]
    # They are only looked at: nothing may be left beside the user's files.
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
        raise SubmitError(f"{_FIELD}: the operators were not loaded within {within:g} s") from error
    if tried.returncode != 0:
        said = [line.strip() for line in tried.stderr.splitlines() if line.strip()]
        why = next((line for line in said if line.startswith(_FIELD)), None)
        ended = (
            f"the process that loads them ended with exit code {tried.returncode}: {said[-1] if said else 'it said nothing'}"
        )
        raise SubmitError(why or f"{_FIELD}: {ended}")
