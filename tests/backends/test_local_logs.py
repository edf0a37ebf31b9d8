"""Per-rank logs on disk: their order, their cursors, and what is not finished yet."""

from __future__ import annotations

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import logs
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.logs import LogReader
from rallypoint.wire.plan import Entry, Plan

PLAN = Plan(name="digits", role="trainer", min_nodes=1, max_nodes=2, entry=Entry.SCRIPT, entrypoint="/train.py")


class Logs:
    """A job's log files."""

    def __init__(self, path):
        self.folder = JobFolder(path=path)

    def write(self, text, *, attempt=1, incarnation=1, node=0, round_=1, rank=0, stream="out"):
        path = self.folder.node(node, attempt, incarnation).path / f"logs/round-{round_}/rank-{rank}.{stream}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def reader(self, *, rank=None, cursor="", plan=PLAN):
        return LogReader(self.folder, plan, rank=rank, cursor=cursor)

    def read(self, *, final=False, **where):
        return self.reader(**where).read(final=final)


@pytest.fixture
def written(tmp_path):
    return Logs(tmp_path)


def told(lines):
    return [(line.rank, line.stream, line.text) for line in lines]


def test_attempts_then_rounds_then_ranks_then_streams(written):
    """By number, not by name: round 10 comes after round 2."""
    written.write("a2\n", attempt=2)
    written.write("r10\n", round_=10)
    written.write("r2\n", round_=2)
    written.write("one\n", rank=1, node=1)
    written.write("bad\n", stream="err")
    written.write("zero\n")

    assert told(written.read()) == [
        (0, "out", "zero"),
        (0, "err", "bad"),
        (1, "out", "one"),
        (0, "out", "r2"),
        (0, "out", "r10"),
        (0, "out", "a2"),
    ]


def test_an_unfinished_line_waits_for_its_end(written):
    """It is told once, whole; or as it is when nobody will finish it."""
    written.write("first\nsec")
    reader = written.reader()
    assert told(reader.read(final=False)) == [(0, "out", "first")]

    written.write("ond\nthi")
    assert told(reader.read(final=False)) == [(0, "out", "second")]
    assert told(reader.read(final=True)) == [(0, "out", "thi")]
    assert reader.read(final=True) == []


def test_a_round_that_is_over_finishes_its_lines(written):
    """A worker that was killed in mid-line is not waited for once the rank has a newer round."""
    written.write("killed in mid-li")
    written.write("next\n", round_=2)

    assert told(written.read()) == [(0, "out", "killed in mid-li"), (0, "out", "next")]


def test_every_cursor_of_every_reader_continues_exactly(written, monkeypatch):
    """Also where a batch ended, and across ranks, rounds and streams."""
    for round_ in (1, 2):
        for rank in (0, 1):
            written.write("".join(f"{round_} {rank} {n}\n" for n in range(5)), round_=round_, rank=rank)
            written.write("warning\n", round_=round_, rank=rank, stream="err")
    whole = written.read()
    assert len(whole) == 24
    monkeypatch.setattr(logs, "_BATCH", 7)

    for index, line in enumerate(whole):
        reader, rest = written.reader(cursor=line.cursor), []
        while batch := reader.read(final=False):
            assert len(batch) <= 7
            rest += batch
        assert rest == whole[index + 1 :]


def test_a_cursor_holds_while_the_files_grow(written):
    """What was written meanwhile comes next, and only that."""
    written.write("out 1\n")
    (line,) = written.read()
    written.write("err 1\n", stream="err")
    written.write("out 2\n")

    assert told(written.read(cursor=line.cursor)) == [(0, "out", "out 2"), (0, "err", "err 1")]


def test_logs_in_a_folder_that_the_job_names(written, tmp_path):
    """Found by the same attempts and incarnations."""
    named = tmp_path / "elsewhere"
    path = named / "digits/attempt-1/node-0.2/round-1"
    path.mkdir(parents=True)
    (path / "rank-0.out").write_text("here\n")
    written.folder.node(0, 1, 2).path.mkdir(parents=True)
    plan = Plan(**{**PLAN.__dict__, "log_dir": str(named)})

    assert told(written.read(plan=plan)) == [(0, "out", "here")]


@pytest.mark.parametrize("name", ["rank-0.error.json", "rank-x.out", "agent.log", "rank-0.out.tmp"])
def test_other_files_are_no_logs(written, name):
    """Only `rank-N.out` and `rank-N.err` are."""
    written.write("line\n")
    other = written.folder.node(0, 1, 1).path / "logs/round-1" / name
    other.write_text("no log\n")

    assert told(written.read()) == [(0, "out", "line")]


def test_bytes_that_are_no_text_are_shown_as_such(written):
    """A worker may write anything."""
    written.write("")
    (written.folder.node(0, 1, 1).path / "logs/round-1/rank-0.out").write_bytes(b"\xff ok\r\n")

    assert told(written.read()) == [(0, "out", "\ufffd ok")]


@pytest.mark.parametrize("cursor", ["7", "0=1.1", "0=1.1.5.0;x"])
def test_a_cursor_that_is_none(written, cursor):
    """Somebody mistyped it."""
    with pytest.raises(BackendError, match="cursor: "):
        written.reader(cursor=cursor)
