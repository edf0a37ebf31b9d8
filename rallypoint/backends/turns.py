"""The turns of the process that holds a job: load, observe, decide, save, and only then act."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from rallypoint.backends.contract import ActionError, Backend, BackendError, Changes, ConflictError, HeldError, Stored
from rallypoint.backends.uninterrupted import uninterrupted
from rallypoint.supervision.actions import Action, CreateComponents, CreateCoordinator, CreateNode, Purge
from rallypoint.supervision.masking import masked_observation
from rallypoint.supervision.observation import CreateError, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import Holder, JobRecord, Phase
from rallypoint.supervision.resizing import sized
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.plan import Plan
from rallypoint.wire.sanitize import clean_text, one_line
from rallypoint.wire.status import JobStatus

__all__ = ["Backoff", "Job", "OnTurn", "Snapshot", "Turn", "Turns", "held", "masked", "new_lines", "told"]


T = TypeVar("T")

#: Longest that a supervisor that is cancelled takes to say so in the record, in seconds.
_LAST_WORD = 5.0


class Job:
    """The job that was there first under a name; `whole` is the plan of the job that it is an elastic role of."""

    def __init__(self, backend: Backend, name: str, *, whole: Plan | None = None) -> None:
        self.backend, self.name, self.whole = backend, name, whole
        self._uid = self._holder = ""

    def held_by(self, holder: str) -> None:
        """Log who supervises it, once for each holder."""
        if holder != self._holder:
            self._holder = holder
            log.info("job=%s is already supervised by %s; this process waits to take over", self.name, holder)

    async def load(self) -> Stored | None:
        """Return it, or None when it was deleted, even if there is another of its name by now."""
        stored = await self.backend.load(self.name)
        if stored is None or self._uid not in ("", stored.record.uid):
            return None
        self._uid = stored.record.uid
        return stored


async def told(call: Awaitable[T]) -> T:
    """Return what a call of the backend returns; an `OSError` of it is a failure of the backend, unlike one of `on_turn`."""
    try:
        return await call
    except OSError as error:
        raise BackendError(str(error)) from error


@contextlib.asynccontextmanager
async def held(job: Job, holder: str) -> AsyncIterator[Holder]:
    """Hold a job, with a heart that beats meanwhile; who is cancelled lets it go. Raises what `Backend.hold` does."""
    async with contextlib.AsyncExitStack() as holds:
        await told(holds.enter_async_context(job.backend.hold(job.name, holder=holder)))
        me = await told(holds.enter_async_context(job.backend.heartbeat(holder)))
        try:
            yield me
        except asyncio.CancelledError:
            await _let_go(job, me)
            raise


async def _let_go(job: Job, me: Holder) -> None:
    """Say in the record that this process supervises the job no more.

    Its heart goes on beating for its other jobs, and this one's lease would never be over.
    """
    word = asyncio.create_task(_take_name_out(job, me))
    try:
        await uninterrupted(_wait(word, _LAST_WORD))
    finally:
        word.cancel()


async def _wait(task: asyncio.Task[None], timeout: float) -> None:
    await asyncio.wait({task}, timeout=timeout)


async def _take_name_out(job: Job, me: Holder) -> None:
    backoff = Backoff(job.name)
    while True:
        try:
            stored = await job.load()
            if stored is None or stored.record.holder is None or stored.record.holder.id != me.id:
                return
            gone = dataclasses.replace(stored.record.holder, id="", heartbeat="")
            await job.backend.save(dataclasses.replace(stored.record, holder=gone), version=stored.version)
        except ConflictError as error:
            await backoff.conflict(error)
            continue
        except (BackendError, OSError) as error:
            log.info("job=%s: this supervisor has ended, but cannot remove its name from the job's record: %s", job.name, error)
        return


log = logging.getLogger("rallypoint.backends.supervise")

#: Shortest pause between two turns, in seconds: a deadline that is due by a rounding error must not spin.
_SHORTEST = 0.01

#: Lines of history that one turn logs at most, and characters of one.
_LINES, _LINE = 100, 2000

_PHASES = {phase.value.lower(): phase.value for phase in Phase if phase.value}

#: Pause after a failure of the backend, in seconds: doubled from the first to the last while it goes on.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A job after one turn. `supervising`: this process holds the job; otherwise it only looks on."""

    record: JobRecord
    plan: Plan
    status: JobStatus | None
    supervising: bool


