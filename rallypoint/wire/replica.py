"""What a worker and its agent say to each other of snapshots that are kept on another node, too: one JSON object a line.

A Unix stream socket in the agent's folder of snapshots. The worker offers a snapshot that is complete, and the agent answers
when the neighbour has it, or says why not. An answer is about the offer with its step; nobody asks twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.fence import Fence

__all__ = ["SOCKET", "Offer", "Settled"]

#: The socket's name in the folder.
SOCKET = "replicas.sock"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The snapshot of `step` that lies in the area of `local_rank` is to be kept on another node, too."""

    limits: ClassVar = {"step": WHOLE}

    local_rank: int
    fence: Fence
    step: int


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What became of the offer of `step`: the neighbour has it, or `error` says why nobody does."""

    limits: ClassVar = {"step": WHOLE}

    step: int
    error: str = ""
