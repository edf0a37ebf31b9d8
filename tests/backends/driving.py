"""Driving a job of a fake stage by the one loop, with what happens inside of it."""

from __future__ import annotations

from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import Phase
from tests.backends.stage import running, verdict

__all__ = ["Inside", "drive", "submit"]


class Inside:
    """What happens inside of a job: each attempt first runs, then ends as `outcomes` says, the last outcome again and again."""

    def __init__(self, place, *outcomes):
        self.place, self.outcomes = place, outcomes
        self.phases = []

    def __call__(self, snapshot):
        record = snapshot.record
        if not self.phases or self.phases[-1] is not record.phase:
            self.phases.append(record.phase)
        if record.phase is not Phase.RUNNING:
            return
        status = snapshot.status
        if status is None or status.fence.attempt != record.attempt:
            self.place.say(running(record, step=7))
        elif self.outcomes:
            outcome = self.outcomes[min(record.attempt, len(self.outcomes)) - 1]
            self.place.say(verdict(record, outcome, message=f"attempt {record.attempt}: rank 3 on node 1 exited with code 9"))


async def submit(place, **fields):
    return await place.backend.submit(place.backend.plan(place.job(**fields)), owner="ann")


async def drive(place, inside, backend=None, holder="test"):
    return await supervise(backend or place.backend, "digits", holder=holder, on_turn=inside, clock=place.world.clock)
