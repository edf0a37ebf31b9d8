"""How far a last checkpoint is (`dumping.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rallypoint.wire.dump import DumpPhase, DumpTold
from rallypoint.wire.fence import Fence
from rallypoint.wire.status import Verdict

__all__ = ["Dumping"]


@dataclass(frozen=True, kw_only=True)
class Dumping:
    """How far it is.

    Attributes:
        number: of the round that was the last.
        since: on the coordinator's clock.
        verdict: what the attempt ends with.
        phase: what is asked; `told` the answers to that by agent.
        agents: of the last world, as far as they live.
        fence, step: the snapshot that is taken; `shares` which of its parts which agent writes.
    """

    number: int
    since: float
    verdict: Verdict
    phase: DumpPhase = DumpPhase.TELL
    agents: frozenset[str]
    told: Mapping[str, DumpTold] = field(default_factory=dict, hash=False)
    fence: Fence = Fence()
    step: int = 0
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    @property
    def asked(self) -> frozenset[str]:
        """The agents whose answer is waited for."""
        if self.phase is DumpPhase.TELL:
            return self.agents
        return frozenset(self.shares) if self.phase is DumpPhase.WRITE else frozenset({min(self.shares)})
