"""A standard error that holds nobody up: order, bounds, and what is told of lines that found no room."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rallypoint.agent.stderr import Stderr
from tests.waiting import PATIENCE

#: More than a pipe holds.
FULL = 1 << 17


@dataclass
class Pipe:
    """Both ends of one; nobody reads until `read` is called."""

    reader: int
    writer: int

    def read(self) -> list[str]:
        """Return all lines to the end, once the writer's end is closed."""
        with os.fdopen(self.reader, encoding="utf-8") as file:
            return file.read().splitlines()

    def begin(self) -> tuple[threading.Thread, list[str]]:
        """Read in a thread; return it and where the lines go."""
        lines: list[str] = []
        thread = threading.Thread(target=lambda: lines.extend(self.read()))
        thread.start()
        return thread, lines


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(*os.pipe())
    yield made
    for fd in (made.reader, made.writer):
        try:
            os.close(fd)
        except OSError:  # the test has closed it
            continue


def ended(stream: Stderr, pipe: Pipe) -> bool:
    """Wait until all is written and close the pipe; return whether it was."""
    done = stream.drained(20.0 * PATIENCE)
    os.close(pipe.writer)
    return done


def test_lines_are_written_in_their_order(pipe: Pipe) -> None:
    """Whole ones, however they were put together, and the last one without an end, too."""
    stream = Stderr(pipe.writer)
    for number in range(100):
        print("line", number, file=stream)
    stream.write("the last")

    assert ended(stream, pipe)
    assert pipe.read() == [*(f"line {number}" for number in range(100)), "the last"]


def test_what_finds_no_room_is_told_in_its_place(pipe: Pipe) -> None:
    """Nobody waits for a reader; once there is one, what is written says how many lines are missing, and where."""
    stream = Stderr(pipe.writer, room=FULL)
    for number in range(1000):
        stream.write(f"{number:01000}\n")
    reading, lines = pipe.begin()
    assert stream.drained(20.0 * PATIENCE)
    stream.write("1000\n")

    assert ended(stream, pipe)
    reading.join()
    expected, missing = 0, 0
    for line in lines:
        told = re.fullmatch(r"rallypoint: dropped (\d+) log lines because stderr was blocked", line)
        if told is None:
            assert int(line) == expected
        else:
            missing += int(told[1])
        expected += 1 if told is None else int(told[1])
    assert expected == 1001
    assert 0 < missing <= 1000 - FULL // 1001


def test_the_end_waits_with_a_bound(pipe: Pipe) -> None:
    """A process whose lines nobody reads ends all the same."""
    stream = Stderr(pipe.writer)
    stream.write("x" * FULL + "\n")

    assert not stream.drained(0.05)


def test_a_pipe_without_a_reader_takes_everything(pipe: Pipe) -> None:
    """What nobody can ever read is not waited for."""
    os.close(pipe.reader)
    stream = Stderr(pipe.writer)
    stream.write("x" * FULL + "\n")

    assert stream.drained(20.0 * PATIENCE)


def test_text_that_no_encoding_knows_is_written_all_the_same(pipe: Pipe) -> None:
    """A log line must not end who writes it."""
    stream = Stderr(pipe.writer)
    stream.write("a \udc80 name\n")

    assert ended(stream, pipe)
    assert pipe.read() == ["a \\udc80 name"]
