"""`Events`: words between a launcher and its workers, and what both do with them."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rallypoint.agent.launch import futex
from rallypoint.agent.launch.choreography import end_softly, require_events
from rallypoint.agent.launch.events import NAMES, Events, EventsTimeoutError, Flag, StopAllTasks, _remove
from tests.waiting import PATIENCE

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
    path = events._path

    copy = theirs(events)
    del copy
    gc.collect()
    assert path.stat().st_mode & 0o777 == 0o600

    del events
    gc.collect()
    assert not path.exists()


def test_a_wrong_start_method_is_an_error() -> None:
    """It names the field, the value and what is allowed."""
    with pytest.raises(ValueError, match="start_method: 'exec' is not allowed; expected one of spawn, fork, forkserver"):
        Events("exec")


# --- A step boundary -------------------------------------------------------------------------------------------------------


def test_nothing_asked_is_nothing_done(events: Events) -> None:
    """Only the step is told, by local rank 0."""
    events.poll(7, total=9, local_rank=0)
    events.poll(8, total=9, local_rank=1)

    assert (events.progress_bar_iter.value, events.progress_bar_total.value) == (7, 9)


class Told:
    """A flag that tells who calls it."""

    def __init__(self, name: str, flag: Flag, story: list[str]) -> None:
        self._name, self._flag, self._story = name, flag, story

    def __getattr__(self, call: str) -> Any:
        self._story.append(f"{self._name}.{call}")
        return getattr(self._flag, call)


def test_a_boundary_has_an_order(events: Events) -> None:
    """The step, the pause, the checkpoint, the stop."""
    story: list[str] = []
    for name in ("pause", "resume", "trigger_save_checkpoint", "stop_all_tasks"):
        getattr(events, name).set()
    for name in ("pause", "paused", "resume", "finished_save_checkpoint", "stop_all_tasks"):
        setattr(events, name, Told(name, getattr(events, name), story))

    with pytest.raises(StopAllTasks):
        events.poll(3, local_rank=0, save=lambda: story.append(f"save at {events.progress_bar_iter.value}"))

    assert story == [
        "pause.is_set",
        "paused.set",
        "resume.wait",
        "paused.clear",
        "save at 3",
        "finished_save_checkpoint.set",
        "stop_all_tasks.is_set",
    ]


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
    with pytest.raises(EventsTimeoutError, match=r"nobody resumed this worker for 0\.01 s"):
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


def test_an_order_of_the_past_is_not_for_who_comes_later(events: Events) -> None:
    """A worker that was restarted saves nothing by itself; one that comes while it is open takes part."""
    events.trigger_save_checkpoint.set()
    during, saved = theirs(events), []
    events.poll(1, local_rank=0)
    after = theirs(events)

    for worker_ in (during, after):
        worker_.poll(1, local_rank=1, save=lambda: saved.append(1))

    assert saved == [1]


def test_a_checkpoint_that_nobody_finishes_ends_the_wait(events: Events) -> None:
    """After the limit, with an error that names it."""
    copy = theirs(events)
    events.trigger_save_checkpoint.set()

    with pytest.raises(EventsTimeoutError, match=r"local rank 0 did not say within 0\.01 s"):
        copy.poll(1, local_rank=1, timeout=0.01)


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
    with pytest.raises(ValueError, match="ice_events: SimpleNamespace has no pause"):
        require_events(SimpleNamespace())


def test_a_copy_of_another_process_does_not_remove_the_file(events: Events) -> None:
    """A forked process has what its parent would do at the end; only who made the file removes it."""
    path = events._path

    _remove(path, os.getpid() + 1)
    assert path.exists()
    _remove(path, os.getpid())
    assert not path.exists()
