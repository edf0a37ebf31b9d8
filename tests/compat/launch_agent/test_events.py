"""`Events`: words between a launcher and its workers, and what both do with them."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.compat.launch_agent import futex
from rallypoint.compat.launch_agent.calling import end_softly, require_events
from rallypoint.compat.launch_agent.events import NAMES, Events, EventsTimeoutError, Flag, StopAllTasks, _remove
from rallypoint.wire import env
from tests.waiting import PATIENCE, eventually

#: Seconds that no test waits where all is well.
LONG = 30 * PATIENCE


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def theirs(events: Events) -> Events:
    """What a worker has in its hands."""
    copy: Events = pickle.loads(pickle.dumps(events))
    return copy


def worker(code: str, events: Events) -> subprocess.Popen[bytes]:
    """A process that has the events, and runs `code`."""
    start = "import pickle, sys; events = pickle.loads(bytes.fromhex(sys.argv[1])); "
    return subprocess.Popen([sys.executable, "-c", start + code, pickle.dumps(events).hex()], stdout=subprocess.PIPE)


# --- The words -------------------------------------------------------------------------------------------------------------


def test_the_ten_names_are_there(events: Events) -> None:
    """Flags are clear and numbers unknown."""
    assert len(NAMES) == 10
    flags = [name for name in NAMES if not name.startswith("progress_bar")]
    assert not any(getattr(events, name).is_set() for name in flags)
    assert (events.progress_bar_iter.value, events.progress_bar_total.value) == (-1, -1)


def test_a_copy_has_the_same_words(events: Events) -> None:
    """In both directions, flags and numbers."""
    copy = theirs(events)

    copy.pause.set()
    events.progress_bar_total.value = 1 << 40

    assert (events.pause.is_set(), copy.progress_bar_total.value, copy.start_method) == (True, 1 << 40, "spawn")
    assert not copy.paused.is_set()


def test_another_process_wakes_who_waits(events: Events) -> None:
    """And is woken: the wait is over as soon as the word is there."""
    process = worker("events.paused.set(); print(events.resume.wait(300))", events)

    assert events.paused.wait(LONG)
    events.resume.set()

    assert process.communicate()[0] == b"True\n"


def test_a_wait_without_the_word_ends(events: Events) -> None:
    """After its limit, with False."""
    assert events.pause.wait(0.01) is False


def test_who_waits_is_woken_without_a_futex(events: Events, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
    """Where the kernel has none that we know, a wait looks again."""
    monkeypatch.setattr(futex, "_FUTEX", None)
    waited = pool.submit(events.resume.wait, LONG)

    theirs(events).resume.set()

    assert waited.result()


def test_the_file_goes_with_who_made_it() -> None:
    """And stays while only a copy goes."""
    events = Events()
    folder = events._folder

    copy = theirs(events)
    del copy
    gc.collect()
    assert (folder / "memory").stat().st_mode & 0o777 == 0o600

    del events
    gc.collect()
    assert not folder.exists()


def test_a_wrong_start_method_is_an_error() -> None:
    """It names the field, the value and what is allowed."""
    with pytest.raises(
        ValueError,
        match="start_method: 'exec' is not allowed; expected one of spawn, fork, forkserver",
    ):
        Events("exec")


# --- A step boundary -------------------------------------------------------------------------------------------------------


def test_nothing_asked_is_nothing_done(events: Events) -> None:
    """Only the step is told, by local rank 0."""
    events.poll(7, total=9, local_rank=0)
    events.poll(8, total=9, local_rank=1)

    assert (events.progress_bar_iter.value, events.progress_bar_total.value) == (7, 9)


def test_a_boundary_has_an_order(events: Events, pool: ThreadPoolExecutor) -> None:
    """The step, the pause, the checkpoint, the stop."""
    story: list[object] = []
    for flag in (events.pause, events.trigger_save_checkpoint, events.stop_all_tasks):
        flag.set()
    worker_ = pool.submit(
        theirs(events).poll,
        3,
        local_rank=0,
        save=lambda: story.append(("saves", events.progress_bar_iter.value, events.paused.is_set())),
        timeout=LONG,
    )
    assert events.wait_paused(1, LONG)

    story.append("paused")
    events.resume.set()

    with pytest.raises(StopAllTasks):
        worker_.result()
    assert story == ["paused", ("saves", 3, False)]


def test_paused_is_a_barrier(events: Events, pool: ThreadPoolExecutor) -> None:
    """The first worker sets `paused`; `wait_paused` counts all."""
    events.pause.set()
    first = pool.submit(theirs(events).poll, 1, local_rank=0, timeout=LONG)

    assert events.wait_paused(1, LONG)
    assert events.paused.is_set()
    assert not events.wait_paused(2, 0.01)
    second = pool.submit(theirs(events).poll, 1, local_rank=1, timeout=LONG)
    assert events.wait_paused(2, LONG)

    events.pause.clear()
    events.resume.set()
    assert (first.result(), second.result(), events.paused_workers()) == (None, None, 0)


def test_a_worker_that_died_in_its_pause_is_not_counted(events: Events) -> None:
    """And leaves nothing locked."""
    events.pause.set()
    process = worker("events.poll(1, local_rank=0)", events)
    assert events.wait_paused(1, LONG)

    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert not events.wait_paused(1, 0.01)
    with pytest.raises(EventsTimeoutError, match="this worker is paused and was not resumed within 0\\.01 s"):
        theirs(events).poll(1, local_rank=0, timeout=0.01)


def test_every_rank_saves_though_the_first_was_quick(events: Events) -> None:
    """Local rank 0 has cleared the order when the other comes to look."""
    first, second, saved = theirs(events), theirs(events), []
    events.trigger_save_checkpoint.set()

    first.poll(1, local_rank=0, save=lambda: saved.append(0))
    assert (events.trigger_save_checkpoint.is_set(), events.finished_save_checkpoint.is_set()) == (False, True)
    second.poll(1, local_rank=1, save=lambda: saved.append(1))
    second.poll(2, local_rank=1, save=lambda: saved.append(1))

    assert saved == [0, 1]


def test_a_request_of_the_past_is_not_for_who_comes_later(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the next round saves nothing by itself; one that comes while the request is open takes part."""
    events.trigger_save_checkpoint.set()
    during, saved = theirs(events), []
    events.poll(1, local_rank=0)
    during.poll(1, local_rank=1, save=lambda: saved.append(1))

    monkeypatch.setenv(env.ROUND, "2")
    theirs(events).poll(1, local_rank=1, save=lambda: saved.append(2))

    assert saved == [1]


