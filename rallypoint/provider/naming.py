"""The name of a task's job: the same for all tries of a task instance, different for each task instance. Pure."""

from __future__ import annotations

import hashlib
import re

__all__ = ["NAME_LIMIT", "default_name"]

#: Longest job name; names derived from it fit into the 63 characters of Kubernetes.
NAME_LIMIT = 52

_DIGITS = 8


def default_name(*, dag_id: str, run_id: str, task_id: str, map_index: int, prefix: str = "", limit: int = NAME_LIMIT) -> str:
    """Return a DNS label for a task instance: a readable part, and a hash of its whole key.

    It has `limit` characters at the most. `prefix` takes the place of DAG and task in the part for people, for example a job
    file's own name.
    """
    key = "\0".join((dag_id, run_id, task_id, str(map_index)))
    digits = hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]
    index = f"-{map_index}" if map_index >= 0 else ""
    tail = f"{index}-{digits}"
    head = _label(prefix) or _label(f"{dag_id}-{task_id}") or "job"
    return head[: limit - len(tail)].rstrip("-") + tail


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
