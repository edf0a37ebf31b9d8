"""A script that asks `stop_requested` once a step is paused there, over a real line to an agent that is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.training import orders
from rallypoint.training.stopping import Boundaries
from rallypoint.wire import env
from rallypoint.wire.line import Ability, Done, Hello, Order, Verb, read_from_worker, write
from tests.waiting import PATIENCE


class Agent:
    """The other end of the line."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(30 * PATIENCE)
        self._line: socket.socket | None = None

    def hear(self) -> object:
        if self._line is None:
            self._line = self._listener.accept()[0]
            self._line.settimeout(30 * PATIENCE)
            self._lines = self._line.makefile("rb")
        return read_from_worker(self._lines.readline())

    def tell(self, verb: Verb, number: int) -> None:
        assert self._line is not None
        self._line.sendall(write(Order(verb=verb, number=number)))

    def close(self) -> None:
        self._listener.close()
        if self._line is not None:
            self._line.shutdown(socket.SHUT_RDWR)
            self._lines.close()
            self._line.close()
            self._line = None


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    for name, value in {env.LINE: "line", "RANK": "3", "LOCAL_RANK": "1", env.ROUND: "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(orders, "_taken", False)
    agent = Agent(Path("line"))
    yield agent
    agent.close()


class Script:
    """Reaches boundaries in a thread, until it is to end."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.reached, self._boundaries = 0, Boundaries(self.ended.is_set)
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        while not self.ended.is_set():
            self._boundaries.reach()
            self.reached += 1

    def join(self) -> None:
        self._thread.join(30 * PATIENCE)
        assert not self._thread.is_alive()


def test_it_says_that_it_can_be_paused_and_no_more(agent: Agent) -> None:
    """It cannot live on in another world, and knows nothing to save."""
    script = Script()

    hello = agent.hear()

    assert isinstance(hello, Hello)
    assert (hello.rank, hello.local_rank, hello.round, hello.abilities) == (3, 1, 2, (Ability.PAUSE,))
    script.ended.set()
    script.join()


def test_it_stands_still_until_it_is_resumed(agent: Agent) -> None:
    """Between two answers it reaches no boundary."""
    script = Script()
    agent.hear()

    agent.tell(Verb.PAUSE, 1)
    assert agent.hear() == Done(verb=Verb.PAUSE, number=1)
    reached = script.reached
    agent.tell(Verb.SAVE, 2)
    refused = agent.hear()
    assert isinstance(refused, Done)
    assert "no save callback registered (State.on_save)" in refused.error
    assert script.reached == reached
    agent.tell(Verb.RESUME, 3)
    assert agent.hear() == Done(verb=Verb.RESUME, number=3)

    script.ended.set()
    script.join()


@pytest.mark.parametrize("how", ["SIGTERM", "agent"])
def test_a_pause_that_nobody_would_end_is_over(agent: Agent, how: str) -> None:
    """The script is to stop, or its agent is gone."""
    script = Script()
    agent.hear()
    agent.tell(Verb.PAUSE, 1)
    agent.hear()

    if how == "agent":
        reached = script.reached
        agent.close()
        while script.reached == reached:
            assert script._thread.is_alive()
    script.ended.set()

    script.join()


def test_a_state_has_the_boundaries_for_itself(agent: Agent) -> None:
    """Two who speak for one worker would contradict each other."""
    orders.take()
    boundaries = Boundaries(lambda: False)

    boundaries.reach()

    assert boundaries._line is None


def test_outside_a_job_it_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no line."""
    monkeypatch.delenv(env.LINE, raising=False)

    boundaries = Boundaries(lambda: False)

    boundaries.reach()

    assert boundaries._line is None