def test_a_checkpoint_that_nobody_finishes_ends_the_wait(events: Events) -> None:
    """After the limit, with an error that names it."""
    copy = theirs(events)
    events.trigger_save_checkpoint.set()

    with pytest.raises(EventsTimeoutError, match="local rank 0 did not save its checkpoint within 0\\.01 s"):
        copy.poll(1, local_rank=1, timeout=0.01)


# --- One boundary of all workers -------------------------------------------------------------------------------------------


class Loop:
    """The loop of one worker of several, in a thread; `saved` and `stopped` are steps."""

    def __init__(self, events: Events, local_rank: int, workers: int, meet: Callable[[], object] | None = None) -> None:
        self._events, self._rank, self._workers, self._meet = theirs(events), local_rank, workers, meet
        self.saved: list[int] = []
        self.stopped = 0

    def train(self, steps: int = 1 << 40, *, first: int = 1) -> None:
        for step in range(first, first + steps):
            if self._meet is not None:
                self._meet()
            try:
                self._events.poll(
                    step,
                    local_rank=self._rank,
                    workers=self._workers,
                    save=lambda step=step: self.saved.append(step),  # type: ignore[misc]
                    timeout=LONG,
                )
            except StopAllTasks:
                self.stopped = step
                return


@pytest.mark.parametrize("collectives", [True, False], ids=["in step", "without collectives"])
def test_every_request_is_carried_out_at_one_boundary(collectives: bool, events: Events, pool: ThreadPoolExecutor) -> None:
    """However fast the workers are: a save, a save in a pause, another save, a stop."""
    barrier = threading.Barrier(3, timeout=LONG)
    loops = [Loop(events, rank, 3, barrier.wait if collectives else lambda: time.sleep(0.001)) for rank in range(3)]
    running = [pool.submit(loop.train) for loop in loops]

    for count in (1, 2, 3):
        events.finished_save_checkpoint.clear()
        if count == 2:
            events.resume.clear()
            events.pause.set()
            assert events.wait_paused(3, LONG)
        events.trigger_save_checkpoint.set()
        if count == 2:
            events.resume.set()
            events.pause.clear()
        assert events.finished_save_checkpoint.wait(LONG)
        eventually(lambda count=count: all(len(loop.saved) == count for loop in loops))  # type: ignore[misc]
    events.stop_all_tasks.set()

    for future in running:
        future.result(LONG)
    assert len({tuple(loop.saved) for loop in loops}) == 1
    assert len({loop.stopped for loop in loops}) == 1


def test_a_worker_that_has_finished_is_not_waited_for(events: Events, pool: ThreadPoolExecutor) -> None:
    """The others agree, pause and save without it, also where it was the one that answers."""
    first = Loop(events, 0, 2)
    first.train(3)
    del first
    gc.collect()
    second = Loop(events, 1, 2)
    running = pool.submit(second.train)

    assert end_softly(events, 2, within=LONG)

    running.result(LONG)
    assert second.saved == [second.stopped]


def test_a_pause_that_is_cleared_stops_nobody(events: Events) -> None:
    """The request is taken back before the workers reach its boundary."""
    events.pause.set()
    events.pause.clear()

    theirs(events).poll(1, local_rank=0, timeout=0.0)

    assert not events.paused.is_set()