OnTurn = Callable[[Snapshot], None]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one turn came to: the job is over, or when to look again."""

    over: bool = False
    record: JobRecord | None = None
    snapshot: Snapshot | None = None
    at_once: bool = False
    wake_at: float | None = None


class Backoff:
    """Ever longer pauses while the backend fails."""

    def __init__(self, name: str) -> None:
        self._name, self._seconds = name, _FIRST_PAUSE
        self._conflicts = 0

    async def conflict(self, error: ConflictError) -> None:
        """Wait after a record was changed meanwhile: not after the first time, and ever longer while it goes on.

        Each change of another process is a conflict. A record that never can be saved, whatever the reason, is one, too.
        """
        self._conflicts += 1
        if self._conflicts > 1:
            await self.pause(error)

    async def pause(self, error: BackendError) -> None:
        """Log the error and wait."""
        log.warning("job=%s: %s; retrying in %g s", self._name, clean_text(str(error)), self._seconds)
        await asyncio.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LAST_PAUSE)

    def reset(self) -> None:
        """Begin with the shortest pause again: it works."""
        self._seconds, self._conflicts = _FIRST_PAUSE, 0


class Turns:
    """The holder's side: what one process remembers between its turns, none of which the next one needs."""

    def __init__(self, job: Job, changes: Changes, tell: OnTurn, clock: Callable[[], float], me: Holder) -> None:
        self._job, self._backend, self._name = job, job.backend, job.name
        self._changes, self._tell, self._clock, self._me = changes, tell, clock, me
        self._last: JobRecord | None = None
        self._create_errors: tuple[CreateError, ...] = ()
        self._last_actions: tuple[Action, ...] = ()
        self._status_error = ""

    async def run(self, poll: float) -> JobRecord | None:
        """Take turns until the job is over; see `supervise`. Raises `HeldError` when another process has taken it over."""
        backoff = Backoff(self._name)
        while True:
            try:
                turn = await told(self._turn())
                if turn.snapshot is not None:
                    self._tell(turn.snapshot)
                await self._pause(turn, poll)
            except ConflictError as error:
                await backoff.conflict(error)
                continue
            except HeldError:
                raise  # this process slept so long that another took the job over
            except BackendError as error:
                await backoff.pause(error)
                continue
            backoff.reset()
            if turn.over:
                return turn.record

    async def _pause(self, turn: Turn, poll: float) -> None:
        if not turn.over and not turn.at_once:
            left = poll if turn.wake_at is None else turn.wake_at - self._clock()
            await told(self._changes.wait(max(_SHORTEST, min(poll, left))))

    async def _turn(self) -> Turn:
        stored = await self._job.load()
        if stored is None:
            return await self._vanished()
        self._last = stored.record
        now = self._clock()
        seen = await self._backend.observe(stored.record)
        decision, status = await self._decide(stored, seen, now)
        if decision.record.phase is not stored.record.phase:
            # What ends a phase was waited for, or is gone for good: neither is decided on what was seen a while ago.
            seen = await self._backend.confirm(stored.record) or seen
            decision, status = await self._decide(stored, seen, now)
        for line in await asyncio.to_thread(new_lines, stored.record, decision.record):
            log.info("job=%s %s", self._name, line)
        saved = await self._save(stored, decision)
        purged = await self._act(decision, stored.plan)
        shown = sized(stored.plan, decision.record)
        snapshot = Snapshot(record=decision.record, plan=shown, status=status, supervising=True)
        if decision.done and (purged or not (await self._look_again(decision.record)).present):
            # Looked at once more after the record was saved: whoever starts a node reads the record after showing the node.
            return Turn(over=True, record=None if purged else saved, snapshot=snapshot)
        fresh = decision.actions != self._last_actions
        self._last_actions = decision.actions
        at_once = decision.done or (fresh and bool(decision.actions))
        return Turn(at_once=at_once, wake_at=decision.wake_at, snapshot=snapshot)

    async def _vanished(self) -> Turn:
        """The record is gone, and not by our doing: end what is left of the job."""
        if self._last is None:
            return Turn(over=True)
        log.warning(
            "job=%s: another process deleted the record of the job; the supervisor stops the remaining processes of the job",
            self._name,
        )
        return Turn(over=await self._backend.sweep(self._last))

    async def _decide(self, stored: Stored, seen: Observation, now: float) -> tuple[Decision, JobStatus | None]:
        """Return what to do, and the status without the secrets of the job."""
        seen = dataclasses.replace(seen, create_errors=self._create_errors)
        # In a thread: a script can write a status of a megabyte, and the event loop may have other jobs and other triggers.
        decision, status = await asyncio.to_thread(self._reconciled, stored, seen, now)
        return self._signed(decision), status

    def _reconciled(self, stored: Stored, seen: Observation, now: float) -> tuple[Decision, JobStatus | None]:
        policy, seen = Policy.from_plan(stored.plan), masked(seen, self._job.whole or stored.plan)
        try:
            return reconcile(stored.record, seen, policy, now), seen.status
        except Exception as error:
            if seen.status is None:
                raise
            # A script can write any status. It must not keep its job from being deleted.
            if repr(error) != self._status_error:
                self._status_error = repr(error)
                log.exception(
                    "job=%s: the supervisor cannot process the job status, and continues without the status; the traceback "
                    "follows",
                    self._name,
                )
            return reconcile(stored.record, dataclasses.replace(seen, status=None), policy, now), seen.status

    async def _look_again(self, record: JobRecord) -> Observation:
        return await self._backend.confirm(record) or await self._backend.observe(record)

    def _signed(self, decision: Decision) -> Decision:
        """Name this process in the record: by its heartbeat the job knows that it is supervised."""
        record, before = decision.record, decision.record.holder
        if decision.done or (before is not None and before.id == self._me.id):
            return decision
        record = dataclasses.replace(record, holder=dataclasses.replace(self._me, since=record.last_now))
        if before is not None and before.describe() != self._me.describe():
            told = f"{self._me.describe()} took over the supervision from {before.describe()}"
            record = record.with_history("supervisor", told)
        return dataclasses.replace(decision, record=record)

    async def _save(self, stored: Stored, decision: Decision) -> JobRecord:
        """Save what was decided, unless only time has passed; return the record as it is stored now."""
        old, new = stored.record, decision.record
        idle = dataclasses.replace(new, clock=old.clock, last_now=old.last_now) == old
        # Either way: a clock that was set back must be saved, or the next turn would start from the future again.
        if idle and abs(new.last_now - old.last_now) < self._backend.clock_saved_every:
            return old
        await self._backend.save(new, version=stored.version)
        return new

    async def _act(self, decision: Decision, plan: Plan) -> bool:
        """Do the actions; return whether the job was purged. What cannot be created is told to the next turn."""
        errors: list[CreateError] = []
        for action in decision.actions:
            if action not in self._last_actions:
                log.info("job=%s: %s", self._name, _describe(action))
            try:
                await self._backend.act(decision.record, plan, action)
            except ActionError as error:
                mask = mask_of_plan(self._job.whole or plan)
                log.warning("job=%s: failed to %s: %s", self._name, _describe(action), clean_text(mask(str(error))))
                errors += _create_error(action, error)
        self._create_errors = tuple(errors)
        return any(isinstance(action, Purge) for action in decision.actions)


