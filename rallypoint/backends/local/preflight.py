"""Whether this machine can run jobs at all, before there is one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.findings import Findings
from rallypoint.backends.local.checks import check_agent, check_writable

__all__ = ["examine"]


def examine(home: Path, agent: Callable[[], None] = check_agent) -> Findings:
    """Return what is missing here: a home that can be written, and what agents import (`agent` raises `SubmitError`).

    Writes a file and removes it again. Blocks.
    """
    problems = []
    checks: tuple[Callable[[], None], ...] = (functools.partial(check_writable, "home", home), agent)
    for check in checks:
        try:
            check()
        except SubmitError as error:
            problems.append(str(error))
    return Findings(problems=tuple(problems))