def test_a_request_outlives_the_workers_that_had_joined(
    events: Events, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of the next round agree anew, on a boundary of theirs: the old one may be far ahead of their checkpoint."""
    old = [Loop(events, rank, 2) for rank in range(2)]
    for loop in old:
        loop.train(1, first=1000)
    events.trigger_save_checkpoint.set()
    for loop in old:
        loop.train(1, first=1001)  # both have joined, and the boundary is 1002
    del old, loop
    monkeypatch.setenv(env.ROUND, "2")

    new = [Loop(events, rank, 2) for rank in range(2)]
    running = [pool.submit(loop.train, 10) for loop in new]

    for future in running:
        future.result(LONG)
    assert new[0].saved == new[1].saved
    assert 1 < new[0].saved[0] <= 10


def test_a_worker_that_begins_while_a_request_is_made_takes_part(events: Events) -> None:
    """It sees the flag with its number, or neither: here it begins as soon as the flag can be seen."""
    worker_, begun = theirs(events), []

    def poll_once() -> None:
        with pytest.raises(StopAllTasks):
            worker_.poll(1, local_rank=0)
        begun.append(worker_._done)

    thread = threading.Thread(target=poll_once)

    def set_flag() -> None:
        Flag.set(events.stop_all_tasks)
        thread.start()
        thread.join(0.05)  # the worker looks before the request is counted

    events._count_request(2, set_flag)
    thread.join(LONG)

    assert begun == [1]


def test_steps_may_begin_anew_in_each_epoch(events: Events, pool: ThreadPoolExecutor) -> None:
    """A boundary that is agreed on after the last step of an epoch is the first of the next."""
    loops = [Loop(events, rank, 2) for rank in range(2)]
    for loop in loops:
        loop.train(9)
    events.trigger_save_checkpoint.set()
    running = [pool.submit(lambda loop=loop: (loop.train(1, first=10), loop.train(5))) for loop in loops]  # type: ignore[misc]

    for future in running:
        future.result(LONG)
    assert loops[0].saved == loops[1].saved != []
    assert loops[0].saved[0] < 6


# --- The launcher's part ---------------------------------------------------------------------------------------------------


def training(events: Events, local_rank: int, saved: list[int], steps: Callable[[], bool] = lambda: True) -> str:
    """A worker's loop."""
    step = 0
    while steps():
        step += 1
        try:
            events.poll(step, local_rank=local_rank, save=lambda: saved.append(local_rank), timeout=LONG)
        except StopAllTasks:
            return "stopped"
    return "ended"


def test_an_ending_saves_on_all_and_stops_all(events: Events, pool: ThreadPoolExecutor) -> None:
    """They save while all stand at a boundary, once each."""
    saved: list[int] = []
    loops: list[Future[str]] = [pool.submit(training, theirs(events), rank, saved) for rank in range(3)]

    assert end_softly(events, 3, within=LONG)

    assert [loop.result() for loop in loops] == ["stopped"] * 3
    assert sorted(saved) == [0, 1, 2]


def test_who_never_comes_to_a_boundary_costs_the_time_and_no_more(events: Events, pool: ThreadPoolExecutor) -> None:
    """The others are let go: nothing is saved of a world that is not whole, and all who come find the order to stop."""
    saved: list[int] = []
    loop = pool.submit(training, theirs(events), 0, saved)

    assert not end_softly(events, 2, within=0.05)

    assert (loop.result(), saved) == ("stopped", [])


def test_an_ending_can_be_cut_short(events: Events) -> None:
    """A second signal does."""
    assert not end_softly(events, 1, within=LONG, cut_short=lambda: True)


def test_events_of_other_kinds_are_taken(pool: ThreadPoolExecutor) -> None:
    """Any object with the ten names; there `paused` is the first worker's word."""
    flags = {name: threading.Event() for name in NAMES if not name.startswith("progress_bar")}
    numbers = {name: SimpleNamespace(value=-1) for name in NAMES if name.startswith("progress_bar")}
    events: Any = SimpleNamespace(**flags, **numbers)
    require_events(events)

    def work() -> bool:
        assert events.pause.wait(LONG)
        events.paused.set()
        assert events.trigger_save_checkpoint.wait(LONG)
        events.finished_save_checkpoint.set()
        return bool(events.stop_all_tasks.is_set())

    loop = pool.submit(work)

    assert end_softly(events, 1, within=LONG)
    assert loop.result()


def test_an_object_without_the_names_is_refused() -> None:
    """It is told which one is missing."""
    require_events(None)
    with pytest.raises(ValueError, match="ice_events: SimpleNamespace has no attribute pause"):
        require_events(SimpleNamespace())


def test_a_copy_of_another_process_does_not_remove_the_file(events: Events) -> None:
    """A forked process has what its parent would do at the end; only who made the file removes it."""
    folder = events._folder

    _remove(folder, os.getpid() + 1)
    assert folder.exists()
    _remove(folder, os.getpid())
    assert not folder.exists()
