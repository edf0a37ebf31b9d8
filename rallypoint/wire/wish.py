"""What somebody asks of all workers of a running job at their next step boundary, and what each of them answers.

A wish stands in the job's record. The coordinator passes it to the agents, those to their workers, and the answers come back
with the agents' reports into the job's status. A wish is known by its number: it may be passed on as often as need be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.line import Verb

__all__ = ["ASKED", "NodeAnswer", "RankAnswer", "Wish", "WishStatus"]

#: What can be wished; `dump` is the ladder's to ask.
ASKED = (Verb.PAUSE, Verb.RESUME, Verb.SAVE, Verb.STOP)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Number `number` of a job's wishes, from 1; it is about `attempt` alone."""

    number: int
    verb: Verb
    attempt: int


@dataclass(frozen=True, kw_only=True)
class RankAnswer:
    """One worker's answer: nothing yet, or `done` at the boundary after `step` steps, or why not (`error`)."""

    limits: ClassVar = {"step": WHOLE}

    rank: int
    done: bool = False
    step: int | None = None
    error: str = ""

    @property
    def settled(self) -> bool:
        """Nothing more is to be expected of it."""
        return self.done or bool(self.error)


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What an agent tells of wish `number`: an answer for each of its workers, in order of rank."""

    number: int
    ranks: tuple[RankAnswer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WishStatus:
    """The last wish that the coordinator knows, with the answers of all ranks of the world, in order."""

    number: int
    verb: Verb
    ranks: tuple[RankAnswer, ...] = ()

    @property
    def settled(self) -> bool:
        """Every rank of the world has answered."""
        return bool(self.ranks) and all(answer.settled for answer in self.ranks)
