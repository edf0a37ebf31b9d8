"""Performs a scenario: comes to its moment, does its deed, lets everything recover, and says what was seen."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.airflow.deployment import TRIGGERERS, Deployment
from tests.airflow.gates import hold
from tests.airflow.processes import kill, processes
from tests.airflow.rest import RestError
from tests.airflow.scenario import Deed, Fate, Mode, Moment, Scenario, words
from tests.airflow.stage import OVER, SOON, TASK, Stage
from tests.waiting import eventually

__all__ = ["Result", "looked_at_again", "perform"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a scenario. `wrong` is what must not be, in words; `story` tells more of it; `job` is the job's name."""

    scenario: Scenario
    seen: str
    seconds: float
    wrong: tuple[str, ...] = ()
    story: str = ""
    job: str = ""


def perform(made: Deployment, scenario: Scenario, *, run: str) -> Result:
    """Perform one scenario in a DAG run of its own; the deployment is whole before and afterwards."""
    began = time.monotonic()
    stage = Stage(made=made, mode=scenario.mode, run=run, lease=scenario.lease)
    wrong: list[str] = []
    try:
        _play(stage, scenario)
    except (AssertionError, RestError) as error:
        wrong.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    wrong += _look_back(stage, scenario)
    task, fate = stage.task, stage.fate
    seen = words(
        None if task is None else task.state or "none",
        "still there" if fate is None else fate.value,
        stage.ledger("begins") if fate is Fate.SUCCEEDS else None,
    )
    story = stage.tell() if wrong else ""
    if wrong:
        made.rest.pause(stage.dag, paused=False)  # the next scenario needs the DAG, wherever this one broke off
    stage.tidy()
    made.heal()
    made.sweep()
    return Result(
        scenario=scenario, seen=seen, seconds=time.monotonic() - began, wrong=tuple(wrong), story=story, job=stage.job
    )


def looked_at_again(made: Deployment, result: Result) -> Result:
    """Return a result as it is after everything else: a job that never was may have come late."""
    if result.scenario.fate is not Fate.NEVER or not (made.home / "jobs" / result.job).exists():
        return result
    return dataclasses.replace(result, wrong=(*result.wrong, "a job came later"))


def _play(stage: Stage, scenario: Scenario) -> None:
    if scenario.at.trained:
        stage.may_end()
    with _come_to(stage, scenario.at):
        _Deeds(stage, scenario.at).do(scenario.deed)
    if scenario.then is not None:
        # A moment that was drawn: what happens there is another thing each time, and must always be right.
        time.sleep(scenario.then_after)
        _Deeds(stage, scenario.at).do(scenario.then)
    if scenario.fate is Fate.LEASE:
        # Nobody comes back before: a triggerer that starts anew may still find the trigger, and tell the job.
        stage.waits(lambda: stage.fate is Fate.LEASE, "its job should end by its lease")
    stage.made.heal()
    if scenario.fate is Fate.SUCCEEDS:
        _let_it_succeed(stage, scenario)


@contextlib.contextmanager
def _come_to(stage: Stage, moment: Moment) -> Iterator[None]:
    """Begin the run and come to its moment; who was held there goes on when the context is left."""
    with contextlib.ExitStack() as held:
        if moment.is_gate or moment is Moment.ROUND_FORMING:
            held.enter_context(hold(stage.folder, moment.value))
        if moment is Moment.QUEUED:
            held.enter_context(_nobody_works(stage))
        stage.begin()
        stage.comes_to(moment)
        if moment is Moment.TRIGGERER_DOWN:
            _Deeds(stage, moment).do(Deed.KILL_TRIGGERERS)
        yield


