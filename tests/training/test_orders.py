"""Orders of an agent, done by all ranks at one boundary."""

from __future__ import annotations

import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rallypoint.training.orders import Orders, StoreBoundaries, World
from rallypoint.wire.line import Order, Verb
from tests.waiting import PATIENCE, eventually


class MemoryStore:
    """torch's store, as far as it is used."""

    def __init__(self) -> None:
        self._lock, self._numbers, self._words = threading.Lock(), dict[str, int](), dict[str, str]()

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            self._numbers[key] = self._numbers.get(key, 0) + amount
            return self._numbers[key]

    def set(self, key: str, value: str, /) -> None:
        with self._lock:
            self._words[key] = value

    def get(self, key: str, /) -> bytes:
        return self._words[key].encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._words for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._lock:
            if self._words.get(key, "") == expected:
                self._words[key] = desired
            return self._words[key].encode()


class WorldBrokenError(Exception):
    """The world broke while it was paused."""


class Script:
    """One rank's side: what it was asked, what it answered, and where it stood."""

    def __init__(self, store: MemoryStore, size: int = 1, rank: int = 0) -> None:
        self.heard: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self.orders = Orders(self.heard, self)
        self.world = World(rank=rank, size=size, boundaries=lambda number: StoreBoundaries(store, size, number))
        self.step: int | None = 0
        self.story: list[tuple[str, int | None, str]] = []
        self.is_broken, self.cannot_save = False, ""

    def done(self, order: Order, error: str = "") -> None:
        self.story.append((order.verb.value, self.step, error))

    def save(self) -> None:
        if self.cannot_save:
            raise OSError(self.cannot_save)
        self.story.append(("saved", self.step, ""))

    def broken(self) -> None:
        if self.is_broken:
            raise WorldBrokenError

    def tell(self, *verbs: Verb, number: int = 1) -> None:
        for place, verb in enumerate(verbs):
            self.heard.put(Order(verb=verb, number=number + place))

    def boundary(self, step: int) -> None:
        self.step = step
        self.orders.boundary(step, self.world)


@pytest.mark.parametrize("collectives", [True, False], ids=["in step", "without collectives"])
@pytest.mark.parametrize("seed", range(10))
def test_all_ranks_act_at_one_boundary(seed: int, collectives: bool) -> None:
    """Whenever each hears, and however fast it is: a rank that is ahead waits, and nobody is left in a collective."""
    chance, size, steps = random.Random(seed), 4, 12
    store, collective = MemoryStore(), threading.Barrier(size)
    scripts = [Script(store, size, rank) for rank in range(size)]
    hears = [chance.randrange(1, 3 if collectives else 4) for _ in range(size)]
    slow = [chance.choice((0.0, 0.001, 0.01)) for _ in range(size)]

    def train(rank: int) -> None:
        for step in range(1, steps + 1):
            if collectives:
                collective.wait(60 * PATIENCE)
            time.sleep(slow[rank])
            if step == hears[rank]:
                scripts[rank].tell(Verb.SAVE)
            scripts[rank].boundary(step)

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(train, range(size)))

    assert len({tuple(script.story) for script in scripts}) == 1
    assert [word for word, _, _ in scripts[0].story] == ["saved", "save"]


def test_a_rank_that_is_ahead_holds_until_the_boundary_is_known() -> None:
    """It joins at its first boundary, and passes no further one before the other has joined."""
    store = MemoryStore()
    ahead, behind = Script(store, 2, 0), Script(store, 2, 1)
    for script in (ahead, behind):
        script.tell(Verb.SAVE)
    ahead.boundary(9)

    holds = threading.Thread(target=ahead.boundary, args=(10,))
    holds.start()
    behind.boundary(3)
    holds.join()
    behind.boundary(10)

    assert ahead.story == behind.story == [("saved", 10, ""), ("save", 10, "")]


