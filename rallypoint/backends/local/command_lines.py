"""The command line and the mark of every process of a job on this machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rallypoint.backends.local.layout import JobFolder

__all__ = ["HOST", "coordinator_command", "host_command", "mark", "node_command"]

#: Where coordinator and agents of this machine meet.
HOST = "127.0.0.1"


def mark(uid: str, *parts: object) -> str:
    """Return the mark that every process of one node carries."""
    return "/".join((uid, *map(str, parts)))


def coordinator_command(
    agent: Sequence[str], job: JobFolder, *, uid: str, attempt: int, term: int, tls: bool = False
) -> tuple[str, ...]:
    """Return the command line of the coordinator of one term."""
    return (
        *agent,
        "coordinator",
        *("--plan", str(job.plan)),
        *("--uid", uid),
        *("--attempt", str(attempt)),
        *("--term", str(term)),
        *("--secret-file", str(job.secret)),
        *(("--tls", str(job.tls)) if tls else ()),
        *("--endpoint-file", str(job.endpoint)),
        *("--status-file", str(job.status)),
        *("--record-file", str(job.record)),
        *("--host", HOST),
    )


def node_command(
    agent: Sequence[str], job: JobFolder, *, attempt: int, node: int, incarnation: int, tls: bool = False
) -> tuple[str, ...]:
    """Return the command line of one incarnation of a node."""
    return (
        *agent,
        "node",
        *("--plan", str(job.plan)),
        *("--attempt", str(attempt)),
        *("--node", str(node)),
        *("--incarnation", str(incarnation)),
        *("--secret-file", str(job.secret)),
        *(("--tls", str(job.tls)) if tls else ()),
        *("--endpoint-file", str(job.endpoint)),
        *("--dir", str(job.node(node, attempt, incarnation).path)),
        *("--host", HOST),
    )


def host_command(agent: Sequence[str], job: JobFolder, *, uid: str, folder: Path) -> tuple[str, ...]:
    """Return the command line of a host of instances."""
    return (
        *agent,
        "host",
        *("--plan", str(job.plan)),
        *("--record-file", str(job.record)),
        *("--uid", uid),
        *("--dir", str(folder)),
    )
