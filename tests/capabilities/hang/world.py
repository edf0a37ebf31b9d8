"""A world that trains in simulated time, and is heard by the coordinator's core: no clock, no process.

Two nodes of two ranks go from phase to phase together. Each agent reports once in a second (more often while there is a doubt),
out of step with the other one, and may be stopped; the coordinator's clock may jump. What the agents report is what real ones
do: the phase, the age of the last beat, the count of the steps, and how long each phase took so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.hang.state import HangSettings
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from rallypoint.wire.pulse import BUCKETS, Learned, Phase, bucket, learned_of
from tests.agent.test_rendezvous import TWO, report, say
from tests.capabilities.hang.jobs import own, pace, watched

__all__ = ["PACE", "World"]

#: Seconds between two reports of an agent.
PACE = 1.0

_SETTINGS = HangSettings(hang_downtime=1800.0, hang_detection=2, warmup_grace=300.0, report_interval=PACE)


@dataclass
class World:
    """Two nodes, what they have done so far, and the coordinator's state.

    Attributes:
        state: of the coordinator, which is told everything.
        now: seconds since the start, as the workers have them; `jumped` is what the coordinator's clock is ahead of that.
        phase: of all ranks; `beat` when they last showed a sign of life, `steps` how many they have taken.
        stopped: agents that say nothing until then.
    """

    settings: HangSettings = _SETTINGS
    state: State = field(init=False)
    now: float = 0.0
    jumped: float = 0.0
    phase: Phase = Phase.START_UP
    beat: float = 0.0
    steps: int = 0
    busy: float = 0.0
    written: int = 0
    stopped: dict[int, float] = field(default_factory=dict)
    counts: dict[Phase, list[int]] = field(default_factory=dict)
    alarms: list[tuple[float, Phase]] = field(default_factory=list)
    _known: tuple[Learned, ...] = ()
    _looked: float = float("-inf")
    _due: dict[int, float] = field(default_factory=lambda: {0: 0.0, 1: 0.4})

    def __post_init__(self) -> None:
        self.state = watched(self.settings)
        self.now = TWO.last_call

    def lives(self) -> None:
        """Show a sign of life, on all ranks."""
        self.beat = self.now

    def took(self, phase: Phase, seconds: float) -> None:
        """Count how long a phase took."""
        self.counts.setdefault(phase, [0] * BUCKETS)[bucket(int(seconds * 1e9))] += 1

    def passes(self, seconds: float) -> None:
        """Let time pass in which nothing happens but reports."""
        until = self.now + seconds
        while min(self._due.values()) <= until:
            node = min(self._due, key=lambda n: self._due[n])
            self.now = max(self.now, self._due[node])
            self._reports(node)
        self.now = until

    def _reports(self, node: int) -> None:
        doubted = pace(self.state) or PACE
        self._due[node] = self.now + min(PACE, doubted)
        if self.stopped.get(node, 0.0) > self.now:
            self._due[node] = self.stopped[node]
            return
        self.state = say(self.state, self._report(node), now=self.now + self.jumped)
        inquiry = own(self.state).inquiry
        if inquiry is not None and (not self.alarms or self.alarms[-1][0] != inquiry.since):
            self.alarms.append((inquiry.since, self.phase))

    def _report(self, node: int) -> AgentReport:
        quiet = round(self.now - self.beat, 3)
        workers = tuple(
            WorkerReport(
                local_rank=n,
                pid=10 + n,
                liveness=self.steps,
                phase=self.phase,
                beat=int(self.beat * 1000),
                quiet=quiet,
                cpu=self.busy,
                output=self.written,
            )
            for n in (0, 1)
        )
        return report(node, AgentState.RUNNING, 1, workers=workers, learned=self._learned())

    def _learned(self) -> tuple[Learned, ...]:
        """Return what agents tell, who look at it in the beginning each second, and then every ten."""
        if self.now - self._looked >= (PACE if self.steps < 200 else 10 * PACE):
            self._looked = self.now
            told = (learned_of(phase, [counts]) for phase, counts in self.counts.items())
            self._known = tuple(one for one in told if one is not None)
        return self._known
