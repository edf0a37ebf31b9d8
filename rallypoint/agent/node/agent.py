"""The node agent at work: events in, `decide.step`, actions done. What is decided, and why, is in `decide.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from rallypoint.agent.clock import Clock
from rallypoint.agent.culprit import is_collateral, with_few_tails
from rallypoint.agent.errors import ConfigError, StoreError
from rallypoint.agent.node import decide, events
from rallypoint.agent.node.decide import Node, Phase
from rallypoint.agent.node.events import (
    Advised,
    Announced,
    Answered,
    AskExtension,
    End,
    Freed,
    LeaveOverdue,
    LeaveWorld,
    StartWorkers,
    StopWorkers,
    StoreLost,
    Told,
    WorkersEnded,
    WorkersGone,
)
from rallypoint.agent.node.judging import Judge, another_ends, went_wrong
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.node.parts import Parts
from rallypoint.agent.node.reporting import Reporter, ReportLoop, report_pace
from rallypoint.agent.node.round import StartError
from rallypoint.agent.node.teardown import watch_teardowns
from rallypoint.agent.signals import SIGNALS
from rallypoint.agent.transport.client import CoordinatorClient
from rallypoint.agent.waiting import in_background
from rallypoint.agent.workers.group import Worker
from rallypoint.wire import line as wire
from rallypoint.wire.exits import Exit
from rallypoint.wire.failover import Failure
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.messages import AgentReport, Assignment, Continue, Regroup, Reply
from rallypoint.wire.sanitize import clean_text
from rallypoint.wire.status import Outcome

__all__ = ["Ending", "NodeAgent"]

log = logging.getLogger("rallypoint.node")

#: Seconds that the coordinator has to take note of an agent that leaves.
_FAREWELL = 1.0


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an agent ended: its exit code, the last that it knew, and the files of evidence of hangs that it has left."""

    code: int
    node: Node
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _WorkerSeen:
    """Some worker has ended; which ones stands in a list, so that those who end together are judged together."""


@dataclass(frozen=True, kw_only=True)
class _StepSeen:
    """A step of a worker raised; what is known of it is read from its files."""

    local_rank: int
    word: wire.Failed


#: Seconds for which the error of a lost connection waits for the end of another worker of this node that is ending: the kernel
#: closes connections before anybody sees the end, and the worker that ends is to blame. Long enough for a busy machine; the
#: report of that end releases the error at once.
_ENDING = 5.0