def test_a_request_that_some_ranks_never_hear_of_blocks_no_later_one() -> None:
    """An agent that receives two at once forwards the second alone."""
    store = MemoryStore()
    both, one = Script(store, 2, 0), Script(store, 2, 1)
    both.tell(Verb.SAVE, number=1)
    both.boundary(1)
    both.tell(Verb.PAUSE, number=2)
    one.tell(Verb.PAUSE, number=2)
    for script in (one, both):
        script.boundary(2)

    paused = [threading.Thread(target=script.boundary, args=(3,)) for script in (both, one)]
    for thread in paused:
        thread.start()
    eventually(lambda: both.story == one.story == [("pause", 3, "")])
    for script in (both, one):
        script.tell(Verb.RESUME, number=3)
    for thread in paused:
        thread.join()

    assert not both.orders.open
    assert not one.orders.open


def test_what_is_requested_while_some_are_paused_is_done_there() -> None:
    """Also by a rank that hears of it, and of the end of the pause, before it reaches the boundary of the pause."""
    store = MemoryStore()
    early, late = Script(store, 2, 0), Script(store, 2, 1)
    for script in (early, late):
        script.tell(Verb.PAUSE, number=1)
        script.boundary(1)
    late.boundary(1)
    paused = threading.Thread(target=early.boundary, args=(2,))
    paused.start()
    for script in (early, late):
        script.tell(Verb.SAVE, Verb.RESUME, number=2)
    paused.join()
    late.boundary(2)

    assert early.story == late.story == [("pause", 2, ""), ("saved", 2, ""), ("save", 2, ""), ("resume", 2, "")]


def test_a_pause_that_not_all_have_heard_of_ends_with_resume() -> None:
    """It is answered at once, and nothing stays open."""
    script = Script(MemoryStore(), 2)
    script.tell(Verb.PAUSE, number=1)
    script.boundary(1)
    script.tell(Verb.RESUME, number=2)
    script.boundary(2)

    assert (script.story, script.orders.open) == ([("resume", 2, "")], False)


def test_a_rank_that_holds_leaves_with_its_world() -> None:
    """A peer is lost meanwhile: the hold must not outlast the world."""
    script = Script(MemoryStore(), 2)
    script.tell(Verb.SAVE)
    script.boundary(1)
    script.is_broken = True

    with pytest.raises(WorldBrokenError):
        script.boundary(2)


def test_a_pause_waits_for_resume() -> None:
    """And saves meanwhile, if it is asked to: all ranks stand at the same boundary."""
    script = Script(MemoryStore())
    script.tell(Verb.PAUSE)
    paused = threading.Thread(target=script.boundary, args=(2,))
    paused.start()
    eventually(lambda: script.story == [("pause", 2, "")])

    script.tell(Verb.SAVE, Verb.RESUME, number=2)
    paused.join()

    assert script.story == [("pause", 2, ""), ("saved", 2, ""), ("save", 2, ""), ("resume", 2, "")]


def test_to_go_on_where_nothing_is_paused_is_done_already() -> None:
    """So that whoever asks twice is answered twice."""
    script = Script(MemoryStore())
    script.tell(Verb.RESUME)

    script.boundary(1)

    assert (script.story, script.orders.open) == ([("resume", 1, "")], False)


def test_stop_saves_and_ends_well() -> None:
    """With exit code 0: the job has succeeded."""
    script = Script(MemoryStore())
    script.tell(Verb.STOP)

    with pytest.raises(SystemExit) as caught:
        script.boundary(2)

    assert caught.value.code == 0
    assert script.story == [("saved", 2, ""), ("stop", 2, "")]


def test_what_cannot_be_saved_is_told() -> None:
    """And training goes on."""
    script = Script(MemoryStore())
    script.cannot_save = "disk full"
    script.tell(Verb.SAVE)

    script.boundary(2)

    assert script.story == [("save", 2, "OSError: disk full")]


def test_a_pause_ends_with_its_world() -> None:
    """Its peers are gone: it must not wait for a word that nobody sends."""
    script = Script(MemoryStore())
    script.tell(Verb.PAUSE)
    script.is_broken = True

    with pytest.raises(WorldBrokenError):
        script.boundary(2)


def test_another_world_begins_anew() -> None:
    """What was open is asked again by whoever still wants it."""
    script = Script(MemoryStore(), 2)
    script.tell(Verb.SAVE)
    script.boundary(1)

    script.orders.forget()

    assert not script.orders.open
    script.boundary(2)
    assert script.story == []
