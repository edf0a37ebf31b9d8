"""What should be done. Each is safe to repeat: it names what it means, and doing it twice changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Action",
    "CreateComponents",
    "CreateCoordinator",
    "CreateNode",
    "EndServers",
    "Purge",
    "RemoveComponents",
    "RemoveCoordinator",
    "RemoveNode",
    "SuspendComponents",
]


@dataclass(frozen=True, order=True, kw_only=True)
class CreateCoordinator:
    """Start the coordinator of this term, unless it was started before."""

    attempt: int
    term: int


@dataclass(frozen=True, order=True, kw_only=True)
class CreateNode:
    """Start this incarnation of a slot's node, unless it was started before.

    `unseen` is the latest earlier incarnation whose end was not observed: it may still run; 0 if there is none.
    """

    attempt: int
    node: int
    incarnation: int
    unseen: int = 0


@dataclass(frozen=True, order=True, kw_only=True)
class RemoveCoordinator:
    """End the coordinator of this term; at once if `force`."""

    attempt: int
    term: int
    force: bool = False


@dataclass(frozen=True, order=True, kw_only=True)
class RemoveNode:
    """End this incarnation of a slot's node: gracefully, or at once if `force`."""

    attempt: int
    node: int
    incarnation: int
    force: bool = False


@dataclass(frozen=True, order=True, kw_only=True)
class EndServers:
    """Ask the servers in the pod of this node to end with exit code 0: another controller counts the pod's success."""

    attempt: int
    node: int


@dataclass(frozen=True, order=True, kw_only=True)
class CreateComponents:
    """Create the wrapped components of this attempt that do not exist yet; their own controller makes the pods."""

    attempt: int


@dataclass(frozen=True, order=True, kw_only=True)
class RemoveComponents:
    """Delete the wrapped components of every attempt; without their grace period if `force`."""

    force: bool = False


@dataclass(frozen=True, order=True, kw_only=True)
class SuspendComponents:
    """Have the controller of the wrapped components suspend them, or let them go on."""

    suspend: bool


@dataclass(frozen=True, order=True, kw_only=True)
class Purge:
    """Nothing of the job holds resources any more: remove its record and its files."""


Action = (
    CreateComponents
    | CreateCoordinator
    | CreateNode
    | EndServers
    | Purge
    | RemoveComponents
    | RemoveCoordinator
    | RemoveNode
    | SuspendComponents
)
