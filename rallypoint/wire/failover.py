"""What a job's own failover extension is told of a failure, and its four answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from rallypoint.wire.codec import dumps
from rallypoint.wire.incident import Culprit

__all__ = ["Failover", "Failure"]


class Failover(str, enum.Enum):
    """What an extension wants to be done about a failure."""

    NORMAL = "normal"  #: what the rules and the table say
    NODE = "node"  #: another node takes the place of this one
    GLOBAL = "global"  #: the whole job starts again; costs one reset
    ABORT = "abort"  #: the job ends


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong on one node in one round.

    The properties have DLRover's names, so that a class that was written for it finds what it looks for.

    Attributes:
        job, attempt, round: where it happened.
        node: slot of the job; `host` the machine.
        at: seconds since the epoch, by the node's own clock.
        workers: those that ended badly, the likeliest culprit first.
    """

    job: str
    attempt: int
    round: int
    node: int
    host: str
    at: float
    workers: tuple[Culprit, ...]

    @property
    def node_rank(self) -> int:
        """Slot of the job."""
        return self.node

    @property
    def timestamp(self) -> int:
        """Whole seconds since the epoch."""
        return int(self.at)

    @property
    def log_content(self) -> str:
        """What each worker said, as a JSON object by global rank."""
        return dumps({worker.rank: worker for worker in self.workers})

    @property
    def extra_info(self) -> dict[str, Any]:
        """Nothing yet."""
        return {}
