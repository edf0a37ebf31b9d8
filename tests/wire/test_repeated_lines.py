"""Lines that repeat are counted, told of, and never lost without a word."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.repeated_lines import BURST, KEPT, REFILL, SAME, WINDOW, Counts, RepeatedLines

KEY = ("rallypoint.port", logging.ERROR, "connection of %s refused")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    """A logger with the filter, and what it has written."""

    def __init__(self, name: str) -> None:
        self.stream, self.clock = io.StringIO(), Clock()
        self.handler = logging.StreamHandler(self.stream)
        self.filter = RepeatedLines(self.handler.handle, clock=self.clock)
        self.handler.addFilter(self.filter)
        self.logger = logging.getLogger(f"tests.{name}")
        self.logger.propagate = False
        self.logger.addHandler(self.handler)

    def lines(self) -> list[str]:
        """Return what was written."""
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    log = Log(request.node.name)
    yield log
    log.filter.close()
    log.logger.removeHandler(log.handler)


def test_the_first_lines_are_written_and_the_last_are_counted(log: Log) -> None:
    """A line that is the same word for word; the summary says how many, and what the last one was."""
    for _ in range(1000):
        log.logger.error("no descriptor left")
    assert log.lines() == ["no descriptor left"] * SAME

    log.clock.now = 12.0
    log.filter.flush()
    assert log.lines()[SAME:] == [f"repeated {1000 - SAME} times in 12 s, last: no descriptor left"]
    log.filter.flush()
    assert len(log.lines()) == SAME + 1


def test_lines_of_many_ranks_are_all_written(log: Log) -> None:
    """A node with dozens of workers loses them at once, and each line names another one."""
    for rank in range(64):
        log.logger.warning("worker rank=%d was killed", rank)

    assert log.lines() == [f"worker rank={rank} was killed" for rank in range(64)]


def test_a_template_has_a_rate(log: Log) -> None:
    """A line for each stranger is as good as one that repeats; after the burst one is written every few seconds."""
    for number in range(5000):
        log.logger.warning("a connection of 10.0.0.1:%d is refused", number)
    assert len(log.lines()) == BURST

    log.clock.now = 10 * REFILL
    for number in range(5000):
        log.logger.warning("a connection of 10.0.0.1:%d is refused", number)
    assert len(log.lines()) == BURST + 10


def test_another_level_or_template_is_written(log: Log) -> None:
    """An error is never hidden by warnings that were many."""
    for _ in range(1000):
        log.logger.warning("%s", "the same")
    log.logger.error("%s", "the same")
    log.logger.warning("another one")

    assert log.lines()[SAME:] == ["the same", "another one"]


def test_a_line_that_cannot_be_formatted_harms_nothing(log: Log) -> None:
    """It is counted by its template, and left to the handler, which tells of it."""
    line = logging.LogRecord("rallypoint", logging.ERROR, "", 0, "%d of %d", ("x",), None)

    assert [log.filter.filter(line) for _ in range(SAME + 1)] == [True] * SAME + [False]


LINES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.floats(0, 30)), max_size=300)


@given(LINES)
def test_every_line_is_written_or_counted(lines: list[tuple[str, int, float]]) -> None:
    """However they come; and the first of each template is always written."""
    counts, now, written, told = Counts(), 0.0, 0, 0
    firsts: set[str] = set()
    for name, text, pause in lines:
        now += pause
        admitted = counts.admits((name, logging.INFO, name), f"{name} {text}", now)
        assert admitted or name in firsts
        firsts.add(name)
        written += admitted
        told += sum(one.missed for one in counts.summaries(now))
    told += sum(one.missed for one in counts.summaries(now, everything=True))

    assert written + told == len(lines)
    assert not counts.pending


def test_memory_is_bounded() -> None:
    """Ten thousand templates, each too often; what was left out is told all the same."""
    counts = Counts()
    for number in range(10_000):
        for _ in range(SAME + 1):
            counts.admits((*KEY[:2], f"template {number}"), "x" * 10_000, 0.0)

    told = counts.summaries(WINDOW)
    assert (len(counts), len(told)) == (KEPT, KEPT + 1)
    assert sum(one.missed for one in told) == 10_000
    assert max(len(one.last) for one in told) < 1000


PROGRAM = """
import logging, sys
from rallypoint.wire.repeated_lines import limit_repeated_lines
logging.basicConfig(stream=sys.stderr, level="INFO", format="%(name)s: %(message)s")
limit_repeated_lines(); limit_repeated_lines()
for _ in range(100):
    logging.getLogger("some.library").error("again", exc_info=ValueError("why"))
"""


def test_a_process_tells_at_its_end_what_it_left_out() -> None:
    """With one filter at the root, for every library."""
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stderr.splitlines()

    assert told == ["some.library: again", "ValueError: why"] * SAME + [
        f"some.library: repeated {100 - SAME} times in 0 s, last: again"
    ]
