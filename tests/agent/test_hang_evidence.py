"""What an agent finds of its workers: their own stacks, and what py-spy adds where it is installed."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from pathlib import Path

import pytest

from rallypoint.agent.node.health.evidence import Asked, Subject, read_spied, spy, take
from rallypoint.wire.hang import Evidence, RankSeen


def frame(name: str, path: str, line: int = 0) -> dict[str, object]:
    return {"name": name, "filename": path, "line": line}


LOCKED = {
    "os_thread_id": 7,
    "thread_name": "MainThread",
    "frames": [
        frame("0x7f00", "/lib/libc.so.6"),
        frame("PyThread_acquire_lock_timed", "/lib/libpython3.11.so"),
        frame("Loader.fetch", "/home/me/loader.py", 9),
        frame("wait", "/usr/lib/python3.11/threading.py", 320),
        frame("<module>", "/home/me/train.py", 3),
        frame("main", "/lib/libc.so.6"),
    ],
}
OTHER = {"os_thread_id": 8, "thread_name": "Thread-1", "frames": [frame("sleep", "/lib/libc.so.6")]}


def test_what_py_spy_tells_is_read() -> None:
    """The main thread's Python frames, the native ones below them, and every thread in the text."""
    spied = read_spied([OTHER, LOCKED], 7)

    assert spied is not None
    assert spied.frames == ("loader.py:9 fetch", "python/threading.py:320 wait", "train.py:3 <module>")
    assert spied.native == ("PyThread_acquire_lock_timed in libpython3.11.so",)
    assert "Thread 8 Thread-1 (py-spy):\n  sleep in libc.so.6" in spied.text


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({}, id="no list"),
        pytest.param([], id="nobody"),
        pytest.param([OTHER], id="no main thread"),
        pytest.param([3, {"os_thread_id": 7}], id="something else"),
    ],
)
def test_what_is_no_dump_tells_nothing(told: object) -> None:
    """Another version of it may say something else: nothing is lost but its frames."""
    assert read_spied(told, 7) is None


def program(folder: Path, *lines: str) -> str:
    """Write a stand-in for py-spy."""
    path = folder / "py-spy"
    path.write_text("\n".join((f"#!{sys.executable}", "import json, sys", *lines)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_stopped_process_is_not_waited_for(tmp_path: Path) -> None:
    """A tracer would wait for it: its memory alone is read, without native frames."""
    stand_in = program(
        tmp_path, "how = '--native' if '--native' in sys.argv else '--nonblocking'",
        "print(json.dumps([{'os_thread_id': int(sys.argv[-1]), 'frames': [{'name': how, 'filename': 'a.py', 'line': 1}]}]))",
    )  # fmt: skip

    found = asyncio.run(spy(stand_in, {7: "S", 8: "T", 9: "D"}, within=60.0))

    assert {pid: one.frames for pid, one in found.items()} == {
        7: ("a.py:1 --native",),
        8: ("a.py:1 --nonblocking",),
        9: ("a.py:1 --nonblocking",),
    }


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("import time", "time.sleep(3600)"), id="it takes too long"),
        pytest.param(("sys.exit('Permission denied')",), id="it may not trace"),
        pytest.param(("print('{')",), id="it says something else"),
    ],
)
def test_who_cannot_be_seen_is_left_out(tmp_path: Path, lines: tuple[str, ...]) -> None:
    """Evidence is due whatever becomes of py-spy."""
    assert asyncio.run(spy(program(tmp_path, *lines), {7: "S"}, within=0.5)) == {}
    assert asyncio.run(spy(str(tmp_path / "none"), {7: "S"}, within=0.5)) == {}


def test_who_does_not_answer_is_told_by_py_spy(tmp_path: Path) -> None:
    """Its frames stand in for the worker's own, and everything is in the file."""
    stand_in = program(tmp_path, f"print({json.dumps(json.dumps([LOCKED, OTHER]))})")
    asked = Asked(local_rank=0, pid=7, stacks=0, file=tmp_path / "stacks.txt")
    subject = Subject(rank=3, asked=asked, look=lambda: RankSeen(local_rank=0, pid=7, state="S"))

    def taken(found: str | None) -> Evidence:
        return asyncio.run(take(1, [subject], round_=2, file=tmp_path / "hang-1.txt", py_spy=lambda: found))

    [without] = taken(None).ranks
    [seen] = taken(stand_in).ranks

    assert (without.frames, without.note, without.native) == ((), "its Python did not register the stack-dump signal", ())
    assert (seen.frames[0], seen.note) == ("loader.py:9 fetch", "")
    assert seen.native == ("PyThread_acquire_lock_timed in libpython3.11.so",)
    assert "Thread 8 Thread-1 (py-spy):" in (tmp_path / "hang-1.txt").read_text()


def test_who_is_stopped_is_not_waited_for(tmp_path: Path) -> None:
    """It is told as such at once, and is not signalled: the answer would come when it goes on."""
    asked = Asked(local_rank=0, pid=os.getpid(), stacks=2, file=tmp_path / "stacks.txt")
    subject = Subject(rank=0, asked=asked, look=lambda: RankSeen(local_rank=0, pid=os.getpid(), state="T"))

    [seen] = asyncio.run(take(1, [subject], round_=1, file=tmp_path / "hang-1.txt", py_spy=lambda: None)).ranks

    assert seen.note == "the process is stopped and cannot answer"
