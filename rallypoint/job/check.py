"""A job that only checks its nodes: made from a training job, or from a number of nodes. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from rallypoint.job.errors import JobError, Problem, show

__all__ = ["as_check", "bare_check"]

#: Maximum characters of a name (job/rules.py).
_LONGEST = 52
_SUFFIX = "-check"


def as_check(
    document: Mapping[str, Any], *, level: int, all_pairs: bool = False, timeout: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """Return the document of a job that checks the nodes of the job that `document` describes, and ends.

    The nodes are unchanged: their number, resources, image, environment, and a custom test program. Faulty nodes are the result
    of the check, so no node is replaced and no attempt is retried.

    Args:
        document: of a job file.
        level: 1 in pairs, 2 and then all of them together.
        all_pairs: each node with each other.
        timeout: how long a round may take, as a duration; None leaves what the document says.
        name: of the new job; by default that of the old one with `-check` behind it.

    Raises:
        JobError: a block of policies is none.
    """
    made = copy.deepcopy(dict(document))
    made["name"] = name or f"{str(made.get('name', 'job'))[: _LONGEST - len(_SUFFIX)].rstrip('-')}{_SUFFIX}"
    health = {**_block(made, "health"), "precheck": level, "precheck_only": True, "precheck_all_pairs": all_pairs}
    made["health"] = health if timeout is None else {**health, "precheck_timeout": timeout}
    made["fault_tolerance"] = {**_block(made, "fault_tolerance"), "retry_limit": 0}
    made["recovery"] = {**_block(made, "recovery"), "node_replacements": 0}
    return made


def bare_check(nodes: str, nproc_per_node: int, *, name: str) -> dict[str, Any]:
    """Return the document of a job of so many nodes that runs nothing, for `as_check`."""
    # Never started: the job is over when its nodes are checked.
    return {"name": name, "entrypoint": ["true"], "nodes": nodes, "nproc_per_node": nproc_per_node}


def _block(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key, {})
    if isinstance(found, Mapping):
        return dict(found)
    raise JobError([Problem(path=key, text=f"{show(found)} is not allowed; expected a mapping")])
