"""The node agent at work: events in, `decide.step`, actions done. What is decided, and why, is in `decide.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import uuid
from dataclasses import dataclass

from rallypoint.agent.check.checker import Checker
from rallypoint.agent.clock import Clock
from rallypoint.agent.culprit import is_collateral, with_few_tails
from rallypoint.agent.errors import ConfigError, StoreError
from rallypoint.agent.linux import become_subreaper
from rallypoint.agent.node import decide, events
from rallypoint.agent.node.actions import AskExtension, End, LeaveWorld, StartWorkers, StopWorkers
from rallypoint.agent.node.adviser import Adviser
from rallypoint.agent.node.decide import Node, Phase
from rallypoint.agent.node.events import (
    Advised,
    Announced,
    Answered,
    Freed,
    LeaveOverdue,
    StepFailed,
    StoreLost,
    Told,
    WorkersEnded,
    WorkersGone,
)
from rallypoint.agent.node.health.looking import Looker
from rallypoint.agent.node.lines import Lines
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.node.obeying import Action as Obedience
from rallypoint.agent.node.obeying import Obeying, Tell
from rallypoint.agent.node.peak import peak_of
from rallypoint.agent.node.reset_watch import ResetWatch
from rallypoint.agent.node.round import Round, StartError
from rallypoint.agent.node.starting import launcher
from rallypoint.agent.node.talking import Talker
from rallypoint.agent.node.training_ports import TrainingPorts
from rallypoint.agent.node.tuner import Tuner
from rallypoint.agent.rendezvous import rungs
from rallypoint.agent.signals import SIGNALS
from rallypoint.agent.snapshots.dumper import Dumper
from rallypoint.agent.snapshots.keeper import SnapshotKeeper
from rallypoint.agent.transport.client import CoordinatorClient
from rallypoint.agent.transport.service import MAX_HOLD
from rallypoint.agent.workers.facts import end_of, how, raised
from rallypoint.agent.workers.group import Worker, WorkerGroup
from rallypoint.agent.workers.memory import OomWatch
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Spawner
from rallypoint.agent.workers.store import StoreKeeper
from rallypoint.supervision.strategy import Strategy
from rallypoint.wire import line as wire
from rallypoint.wire.check import CheckReport, CheckTask
from rallypoint.wire.exits import Exit
from rallypoint.wire.failover import Failure
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit, FaultKind
from rallypoint.wire.messages import AgentReport, AgentState, Assignment, Continue, Reply
from rallypoint.wire.status import Outcome

__all__ = ["Ending", "NodeAgent"]

log = logging.getLogger("rallypoint.node")

#: Seconds that the coordinator has to take note of an agent that leaves.
_FAREWELL = 1.0

#: The strategies for which workers may live on.
_LIVING = frozenset({Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.ELASTIC_TRAINING})


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an agent ended: its exit code and the last that it knew."""

    code: int
    node: Node


@dataclass(frozen=True, kw_only=True)
class _WorkerSeen:
    """Some worker has ended; which ones stands in a list, so that those who end together are judged together."""


@dataclass(frozen=True, kw_only=True)
class _StepSeen:
    """A step of a worker raised; what is known of it is read from its files."""

    local_rank: int
    word: wire.Failed


