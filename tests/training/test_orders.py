"""Orders of an agent, done by all ranks at one boundary."""

from __future__ import annotations

import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rallypoint.training.orders import Orders
from rallypoint.wire.line import Order, Verb
from tests.waiting import eventually


class MemoryStore:
    """torch's store, as far as it is used."""

    def __init__(self) -> None:
        self._lock, self._numbers, self._words = threading.Lock(), dict[str, int](), dict[str, str]()

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            self._numbers[key] = self._numbers.get(key, 0) + amount
            return self._numbers[key]

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._lock:
            if self._words.get(key, "") == expected:
                self._words[key] = desired
            return self._words[key].encode()


class WorldBrokenError(Exception):
    """The world broke while it was paused."""


class Script:
    """One rank's side: what it was asked, what it answered, and where it stood."""

    def __init__(self, store: MemoryStore, size: int = 1) -> None:
        self.heard: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self.orders = Orders(self.heard, self)
        self.store, self.size = store, size
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
        self.orders.boundary(step, self.store, self.size)


def test_nothing_is_done_before_all_have_heard() -> None:
    """And then by all at the boundary after the one where the first knew."""
    store = MemoryStore()
    first, second = Script(store, 2), Script(store, 2)
    first.tell(Verb.SAVE)

    for step in (1, 2):
        first.boundary(step)
        second.boundary(step)
    second.tell(Verb.SAVE)
    for step in (3, 4, 5):
        second.boundary(step)
        first.boundary(step)

    assert first.story == second.story == [("saved", 4, ""), ("save", 4, "")]


@pytest.mark.parametrize("seed", range(20))
def test_ranks_in_step_act_at_one_boundary(seed: int) -> None:
    """Whenever each hears, and however far apart they run within one step: nobody is left in a collective."""
    chance, size, steps = random.Random(seed), 4, 12
    store, collective = MemoryStore(), threading.Barrier(size)
    scripts = [Script(store, size) for _ in range(size)]
    hears = [chance.randrange(1, steps - 4) for _ in range(size)]

    def train(rank: int) -> None:
        for step in range(1, steps + 1):
            collective.wait(60)
            if step == hears[rank]:
                scripts[rank].tell(Verb.SAVE)
            scripts[rank].boundary(step)

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(train, range(size)))

    assert len({tuple(script.story) for script in scripts}) == 1
    assert [word for word, _, _ in scripts[0].story] == ["saved", "save"]


def test_a_pause_waits_for_resume() -> None:
    """And saves meanwhile, if it is asked to: all ranks stand at the same boundary."""
    script = Script(MemoryStore())
    script.tell(Verb.PAUSE)
    script.boundary(1)
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
    script.boundary(1)

    with pytest.raises(SystemExit) as caught:
        script.boundary(2)

    assert caught.value.code == 0
    assert script.story == [("saved", 2, ""), ("stop", 2, "")]


def test_what_cannot_be_saved_is_told() -> None:
    """And training goes on."""
    script = Script(MemoryStore())
    script.cannot_save = "disk full"
    script.tell(Verb.SAVE)

    script.boundary(1)
    script.boundary(2)

    assert script.story == [("save", 2, "OSError: disk full")]


def test_a_pause_ends_with_its_world() -> None:
    """Its peers are gone: it must not wait for a word that nobody sends."""
    script = Script(MemoryStore())
    script.tell(Verb.PAUSE)
    script.boundary(1)
    script.is_broken = True

    with pytest.raises(WorldBrokenError):
        script.boundary(2)


def test_another_world_begins_anew() -> None:
    """What was open is asked again by whoever still wants it."""
    script = Script(MemoryStore())
    script.tell(Verb.SAVE)
    script.boundary(1)

    script.orders.forget()

    assert not script.orders.open
    script.boundary(2)
    assert script.story == []
