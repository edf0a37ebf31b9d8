"""The line between agent and worker, both real ends over one socket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from pathlib import Path

from rallypoint.agent.node.lines import Lines
from rallypoint.training.line import Line
from rallypoint.wire import line as wire
from tests.waiting import eventually_async


class _Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.over = threading.Event()

    def leave(self, word: wire.Leave) -> None:
        self.heard.append(word)

    def assign(self, word: wire.Assign) -> None:
        self.heard.append(word)

    def order(self, word: wire.Order) -> None:
        self.heard.append(word)

    def closed(self) -> None:
        self.over.set()


def _hello(local_rank: int = 0, pid: int = 1) -> wire.Hello:
    return wire.Hello(rank=local_rank, local_rank=local_rank, round=1, pid=pid, abilities=(wire.Ability.IN_PLACE,))


def test_both_ends_hear_each_other(tmp_path: Path) -> None:
    """Hello, a word of the agent's, an answer; then the worker hangs up, and the socket goes with the agent."""

    async def talk() -> None:
        said: list[tuple[int, object]] = []
        lines = Lines(tmp_path / "line.sock", lambda rank, word: said.append((rank, word)))
        await lines.begin()
        assert lines.path.stat().st_mode & 0o777 == 0o700
        assert not lines.say(0, wire.Leave(round=1, reason="nobody is there"))
        ear = _Ear()
        line = await asyncio.to_thread(Line.connect, lines.path)
        line.listen(ear)
        line.say(_hello())
        await eventually_async(lambda: said == [(0, _hello())])
        assert lines.say(0, wire.Leave(round=1, reason="x"))
        assert lines.say(0, wire.Order(verb=wire.Verb.SAVE))
        await eventually_async(lambda: ear.heard == [wire.Leave(round=1, reason="x"), wire.Order(verb=wire.Verb.SAVE)])
        line.say(wire.Freed(round=1, step=3))
        await eventually_async(lambda: said[-1] == (0, wire.Freed(round=1, step=3)))
        await asyncio.to_thread(line.close)
        await eventually_async(lambda: said[-1] == (0, None))
        assert ear.over.is_set()
        lines.close()
        assert not lines.path.exists()

    asyncio.run(talk())


def test_a_worker_that_talks_nonsense_loses_its_line(tmp_path: Path) -> None:
    """It is the user's code: the agent hangs up and goes on; the next process of that rank is heard again."""

    async def talk() -> None:
        said: list[tuple[int, object]] = []
        lines = Lines(tmp_path / "line.sock", lambda rank, word: said.append((rank, word)))
        await lines.begin()
        reader, writer = await asyncio.open_unix_connection(str(lines.path))
        writer.write(wire.write(_hello(pid=1)) + b"nonsense\n")
        assert await reader.read() == b""
        writer.close()
        await eventually_async(lambda: said == [(0, _hello(pid=1)), (0, None)])
        first = await asyncio.to_thread(Line.connect, lines.path)
        first.say(_hello(pid=2))
        second = await asyncio.to_thread(Line.connect, lines.path)
        await eventually_async(lambda: said[-1] == (0, _hello(pid=2)))
        second.say(_hello(pid=3))
        await eventually_async(lambda: said[-1] == (0, _hello(pid=3)))
        first.say(wire.Freed(round=1))
        await asyncio.to_thread(first.close)
        second.say(wire.Freed(round=2))
        await eventually_async(lambda: said[-1] == (0, wire.Freed(round=2)))
        assert (0, wire.Freed(round=1)) not in said, "the rank belongs to the last who said hello"
        lines.close()
        await asyncio.to_thread(second.close)

    asyncio.run(talk())


def test_sockets_of_killed_agents_are_removed(tmp_path):
    """Those of this node alone, and none whose process lives; other files stay."""
    before, now = tmp_path / "0" / "attempt-1.1", tmp_path / "0" / "attempt-1.2"
    for folder in (before, now, tmp_path / "1" / "attempt-1.1"):
        folder.mkdir(parents=True)
    dead = 2**22 + 1  # above any process id
    for path in (
        before / f"line-{dead}.sock",
        before / f"line-{os.getpid()}.sock",
        before / "line-x.sock",
        before / "agent.log",
    ):
        path.touch()
    other = tmp_path / "1" / "attempt-1.1" / f"line-{dead}.sock"
    other.touch()

    async def run() -> None:
        lines = Lines(now / "line-1.sock", lambda *_: None)
        await lines.begin()
        lines.close()

    asyncio.run(run())

    assert sorted(path.name for path in before.iterdir()) == ["agent.log", f"line-{os.getpid()}.sock", "line-x.sock"]
    assert other.exists()


def test_the_socket_of_a_zombie_is_removed(tmp_path):
    """A killed agent whose shim was killed with it is a zombie until the init process reaps it."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    before, now = tmp_path / "attempt-1.1", tmp_path / "attempt-1.2"
    for folder in (before, now):
        folder.mkdir()
    (before / f"line-{child.pid}.sock").touch()

    async def run() -> None:
        lines = Lines(now / "line-1.sock", lambda *_: None)
        await lines.begin()
        lines.close()

    asyncio.run(run())

    assert list(before.iterdir()) == []
    assert child.wait() == 0


def test_an_agent_of_a_run_by_hand_removes_nothing_beside_its_folder(tmp_path):
    """Its folder is in that for temporary files, where the sockets of all users are."""
    other, own = tmp_path / "train_x" / f"line-{2**22 + 1}.sock", tmp_path / "train_y"
    for folder in (other.parent, own):
        folder.mkdir()
    other.touch()

    async def run() -> None:
        lines = Lines(own / "line-1.sock", lambda *_: None)
        await lines.begin()
        lines.close()

    asyncio.run(run())

    assert other.exists()