class NodeAgent:
    """One agent of one node. `run` once, in the main thread."""

    def __init__(self, config: NodeConfig, *, client: CoordinatorClient, clock: Clock) -> None:
        self._snapshots = SnapshotKeeper(
            config.plan, config.folder, attempt=config.attempt, host=config.host, secret=config.secret
        )
        self._tuner = self._new_tuner(config) if config.plan.auto_tuning else None
        self._ports = TrainingPorts(config.plan)
        variables = {**self._snapshots.environment(), **(self._tuner.environment() if self._tuner is not None else {})}
        told = dataclasses.replace(config.plan, env={**config.plan.env, **variables})
        config = dataclasses.replace(config, plan=told)
        self._dumper = Dumper(self._snapshots, self._tell_news)
        self._config, self._client, self._clock = config, client, clock
        self._name = f"{config.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._node = Node(
            local_world_size=config.plan.nproc_per_node,
            fence=Fence(attempt=config.attempt),
            extension=bool(config.plan.failover_extension),
            keeps=bool(rungs.allowed(config.plan.profile, config.plan.scheduling) & _LIVING),
        )
        self._events: asyncio.Queue[events.Event | _WorkerSeen | _StepSeen] = asyncio.Queue()
        self._ended: list[Worker] = []
        self._talker = Talker(
            client, pace=self._pace(), gist=self._gist, report=self._report, heard=self._heard, put=self._events.put_nowait
        )
        self._advice: set[asyncio.Task[None]] = set()
        self._sequence = 0
        self._signalled = False
        become_subreaper()
        self._reaper = Reaper()
        self._spawner = Spawner(self._reaper)
        self._launcher = launcher(config, self._spawner, self._reaper)
        self._group = WorkerGroup(self._launcher, self._reaper, grace=config.plan.stop_grace, now=clock)
        self._round = Round(config, self._group, now=clock)
        self._lines = Lines(config.folder / f"line-{os.getpid()}.sock", self._worker_said)
        self._obeying = Obeying(workers=config.plan.nproc_per_node)
        self._looker = Looker(self._round.evidence, self._tell_news)
        self._stores = StoreKeeper(config.host, self._launcher.own, self._store_lost)
        self._launcher.when_ready(self._stores.host_ahead)
        self._adviser = Adviser(config.plan, self._spawner)
        self._memory = OomWatch()
        self._reset_watch = ResetWatch.of(config.plan)
        self._checker = self._new_checker() if config.plan.check_level else None

    def _new_tuner(self, config: NodeConfig) -> Tuner:
        return Tuner(config.folder, peak_of(config.plan), pids=self._pids, changed=self._tell_news)

    def _pids(self) -> dict[int, int]:
        return self._round.pids()

    def _new_checker(self) -> Checker:
        config = self._config
        return Checker(config.plan, host=config.host, folder=config.folder, spawner=self._spawner, changed=self._tell_news)

    async def run(self) -> Ending:
        """Take part in the job until it is over, or until this agent must end; leaves no process behind.

        Raises `ConfigError` when it cannot even begin.
        """
        loop = asyncio.get_running_loop()
        for number in self._config.signals:
            loop.add_signal_handler(number, self._signal, number)
        try:
            await self._snapshots.begin()
            await self._lines.begin()
            await self._stores.prepare()
            await self._ports.look()
            if self._tuner is not None:
                await self._tuner.begin()
            if self._checker is not None:
                await self._checker.prepare()
            self._adviser.begin(self._cannot_work)
            return await self._live_and_talk()
        finally:
            self._group.kill()
            self._group.close()
            self._lines.close()
            self._stores.close()
            if self._checker is not None:
                await self._checker.close()
            if self._tuner is not None:
                await self._tuner.close()
            self._launcher.close()
            self._adviser.close()
            await self._round.finish()
            await self._round.close()
            await self._snapshots.close()
            self._reaper.close()
            self._spawner.close()
            await self._client.close()
            for number in self._config.signals:
                loop.remove_signal_handler(number)

    async def _live_and_talk(self) -> Ending:
        talk, live = asyncio.create_task(self._talker.talk()), asyncio.create_task(self._live())
        try:
            await asyncio.wait({talk, live}, return_when=asyncio.FIRST_COMPLETED)
            if not live.done():
                talk.result()  # it only ends by an error
            return await live
        finally:
            tasks = (talk, live, *self._talker.asking, *self._advice, *self._looker.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- Events ------------------------------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if self._signalled:
            log.warning("%s again: killing the workers", name)
            self._group.kill()
            return
        self._signalled = True
        if number not in SIGNALS:
            self._group.stop_signal = number
        log.warning("%s: leaving the job", name)
        self._events.put_nowait(Told(code=128 + number, reason=f"its agent was ended by {name}", leaving=True))

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
        if not 0 <= local_rank < self._config.plan.nproc_per_node:
            log.warning("local rank %d: said something, and there is no such worker here", local_rank)
        elif word is None:  # its line is closed
            self._events.put_nowait(Announced(round=self._node.round, local_rank=local_rank, able=False))
        elif isinstance(word, wire.Hello):
            if word.why:
                log.info("rank %d cannot recover in place: %s", word.rank, word.why)
            able, resizable = wire.Ability.IN_PLACE in word.abilities, wire.Ability.RESIZE in word.abilities
            self._events.put_nowait(Announced(round=word.round, local_rank=local_rank, able=able, resizable=resizable))
            self._obey(self._obeying.announced(local_rank, word.abilities))
        elif isinstance(word, wire.Freed):
            self._events.put_nowait(Freed(round=word.round, local_rank=local_rank))
        elif isinstance(word, wire.Failed):
            self._events.put_nowait(_StepSeen(local_rank=local_rank, word=word))
        elif isinstance(word, wire.Done):
            self._obey((self._obeying.done(local_rank, word), ()))
        elif isinstance(word, wire.Regrouped):
            log.info("local rank %d goes on in round %d from step %d", local_rank, word.round, word.step)

    def _obey(self, step: tuple[Obeying, tuple[Obedience, ...]]) -> None:
        """Pass on what somebody asks of the workers, and tell what they answer."""
        self._obeying, actions = step
        for action in actions:
            if isinstance(action, Tell):
                for local_rank in action.ranks:
                    self._lines.say(local_rank, wire.Order(verb=action.verb, number=action.number))
            else:
                log.warning("the workers are asked to end: SIGTERM")
                # They end well, as far as the job is concerned: their agent is done when the last one has ended.
                self._group.stop(lambda: None)
        self._tell_news()

    async def _judge_ended(self) -> WorkersEnded:
        """Say which workers ended by themselves since the last time, and how."""
        ended, self._ended = self._ended, []
        # An old round's last words: the list of workers was replaced meanwhile.
        ended = [worker for worker in ended if worker.place.assignment.fence.round == self._node.round]
        for worker in ended:
            log.info("rank %d (pid %d) %s", worker.place.rank, worker.pid, how(worker))
        bad = [worker for worker in ended if worker.code != 0 and not worker.stopped]
        if bad:
            self._snapshots.breakpoint()
        failures = [await asyncio.to_thread(self._end_of, worker) for worker in bad]
        return WorkersEnded(ranks=frozenset(w.place.local_rank for w in ended), failures=tuple(failures))

    async def _judge_step(self, seen: _StepSeen) -> events.Event | None:
        """Say whose step raised, None where that worker has ended meanwhile."""
        found = (w for w in self._group.workers if w.place.local_rank == seen.local_rank and w.code is None)
        worker = next(found, None)
        if worker is None:
            return None
        log.info("rank %d (pid %d): a step raised %s", worker.place.rank, worker.pid, seen.word.error)
        config = self._config
        failure = raised(worker, seen.word.error, host=config.told, incarnation=config.incarnation, at=self._clock())
        if self._node.phase is Phase.RUNNING and not is_collateral(failure):
            # Of the others nobody will want to read the log, and who broke the round may have to wait for this.
            end = await asyncio.to_thread(self._end_of, worker)
            failure = dataclasses.replace(failure, log_tail=end.log_tail, log_path=end.log_path)
        return StepFailed(round=seen.word.round, failure=failure)

    def _end_of(self, worker: Worker) -> Culprit:
        plan = self._config.plan
        end = end_of(worker, host=self._config.told, incarnation=self._config.incarnation, log_tail=plan.log_tail)
        if end.signal == signal.SIGKILL and self._memory.killed():
            return dataclasses.replace(end, kind=FaultKind.OOM)
        return end

    # --- Decide, then do ---------------------------------------------------------------------------------------------------

    async def _live(self) -> Ending:
        while True:
            event = await self._events.get()
            if isinstance(event, _StepSeen):
                judged = await self._judge_step(event)
                if judged is None:
                    continue
                event = judged
            if isinstance(event, _WorkerSeen):
                event = await self._judge_ended()
            before = self._node
            self._node, actions = decide.step(before, event)
            if isinstance(event, Answered):
                self._talker.take()
            if self._node.phase is not before.phase:
                log.debug("%s -> %s", before.phase.value, self._node.phase.value)
            if isinstance(event, WorkersGone) and not self._node.alive:
                await self._round.finish()
                await self._ports.look()
            for action in actions:
                if isinstance(action, End):
                    return await self._end(action)
                await self._do(action)
            self._tell_news()

    async def _do(self, action: StartWorkers | StopWorkers | LeaveWorld | AskExtension) -> None:
        if isinstance(action, StartWorkers):
            await self._start(action)
            return
        if isinstance(action, LeaveWorld):
            self._leave(action)
            return
        if isinstance(action, AskExtension):
            advice = asyncio.create_task(self._ask_extension(action))
            self._advice.add(advice)
            advice.add_done_callback(self._advice.discard)
            return
        self._tell_news()  # what happened is told before anything is done about it
        await asyncio.sleep(0)
        spared = action.spare
        self._group.stop(lambda: self._workers_gone(spared), spare=spared)
        if action.at_once:
            self._group.kill(spare=spared)

    def _workers_gone(self, spared: frozenset[int]) -> None:
        verdict = self._node.verdict
        if verdict is None or verdict.outcome is not Outcome.SUCCEEDED:
            self._snapshots.breakpoint()
        if self._snapshots.flushes and verdict is None:
            # The world stays without this node, and so closed, until its last snapshot is in storage.
            flushing = asyncio.create_task(self._snapshots.settled())
            self._advice.add(flushing)
            flushing.add_done_callback(self._advice.discard)
            flushing.add_done_callback(lambda _: self._events.put_nowait(WorkersGone(spared=spared)))
            return
        self._events.put_nowait(WorkersGone(spared=spared))

    def _leave(self, action: LeaveWorld) -> None:
        """Tell workers to leave their world; one that does not has as long as one that is to end."""
        for local_rank in action.ranks:
            self._lines.say(local_rank, wire.Leave(round=action.round, reason=action.reason))
        overdue = LeaveOverdue(round=action.round)
        asyncio.get_running_loop().call_later(self._config.plan.stop_grace, self._events.put_nowait, overdue)

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
        advice = await self._adviser.ask(failure)
        log.info("the failover extension answered %s", advice.failover.name)
        self._events.put_nowait(Advised(round=action.round, failover=advice.failover, note=advice.note))

    async def _start(self, action: StartWorkers) -> None:
        assignment = action.assignment
        self._obeying, wanted = self._obeying.started(assignment.first_rank)
        self._snapshots.assigned(assignment)
        try:
            if self._checker is not None:
                await self._checker.stop()
            await self._stores.assigned(assignment.store)
            living = await self._round.start(assignment, self._worker_ended, kept=action.kept, line=self._lines.path)
            for worker, word in living:
                self._lines.say(worker.place.local_rank, word)
        except ConfigError as error:
            log.warning("%s", error)
            self._events.put_nowait(Told(code=Exit.CONFIG, reason=str(error), leaving=True))
        except StoreError as error:  # a shortage of processes or files may pass: it costs the round, not the node
            log.warning("%s", error)
            self._events.put_nowait(StoreLost(reason=str(error)))
        except StartError as error:
            failure = dataclasses.replace(self._end_of(error.worker), error=error.reason, kind=FaultKind.START_FAILED)
            self._events.put_nowait(WorkersEnded(ranks=frozenset({failure.local_rank}), failures=(failure,)))
        else:
            last = assignment.first_rank + self._config.plan.nproc_per_node - 1
            ranks = f"ranks {assignment.first_rank} to {last} of {assignment.world_size}"
            on = f", {len(living)} of them live on" if living else ""
            log.info("round %d: started %s%s, store at %s", assignment.fence.round, ranks, on, assignment.store)
            self._obey((self._obeying, wanted))

    async def _end(self, action: End) -> Ending:
        if self._node.leaving:
            await self._talker.farewell(_FAREWELL)
        return Ending(code=action.code, node=self._node)

    # --- Talking -----------------------------------------------------------------------------------------------------------

    def _tell_news(self) -> None:
        self._talker.tell_news()

    def _gist(self) -> object | None:
        node = self._node
        if node.phase in (Phase.ENDING, Phase.ENDED) and not node.leaving:
            return None
        pids = tuple(worker.pid for worker in self._group.workers)
        told = (node.state, node.round, node.told_failures, node.failover, node.reason)
        measured = None if self._tuner is None else self._tuner.told
        asked = self._dumper.told, self._check, self._obeying.told, measured
        return *told, self._stores.offer, pids, self._looker.told, node.keepable, *asked

    @property
    def _check(self) -> CheckReport | None:
        return None if self._checker is None else self._checker.report

    def _heard(self, reply: Reply) -> None:
        """Do what an answer asks for beside what is decided on it."""
        self._looker.asked(reply.evidence if isinstance(reply, Continue) else 0, self._node.round)
        self._talker.hurry(reply.pace if isinstance(reply, Continue) else 0.0)
        if isinstance(reply, Continue) and reply.wish is not None:
            self._obey(self._obeying.heard(reply.wish))
        if isinstance(reply, (Assignment, Continue)) and self._tuner is not None:
            self._tuner.take(reply.tuned)
        if isinstance(reply, Continue) and reply.dump is not None:
            self._dumper.take(reply.dump)
        if isinstance(reply, Continue) and self._node.phase is Phase.JOINING:
            self._try(reply.check)

    def _try(self, task: CheckTask | None) -> None:
        if task is not None and self._checker is not None:
            self._checker.take(task)

    def _pace(self) -> float:
        plan = self._config.plan
        return min(plan.report_interval, plan.node_lease / 3, plan.fence_timeout / 3)

    def _hold(self, state: AgentState) -> float:
        if state is AgentState.LEAVING:
            return 0.0
        if state is AgentState.RUNNING:
            return self._talker.pace
        # An answer that is held back must not look like a coordinator that is gone.
        return min(self._config.plan.node_lease / 3, self._config.plan.fence_timeout / 3, MAX_HOLD)

    def _report(self) -> AgentReport:
        node, config = self._node, self._config
        state = node.state
        self._sequence += 1
        workers = self._round.reports()
        return AgentReport(
            job=config.plan.name,
            fence=node.fence,
            node=config.node,
            incarnation=config.incarnation,
            agent=self._name,
            host=config.told,
            local_world_size=config.plan.nproc_per_node,
            store=self._stores.offer,
            state=state,
            round=node.round,
            workers=workers,
            failures=with_few_tails(node.told_failures),
            failover=node.failover,
            failover_note=node.note,
            reason=node.reason,
            result=self._round.result() if state is AgentState.DONE else None,
            evidence=self._looker.found_in(node.round),
            keeps=len(node.keepable),
            resizable=node.keepable <= node.resizable,
            check=self._check,
            wish=self._obeying.told,
            learned=self._round.learned(),
            replicas=self._snapshots.replicas,
            dumps=self._snapshots.can_dump,
            dump=self._dumper.told,
            tolerance=self._reset_watch.foreign(),
            tuning=None if self._tuner is None else self._tuner.look(workers),
            free_ports=self._ports.offer if state is AgentState.WAITING else (),
            hold=self._hold(state),
            sequence=self._sequence,
        )