def new_lines(before: JobRecord, after: JobRecord) -> list[str]:
    """Return the lines of history that are new, the newest if there are many."""
    known = set(before.history)
    new = [event for event in after.history if event not in known]
    return [f"{_title(event.kind)}: {one_line(event.detail, _LINE)}" for event in new[-_LINES:]]


def _title(kind: str) -> str:
    """Return how the log names a kind of history entry: `phase=Running`, or `node lost`."""
    return f"phase={_PHASES[kind]}" if kind in _PHASES else kind.replace("-", " ")


def masked(seen: Observation, plan: Plan) -> Observation:
    """Return an observation that does not show the secrets of the job, nor those of its roles (wire/masked.py)."""
    return masked_observation(seen, mask_of_plan(plan))


def _create_error(action: Action, error: ActionError) -> Iterable[CreateError]:
    """Return what the next turn needs of an error. The error itself holds the frames of its calls, and thus whole manifests."""
    if isinstance(action, (CreateNode, CreateCoordinator, CreateComponents)):
        node = action.node if isinstance(action, CreateNode) else -1
        yield CreateError(attempt=action.attempt, node=node, reason=str(error), fatal=error.fatal, waits=error.waits)


def _describe(action: Action) -> str:
    """Return an action as a log line has it: `create node attempt=1 node=0 incarnation=1`."""
    kind = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(action).__name__).strip()
    shown = {name: value for name, value in vars(action).items() if value is not False and (name != "unseen" or value)}
    return " ".join((kind, *(f"{name}={value}" for name, value in shown.items()))).replace("force=True", "force=true")
