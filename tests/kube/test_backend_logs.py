"""Reading ranks' lines out of a pod's log, and going on where one stopped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.client import cut_blocks, lines_of, whole_lines
from rallypoint.backends.kubernetes.labels import Part
from rallypoint.backends.kubernetes.watching.follow import LogReader
from rallypoint.backends.kubernetes.watching.logs import Listener, Places, parse_cursor, second_of
from rallypoint.wire.podlog import front
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from rallypoint.backends.kubernetes.names import JobRef
    from rallypoint.backends.kubernetes.watching.cluster import Cluster
    from rallypoint.backends.kubernetes.watching.known_pods import Known


def told(at, rank, text, *, round_=1, stream="out"):
    return f"2026-01-02T03:04:{at}Z {front(round_, rank, stream)}{text}\n"


#: Three lines of rank 0 at one time, as a fast program writes them, and others between.
LOG = (
    told("05.1", 0, "a"),
    "2026-01-02T03:04:05.2Z the agent says something\n",
    told("05.25", 1, "b"),
    told("05.25", 0, "c"),
    told("05.25", 0, "d", stream="err"),
    told("05.25", 0, "e"),
    told("06", 1, "f", round_=2),
)


def heard(lines, attempt=1):
    listener = Listener(attempt)
    return [line for line in map(listener.hear, lines) if line is not None]


def texts(lines, places):
    return [places.take(line) for line in heard(lines) if places.is_new(line)]


def test_only_what_ranks_say_is_heard():
    """The agent's own lines are none of theirs, and a line that is not finished is kept back."""
    assert [line.text for line in heard((*LOG, told("07", 0, "g")[:-1]))] == ["a", "b", "c", "d", "e", "f"]


def test_reading_goes_on_after_any_line():
    """Wherever one stopped nothing is lost and nothing comes twice, though several lines have one time."""
    whole = texts(LOG, Places())
    for index, line in enumerate(whole):
        assert [each.text for each in texts(LOG, Places(str(line.cursor)))] == [each.text for each in whole[index + 1 :]]


def test_reading_goes_on_from_the_beginning_of_a_second():
    """A log that was cut is asked for from a second on; lines of one time keep their numbers."""
    first = texts(LOG[:4], Places())[-1]
    rest = [line for line in LOG if line >= "2026-01-02T03:04:05"]

    assert [line.text for line in texts(rest, Places(str(first.cursor)))] == ["d", "e", "f"]


def test_an_earlier_attempt_is_not_read_again():
    """A rank's lines of attempts and rounds before the one that was read are over."""
    places = Places()
    for line in heard(LOG, attempt=2):
        places.take(line)

    assert [line.text for line in heard(LOG, attempt=1) if places.is_new(line)] == []
    assert len([line for line in heard(LOG, attempt=3) if places.is_new(line)]) == 6


def test_lines_of_the_round_before_may_come_late():
    """Where many pods are read in turns, a rank's last lines may come from one pod after its first from another."""
    before, after = (
        heard((told("05", 0, "a"), told("06", 0, "b"))),
        heard((told("07", 0, "c", round_=2), told("08", 0, "d", round_=2))),
    )
    places = Places()
    found = [places.take(line) for line in (before[0], after[0], before[1], after[1]) if places.is_new(line)]

    assert [line.text for line in found] == ["a", "c", "b", "d"]
    assert [str(line.cursor) for line in found[1:3]] == [str(found[1].cursor)] * 2
    assert [line for line in (*before, *after) if places.is_new(line)] == []
    assert not any(map(Places(str(found[2].cursor)).is_new, (*before, after[0])))


@pytest.mark.parametrize(
    ("block", "second"),
    [
        pytest.param(LOG[0].encode() + LOG[-1].encode(), "2026-01-02T03:04:06Z", id="the last line"),
        pytest.param(b"2026-01-02T03:04:05.123456789+02:00 x\n", "2026-01-02T03:04:05+02:00", id="a zone"),
        pytest.param(b"2026-01-02T03:04:05Z cut", "2026-01-02T03:04:05Z", id="a line without an end"),
        pytest.param(b"junk\n", "", id="no time"),
        pytest.param(b"2026-01-02T03:04:05.1Z" + b"\n", "", id="nothing after the time"),
        pytest.param(b"", "", id="nothing"),
    ],
)
def test_a_log_is_read_on_from_the_second_of_its_last_line(block, second):
    """The API server takes whole seconds, in the zone of the machine."""
    assert second_of(block) == second


@pytest.mark.parametrize("cursor", [pytest.param("x", id="no cursor"), pytest.param("0=1.1.5.5", id="of another backend")])
def test_a_cursor_of_somebody_else_is_refused(cursor):
    """It names what was given."""
    with pytest.raises(BackendError, match="cursor: "):
        parse_cursor(cursor)


def test_times_without_a_fraction_come_in_order():
    """Container runtimes leave out zeros at the end; as text they would sort wrongly."""
    early, late = heard((told("05", 0, "a"), told("05.000001", 0, "b")))

    assert early.order < late.order