class NodeAgent:
    """One agent of one node. `run` once, in the main thread."""

    def __init__(self, config: NodeConfig, *, client: CoordinatorClient, clock: Clock) -> None:
        plan = config.plan
        self._events: asyncio.Queue[events.Event | _WorkerSeen | _StepSeen] = asyncio.Queue()
        self._ended: list[Worker] = []
        #: Errors of lost connections that wait for the end of another worker.
        self._held: list[events.StepFailed] = []
        self._parts = Parts(config, now=clock, changed=self._tell_news, said=self._worker_said, store_lost=self._store_lost)
        profile = self._parts.profile
        self._node = Node(
            local_world_size=plan.nproc_per_node,
            fence=Fence(attempt=config.attempt),
            extension=bool(plan.failures.failover_extension),
            keeps=profile is None or profile.keeps(),
        )
        self._config, self._client, self._clock = self._parts.config, client, clock
        self._reporter = Reporter(self._parts)
        self._talker = ReportLoop(
            client,
            pace=report_pace(plan),
            gist=self._gist,
            report=self._report,
            look=self._reporter.look,
            heard=self._heard,
            put=self._events.put_nowait,
        )
        self._advice: set[asyncio.Task[None]] = set()
        self._signalled = False
        self._judge = Judge(self._parts.config, now=clock, devices=self._parts.devices, profile=profile)

    async def run(self) -> Ending:
        """Take part in the job until it is over, or until this agent must end; leaves no process behind.

        Raises `ConfigError` when it cannot even begin.
        """
        loop = asyncio.get_running_loop()
        for number in self._config.signals:
            loop.add_signal_handler(number, self._signal, number)
        try:
            await self._parts.begin(self._cannot_work)
            ending = await self._live_and_talk()
        finally:
            await self._parts.close()
            await self._client.close()
            for number in self._config.signals:
                loop.remove_signal_handler(number)
        return dataclasses.replace(ending, evidence=self._parts.round.evidence_files)

    async def _live_and_talk(self) -> Ending:
        talk, live = asyncio.create_task(self._talker.talk()), asyncio.create_task(self._live())
        parts, grace = self._parts, self._config.plan.workers.exit_grace
        teardowns = asyncio.create_task(watch_teardowns(parts.group, parts.round.exit_status, grace=grace))
        try:
            await asyncio.wait({talk, live}, return_when=asyncio.FIRST_COMPLETED)
            if not live.done():
                talk.result()  # it only ends by an error
            return await live
        finally:
            tasks = (talk, live, teardowns, *self._talker.asking, *self._advice)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- Events ------------------------------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if self._signalled:
            log.warning("the agent received a second signal (%s); sending SIGKILL to all workers of this node", name)
            self._parts.group.kill()
            return
        self._signalled = True
        if number not in SIGNALS:
            self._parts.group.stop_signal = number
        log.warning("the agent received the signal %s; it stops the workers of this node and leaves the job", name)
        self._events.put_nowait(Told(code=128 + number, reason=f"the agent received {name}", leaving=True))

    def _worker_ended(self, worker: Worker) -> None:
        self._ended.append(worker)
        self._events.put_nowait(_WorkerSeen())

    def _store_lost(self, reason: str) -> None:
        self._events.put_nowait(StoreLost(reason=reason))

    def _cannot_work(self, reason: str) -> None:
        log.warning("%s", reason)
        self._events.put_nowait(Told(code=Exit.CONFIG, reason=reason, leaving=True))

    def _worker_said(self, local_rank: int, word: wire.FromWorker | None) -> None:
        """Pass on what came over a worker's line."""
        known = 0 <= local_rank < self._config.plan.nproc_per_node
        if not known:
            log.warning(
                "the agent ignored a message with local rank %d, because no worker of this node has this local rank", local_rank
            )
        elif word is None:  # its line is closed
            self._events.put_nowait(Announced(round=self._node.round, local_rank=local_rank, able=False))
        elif isinstance(word, wire.Hello):
            if word.why:
                plan = self._config.plan
                log.info(
                    "worker rank=%d cannot recover in place (%s); after a fault, a new process replaces it",
                    word.rank,
                    mask_of_plan(plan)(word.why),
                )
            able, resizable = wire.Ability.IN_PLACE in word.abilities, wire.Ability.RESIZE in word.abilities
            self._events.put_nowait(Announced(round=word.round, local_rank=local_rank, able=able, resizable=resizable))
        elif isinstance(word, wire.Freed):
            self._events.put_nowait(Freed(round=word.round, local_rank=local_rank))
        elif isinstance(word, wire.Failed):
            self._events.put_nowait(_StepSeen(local_rank=local_rank, word=word))
        elif isinstance(word, wire.Regrouped):
            log.info(
                "worker local_rank=%d kept its process and joined round %d; it continues from step %d",
                local_rank,
                word.round,
                word.step,
            )
        if known and word is not None:
            for capability in self._parts.capabilities:
                capability.on_message(local_rank, word)

    async def _judge_ended(self) -> WorkersEnded:
        """Say which workers ended by themselves since the last time, and how."""
        ended, self._ended = self._ended, []
        # An old round's last words: the list of workers was replaced meanwhile.
        ended = [worker for worker in ended if worker.place.assignment.fence.round == self._node.round]
        if any(map(went_wrong, ended)):
            self._note_failure()
        return await self._judge.ended(ended)

    async def _judge_step(self, seen: _StepSeen) -> events.StepFailed | None:
        """Say whose step raised, None where that worker has ended meanwhile."""
        found = (w for w in self._parts.group.workers if w.place.local_rank == seen.local_rank and w.code is None)
        worker = next(found, None)
        if worker is None:
            return None
        broke = self._node.phase is Phase.RUNNING
        return await self._judge.raised(worker, seen.word, broke=broke, step=self._parts.round.reached(seen.local_rank))

    # --- Decide, then do ---------------------------------------------------------------------------------------------------

    async def _live(self) -> Ending:
        while True:
            event = await self._events.get()
            if isinstance(event, _StepSeen):
                judged = await self._judge_step(event)
                if judged is None or await self._hold(judged):
                    continue
                event = judged
            if isinstance(event, _WorkerSeen):
                event = await self._judge_ended()
            before = self._node
            self._node, actions = decide.step(before, event)
            if isinstance(event, Answered):
                self._talker.take()
            self._log_change(before, event)
            if isinstance(event, WorkersGone) and not self._node.alive:
                await self._parts.round.finish()
                await self._parts.ports.look()
            for action in actions:
                if isinstance(action, End):
                    return await self._end(action)
                await self._do(action)
            if self._node.phase is not Phase.RUNNING:
                self._release()
            self._tell_news()

    async def _hold(self, event: events.StepFailed) -> bool:
        """Keep the error of a lost connection until the worker that is ending has ended, or the round is over."""
        if self._node.phase is not Phase.RUNNING or not is_collateral(event.failure):
            return False
        local_rank, workers, pids = event.failure.local_rank, tuple(self._parts.group.workers), self._parts.round.pids()
        if not await asyncio.to_thread(another_ends, local_rank, workers, pids):
            return False
        self._held.append(event)
        asyncio.get_running_loop().call_later(_ENDING, self._release)
        return True

    def _release(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self._events.put_nowait(event)

    def _log_change(self, before: Node, event: events.Event) -> None:
        if self._node.phase is before.phase:
            return
        log.debug("%s -> %s", before.phase.value, self._node.phase.value)
        if before.phase is Phase.RUNNING and isinstance(event, Answered) and isinstance(event.reply, Regroup):
            log.info("round %d ended: %s", before.round, clean_text(event.reply.reason))

    async def _do(self, action: StartWorkers | StopWorkers | LeaveWorld | AskExtension) -> None:
        if isinstance(action, StartWorkers):
            await self._start(action)
            return
        if isinstance(action, LeaveWorld):
            self._leave(action)
            return
        if isinstance(action, AskExtension):
            advice = in_background(self._ask_extension(action), log, "calling the failover extension")
            self._advice.add(advice)
            advice.add_done_callback(self._advice.discard)
            return
        self._parts.round.settle_evidence()
        self._tell_news()  # what happened is told before anything is done about it
        await asyncio.sleep(0)
        spared = action.spare
        self._parts.group.stop(lambda: self._workers_gone(spared), spare=spared)
        if action.at_once:
            self._parts.group.kill(spare=spared)

    def _workers_gone(self, spared: frozenset[int]) -> None:
        verdict = self._node.verdict
        if verdict is None or verdict.outcome is not Outcome.SUCCEEDED:
            self._note_failure()
        pending = [] if verdict is not None else [one.before_regroup() for one in self._parts.capabilities]
        waits = [one for one in pending if one is not None]
        if waits:
            # The world stays without this node, and so closed, until for example its last snapshot is in storage.
            ending = in_background(_all(waits), log, "the end of the round")
            self._advice.add(ending)
            ending.add_done_callback(self._advice.discard)
            ending.add_done_callback(lambda _: self._events.put_nowait(WorkersGone(spared=spared)))
            return
        self._events.put_nowait(WorkersGone(spared=spared))

    def _note_failure(self) -> None:
        for capability in self._parts.capabilities:
            capability.on_failure()

    def _leave(self, action: LeaveWorld) -> None:
        """Tell workers to leave their world; one that does not has as long as one that is to end."""
        for local_rank in action.ranks:
            self._parts.lines.say(local_rank, wire.Leave(round=action.round, reason=action.reason))
        overdue = LeaveOverdue(round=action.round)
        asyncio.get_running_loop().call_later(self._config.plan.workers.stop_grace, self._events.put_nowait, overdue)

    async def _ask_extension(self, action: AskExtension) -> None:
        config, assignment = self._config, self._node.assignment
        failure = Failure(
            job=config.plan.name,
            attempt=config.attempt,
            round=action.round,
            node=config.node if assignment is None else assignment.node,
            host=config.told,
            at=self._clock(),
            workers=with_few_tails(action.failures),
        )
        advice = await self._parts.adviser.ask(failure)
        log.info(
            "the failover extension (--dynamic-failover-extension) returned %s for the last failure of a worker",
            advice.failover.name,
        )
        self._events.put_nowait(Advised(round=action.round, failover=advice.failover, note=advice.note))

    async def _start(self, action: StartWorkers) -> None:
        assignment = action.assignment
        try:
            for capability in self._parts.capabilities:
                await capability.before_workers(assignment)
            await self._parts.stores.assigned(assignment.store)
            lines = self._parts.lines
            await self._parts.round.start(assignment, self._worker_ended, kept=action.kept, tell=lines.say, line=lines.path)
        except ConfigError as error:
            log.warning("%s", error)
            self._events.put_nowait(Told(code=Exit.CONFIG, reason=str(error), leaving=True))
        except StoreError as error:  # a shortage of processes or files may pass: it costs the round, not the node
            log.warning("%s", error)
            self._events.put_nowait(StoreLost(reason=str(error)))
        except StartError as error:
            failure = dataclasses.replace(self._judge.end_of(error.worker), error=error.reason, kind=FaultKind.START_FAILED)
            self._events.put_nowait(WorkersEnded(ranks=frozenset({failure.local_rank}), failures=(failure,)))
        else:
            last = assignment.first_rank + self._config.plan.nproc_per_node - 1
            first = assignment.first_rank
            ranks = first if last == first else f"{first}-{last}"
            log.info(
                "round %d: the agent started the workers: ranks=%s world_size=%d kept_processes=%d store=%s",
                assignment.fence.round,
                ranks,
                assignment.world_size,
                len(action.kept),
                assignment.store,
            )
            for capability in self._parts.capabilities:
                capability.after_workers()

    async def _end(self, action: End) -> Ending:
        if self._node.leaving:
            await self._talker.farewell(_FAREWELL)
        return Ending(code=action.code, node=self._node)

    # --- Talking -----------------------------------------------------------------------------------------------------------

    def _tell_news(self) -> None:
        self._talker.tell_news()

    def _gist(self) -> object | None:
        return self._reporter.gist(self._node)

    def _report(self) -> AgentReport:
        return self._reporter.report(self._node, pace=self._talker.pace)

    def _heard(self, reply: Reply) -> None:
        """Do what an answer asks for beside what is decided on it."""
        self._talker.hurry(reply.pace if isinstance(reply, Continue) else 0.0)
        if isinstance(reply, (Assignment, Continue)):
            for capability in self._parts.capabilities:
                capability.on_reply(reply, waiting=self._node.phase is Phase.JOINING)
        joins = isinstance(reply, Continue) and self._node.phase is Phase.JOINING
        if joins and reply.fence.round > self._node.round:  # others train: they are not to wait for what can be done before
            self._parts.prepare()


async def _all(waits: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*waits)