@contextlib.contextmanager
def _nobody_works(stage: Stage) -> Iterator[None]:
    """Keep the executor's workers from taking a task while the context lasts."""
    workers = [one.pid for one in stage.executor_workers()]
    kill(workers, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(workers, signal.SIGCONT)


class _Deeds:
    """Everything that can be done to a run at a moment."""

    def __init__(self, stage: Stage, moment: Moment) -> None:
        self._stage, self._made, self._at = stage, stage.made, moment

    def do(self, deed: Deed) -> None:
        """Do it, and wait for what belongs to it."""
        doing: dict[Deed, Callable[[], None]] = {
            Deed.KILL_WORKER: self._kill_worker,
            Deed.KILL_MACHINE: self._kill_machine,
            Deed.KILL_TRIGGERER: self._kill_triggerer,
            Deed.KILL_TRIGGERERS: self._kill_triggerers,
            Deed.STALL_TRIGGERER: self._stall_triggerer,
            Deed.KILL_SCHEDULER: self._kill_scheduler,
            Deed.CLEAR: self._clear,
            Deed.MARK_FAILED: lambda: self._mark("failed"),
            Deed.MARK_SUCCESS: lambda: self._mark("success"),
            Deed.DELETE_RUN: self._delete_run,
            Deed.PAUSE: lambda: self._made.rest.pause(self._stage.dag, paused=True),
        }
        doing[deed]()

    def _working(self) -> list[int]:
        """The task's process, where there is one."""
        if self._at.is_gate:
            return [self._stage.is_at(self._at)["pid"]]
        return [self._stage.watcher] if self._stage.mode is Mode.SYNC and self._stage.watcher else []

    def _kill_worker(self) -> None:
        if working := self._working():
            kill(working)
        else:
            # Not an idle one alone: it waits with the lock of the executor's queue, which would be locked for ever.
            self._made.components["scheduler"].kill()

    def _kill_machine(self) -> None:
        """Its supervisor first: it must not tell of the task's end."""
        working = self._working()
        kill(one.parent for one in processes() if one.pid in working)
        kill(working)

    def _kill_triggerer(self) -> None:
        victim, before = self._stage.triggerer, self._stage.watcher
        (victim or self._made.components[TRIGGERERS[0]]).kill()
        # In a random scenario the other may have been killed before.
        if victim is not None and not self._at.trained and any(self._made.components[name].up for name in TRIGGERERS):
            # Nobody starts it again before the other has the job.
            self._stage.waits(lambda: self._stage.watcher not in (0, before), "should be taken over by the other triggerer")

    def _kill_triggerers(self) -> None:
        for name in TRIGGERERS:
            self._made.components[name].kill()

    def _stall_triggerer(self) -> None:
        victim = self._stage.triggerer
        assert victim is not None
        before = self._made.rest.triggerer_of(self._stage.dag, self._stage.run, TASK)
        group = [one.pid for one in processes() if one.session == victim.pid]
        kill(group, signal.SIGSTOP)
        try:
            self._stage.waits(
                lambda: self._made.rest.triggerer_of(self._stage.dag, self._stage.run, TASK) not in (None, before),
                "its trigger should be given to the other triggerer",
            )
        finally:
            kill(group, signal.SIGCONT)
        # Its own `on_kill` is over when it has looked at its triggers again, for which it beats first.
        since = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=5)
        self._stage.waits(lambda: self._made.rest.beats("TriggererJob", since) >= len(TRIGGERERS), "both should beat again")

    def _kill_scheduler(self) -> None:
        """It alone: what its executor had begun goes on, until the next scheduler takes its tasks for orphans."""
        scheduler, before = self._made.components["scheduler"], self._made.rest.running("SchedulerJob")
        assert scheduler.process is not None
        scheduler.process.kill()
        scheduler.process.wait()
        scheduler.start()
        self._stage.waits(
            lambda: not before & self._made.rest.running("SchedulerJob"), "should be taken over by the next scheduler"
        )

    def _clear(self) -> None:
        self._made.rest.clear(self._stage.dag, self._stage.run, TASK)

    def _mark(self, state: str) -> None:
        self._made.rest.mark_task(self._stage.dag, self._stage.run, TASK, state)

    def _delete_run(self) -> None:
        rest, stage = self._made.rest, self._stage
        rest.mark_run(stage.dag, stage.run, "failed")
        rest.delete_run(stage.dag, stage.run)


def _let_it_succeed(stage: Stage, scenario: Scenario) -> None:
    """Wait until somebody has the job again, let it end, and wait for the end of the task."""
    paused = scenario.deed is Deed.PAUSE
    if paused and scenario.then is not None:
        # Whose process was lost as well has to be scheduled again, and Airflow schedules nothing of a DAG that is paused.
        stage.made.rest.pause(stage.dag, paused=False)
    if not scenario.at.trained:
        stage.waits(
            lambda: stage.is_watched_by_its_task and stage.ledger("begins") >= scenario.trainings,
            "its task should have the job again",
        )
    stage.may_end()
    if paused and scenario.then is None:
        stage.waits(lambda: (record := stage.record) is not None and record.finished, "its job should end while it is paused")
        stage.made.rest.pause(stage.dag, paused=False)
    stage.waits(lambda: (task := stage.task) is None or task.state in OVER, "its task should end")


def _look_back(stage: Stage, scenario: Scenario) -> list[str]:
    """Return what is wrong once everything has come to rest."""
    wrong = []
    allowed = (Fate.DELETED, Fate.LEASE) if scenario.fate is Fate.ENDED else (scenario.fate,)
    for what, holds in {
        f"the job should be: {scenario.fate.value}": lambda: stage.fate in allowed,
        "nothing should be left of the job": lambda: not stage.leftovers(),
    }.items():
        try:
            eventually(holds, timeout=SOON, every=0.2)
        except AssertionError:
            wrong.append(f"{what}; it is: {stage.fate and stage.fate.value}, {[one.pid for one in stage.leftovers()]}")
    task = stage.task
    if (state := None if task is None else task.state) != scenario.task:
        wrong.append(f"the task is {state}, not {scenario.task}")
    if stage.ledger("twice"):
        wrong.append("two processes trained at the same time")
    if len(stage.uids) > 1:
        wrong.append(f"there were {len(stage.uids)} jobs: {sorted(stage.uids)}")
    if scenario.fate is Fate.SUCCEEDS and stage.ledger("begins") != scenario.trainings:
        wrong.append(f"training began {stage.ledger('begins')} times, not {scenario.trainings}")
    return wrong
