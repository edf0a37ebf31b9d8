"""The tuned batch: what the nodes of a world measure, and what the coordinator makes of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NodeTuning", "Seen", "Tuned", "Tuning"]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What workers are to use: samples that each takes per step. Of two the higher `version` is newer."""

    version: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """At a batch of so many samples the worker with the most used so many bytes."""

    batch: int
    memory: int


@dataclass(frozen=True, kw_only=True)
class NodeTuning:
    """What one node measures.

    Attributes:
        version: of the `Tuned` that it has heard of; 0 before the first.
        batch: that its workers use; 0 while no script has said so.
        memory: bytes, the most that a worker of it used with that batch; 0 until enough steps were taken.
        limit: bytes that a worker of it may use.
    """

    version: int = 0
    batch: int = 0
    memory: int = 0
    limit: int = 0


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How far it is.

    Attributes:
        version, batch: as in `Tuned`; version 0 is what the script began with.
        seen: what was measured, the oldest first.
        limit: bytes that a worker may use on every node.
        ceiling: no batch that is larger is tried: memory ran out beyond it. 0 while none is known.
        settled: why the batch stays as it is, for people; "" while it may still change.
    """

    version: int = 0
    batch: int = 0
    seen: tuple[Seen, ...] = ()
    limit: int = 0
    ceiling: int = 0
    settled: str = ""
