"""The coordinator's look at the job's supervisor, and what the job does by itself when there is none: its orphan policy."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path
from typing import Protocol

from rallypoint.agent.clock import Clock
from rallypoint.agent.transport.lease import Lease, in_words
from rallypoint.wire import sanitize
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.status import Outcome, Verdict

__all__ = ["LOOK", "ORPHANED", "FileHeartbeat", "HeartbeatSource", "OrphanedJob", "keep_watch"]

log = logging.getLogger("rallypoint.orphan")

#: The reason of the verdict with which an orphaned job ends.
ORPHANED = "Orphaned"

#: Bytes of a heartbeat that are compared.
_BEAT_LIMIT = 4096

#: Seconds between two looks at a heartbeat that costs nothing to look at.
LOOK = 5.0


class HeartbeatSource(Protocol):
    """Where the heartbeat is read of the process that the job's record names as its supervisor."""

    async def read(self) -> str | None:
        """Return something that is another thing after each beat, or None when there is nothing to be read now."""
        ...


class FileHeartbeat:
    """A record on disk whose holder names a file that is replaced, or touched, at each beat."""

    def __init__(self, record: Path) -> None:
        self._record = record

    async def read(self) -> str | None:
        """Read both in a thread; what cannot be read is no sign of life."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> str | None:
        try:
            record = sanitize.parse(self._record.read_bytes())
            holder = record.get("holder") if isinstance(record, dict) else None
            if not isinstance(holder, dict) or not holder.get("heartbeat"):
                return None
            heartbeat = Path(holder["heartbeat"])
            # `NONBLOCK`: to open a named pipe must not wait for its writer.
            with os.fdopen(os.open(heartbeat, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                found = os.fstat(file.fileno())
                beat = file.read(_BEAT_LIMIT) if stat.S_ISREG(found.st_mode) else b""
                return f"{heartbeat.name} {found.st_mtime_ns} {beat!r}" if beat else None
        except (OSError, TypeError, ValueError) as error:
            log.debug("the coordinator cannot read the heartbeat of the supervisor: %s", error)
            return None


class OrphanedJob(Protocol):
    """What is done to a job that may have lost its supervisor."""

    def supervised(self, quiet: float) -> None:
        """Take note that no supervisor was seen for `quiet` seconds; the agents are told with each answer."""
        ...

    def note(self, kind: str, detail: str) -> None:
        """Add a line to the job's story."""
        ...

    def conclude(self, verdict: Verdict) -> None:
        """End the attempt with a verdict, unless it has one."""
        ...


async def keep_watch(job: OrphanedJob, source: HeartbeatSource, plan: Plan, clock: Clock, *, look: float = LOOK) -> None:
    """Look at the supervisor's heartbeat for ever, and apply the plan's orphan policy when the lease is over.

    `look` is how many seconds are between two looks, at the most: a fifth of a lease that is shorter than five times that.
    With `continue` that is a line in the story, and another when a supervisor is back; with `stop` it is the verdict that ends
    the job, upon which each agent lets its workers save and stop. Ends only after that.
    """
    lease = Lease(seconds=plan.lease, at=clock())
    orphaned = False
    while True:
        lease = lease.looked(await source.read(), clock())
        job.supervised(lease.quiet)
        if lease.expired and plan.orphan_policy is OrphanPolicy.STOP:
            job.conclude(_verdict(plan))
            return
        if lease.expired and not orphaned:
            job.note(
                "orphaned",
                f"no supervisor heartbeat for {in_words(plan.lease)}; the job continues (orphan policy: continue)",
            )
        if orphaned and not lease.expired:
            job.note("supervised", "the job's supervisor sends heartbeats again")
        orphaned = lease.expired
        await asyncio.sleep(min(look, plan.lease / 5))


def _verdict(plan: Plan) -> Verdict:
    """Return how a job ends that nobody has supervised for its lease."""
    message = (
        f"no supervisor heartbeat for {in_words(plan.lease)} (fault_tolerance.lease); stopping the job (orphan policy: stop)"
    )
    return Verdict(outcome=Outcome.FAILED, reason=ORPHANED, message=message)
