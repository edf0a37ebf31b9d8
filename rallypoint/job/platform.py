"""The fields `platform` and `namespace` of a job, as in DLRover's document. Pure."""

from __future__ import annotations

from rallypoint.job.errors import JobError, Problem, show
from rallypoint.job.rules import Rule
from rallypoint.job.values import RefusedError, read_text
from rallypoint.wire.arguments import PLATFORMS

__all__ = ["PLATFORM", "backend_of", "refuse_elsewhere"]


def _read(value: object) -> str:
    meant = PLATFORMS.get(read_text(value))
    if meant is None:
        raise RefusedError
    return meant


PLATFORM = Rule(
    kind=f"one of {', '.join(PLATFORMS)}",
    allowed=f"one of {', '.join(PLATFORMS)}",
    read=_read,
    schema={"enum": list(PLATFORMS)},
)


def backend_of(platform: str) -> str:
    """Return the backend that a platform means, in any of its spellings."""
    return PLATFORMS[platform]


def refuse_elsewhere(platform: str, namespace: str, *, backend: str, its_namespace: str = "") -> None:
    """Raise `JobError` if a job is submitted to another backend or namespace than its fields name.

    Args:
        platform, namespace: as the job has them, "" where it says nothing.
        backend: `local`, `kubernetes` or `ray`.
        its_namespace: where in the cluster it is submitted to.
    """
    wrong: list[Problem] = []
    if platform and backend_of(platform) != backend:
        wrong.append(
            Problem(
                path="platform",
                text=f"{show(platform)} is not allowed, because the job is submitted to backend {backend}",
            )
        )
    elif namespace and backend == "local":
        wrong.append(
            Problem(
                path="namespace",
                text=f"{show(namespace)} is not allowed, because the local backend has no namespaces",
            )
        )
    elif namespace and namespace != its_namespace:
        wrong.append(
            Problem(
                path="namespace",
                text=f"{show(namespace)} is not allowed, because the job is submitted to namespace {its_namespace}",
            )
        )
    if wrong:
        raise JobError(wrong)
