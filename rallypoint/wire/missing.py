"""Nodes that a job wants and does not have, as they are told."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE

__all__ = ["MISSING_LIMIT", "Absence", "Missing"]

#: So many are told one by one, those that were in the last world first; `JobStatus.missing_count` counts all.
MISSING_LIMIT = 64


class Absence(str, enum.Enum):
    """How a node is missing."""

    EXPECTED = "expected"  #: nobody has taken its slot yet
    SILENT = "silent"  #: its report is overdue; it is lost when its lease is over
    LOST = "lost"  #: its lease is over, or its connections ended and it did not come back
    LEFT = "left"  #: it said that it leaves


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A slot of the job in which nobody is.

    Attributes:
        node: the slot; `incarnation` and `host` are those of who was in it last, -1 and "" where nobody was.
        why: how it is missing.
        since: when it was heard last, its connections ended, or, where it never was, it was wanted: seconds since the epoch on
            the coordinator's clock.
    """

    #: Of an agent with a node rank, the incarnation is the time of its start.
    limits: ClassVar = {"incarnation": WHOLE}

    node: int
    incarnation: int = -1
    host: str = ""
    why: Absence
    since: float