def test_forged_lines_of_ranks_that_the_job_does_not_have_are_ignored():
    """A script can write them to the log of its pod; each would make the cursor larger."""
    listener = Listener(1, ranks=2)
    lines = [told("05", rank, "x") for rank in (0, 1, 2, 4000, 10**11)]

    assert [line.rank for line in map(listener.hear, lines) if line is not None] == [0, 1]


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("", id="none"),
        pytest.param("2026-01-02T03:04:05.1ZZ", id="more than one"),
        pytest.param("9" * 50_000, id="a long one"),
    ],
)
def test_a_line_without_a_time_is_ignored(at):
    """Fails if a server can put a long text into the cursor that a triggerer stores, or a cursor that is not readable."""
    line = f"{at} {front(1, 0, 'out')}x\n"

    assert Listener(1).hear(line) is None
    assert Listener(1, alone=0).hear(line) is None


class _Pod:
    """A cluster with one pod, whose log is `text`."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        labels = SimpleNamespace(part=Part.NODE, attempt=1, node=0, incarnation=1)
        self.view = SimpleNamespace(name="p", uid="u", main="trainer", host="h", phase="Running", labels=labels, over=False)
        self.api, self.fresh = self, True
        self.cache = SimpleNamespace(pods_of=lambda _: [self.view])

    def path(self, *parts: str) -> str:
        return "/".join(parts)

    @contextlib.asynccontextmanager
    async def stream(self, path, *, query=None, silence=30.0):
        async def lines():
            for line in self._text.splitlines(keepends=True):
                yield line

        yield lines()


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, id="one rank", marks=pytest.mark.extended), pytest.param(4000, id="many ranks")]
)
async def test_a_large_log_is_read_in_threads(ranks):
    """100,000 lines took seconds on the event loop, and with many ranks hours: other triggers of the process waited."""
    text = b"".join(told(f"05.{n:09d}", n % ranks, "x").encode() for n in range(100_000))
    on_loop: list[str] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name in ("hear", "take", "is_new"):
            on_loop.append(frame.f_code.co_name)

    cluster, job = cast("Cluster", _Pod(text)), cast("JobRef", SimpleNamespace(uid="u"))
    reader = LogReader(cluster, job, rank=None, cursor="", ranks=4000)
    sys.setprofile(note)  # of this thread, which is that of the event loop
    try:
        lines = [line async for line in reader.read()]
    finally:
        sys.setprofile(None)

    assert on_loop == []
    assert len(lines) == 100_000
    assert str(lines[-1].cursor).count("=") == ranks


class _Followed(_Pod):
    """Its log comes in blocks, as fast as they are taken, and ends when the pod has."""

    def __init__(self, *blocks: bytes) -> None:
        super().__init__(b"")
        self._blocks = blocks
        self.parsing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def stream(self, path, *, query=None, silence=30.0):
        async def blocks():
            if query.get("follow"):
                for block in self._blocks:
                    yield block

        yield blocks()

    async def get(self, kind: str, name: str) -> None:
        return None


async def test_a_followed_log_is_parsed_in_a_thread():
    """A script that floods its output leaves other triggers of the process their turns; a short block is read at once."""
    flood = b"2026-01-01T00:00:04.1Z junk\n" * 50_000
    cluster = cast(
        "Cluster", _Followed(*[flood] * 4, told("05.1", 0, "long").encode() + flood, told("06.1", 0, "short").encode())
    )
    reader = LogReader(cluster, cast("JobRef", SimpleNamespace(uid="u")), rank=None, cursor="")
    heard: list[int] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name == "hear":
            heard.append(1)

    async def over(known: Known) -> Known:
        return dataclasses.replace(known, over=True)

    sys.setprofile(note)  # of this thread, which is that of the event loop
    try:
        lines = [line.text async for line in reader.follow(over)]
    finally:
        sys.setprofile(None)

    assert (lines, len(heard)) == (["long", "short"], 1)


@pytest.mark.parametrize("watched", [False, True], ids=["a log", "a watch"])
async def test_a_long_line_in_small_chunks_takes_linear_time(watched):
    """Fails if the line is copied for each few bytes that a server sends at a time: that took minutes."""

    async def chunks():
        for _ in range(1 << 17):
            yield b"1234567"
        yield b"\nnext\n"

    began = time.process_time()
    found = b"".join([block async for block in (whole_lines(chunks(), "/x") if watched else cut_blocks(chunks()))])

    line = b"1234567" * (1 << 17)
    assert found == (line if watched else line[: 64 << 10]) + b"\nnext\n"
    assert time.process_time() - began < 0.5 * PATIENCE


async def test_of_a_line_of_megabytes_only_the_beginning_is_read():
    """A progress bar may write no line end for hours; the lines after it are not lost."""

    async def chunks():
        yield b"one\ntw"
        yield b"o\n"
        for _ in range(40):
            yield b"x" * 65536
        yield b"\nthree\nlast"

    found = [line async for block in cut_blocks(chunks()) for line in lines_of(block)]

    assert found[:2] == [b"one\n", b"two\n"]
    assert found[2] == b"x" * (64 << 10) + b"\n"
    assert found[3:] == [b"three\n", b"last"]
