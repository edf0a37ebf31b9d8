"""Per-rank logs on disk: their order, their cursors, and what is not finished yet."""

from __future__ import annotations

import os

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local import files, logs
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.logs import LogReader
from rallypoint.backends.local.store import Store
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import bounds, codec
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build
from rallypoint.wire.tail import LINE_BYTES

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
        reader, rest = written.reader(cursor=str(line.cursor)), []
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

    assert told(written.read(cursor=str(line.cursor))) == [(0, "out", "out 2"), (0, "err", "err 1")]


def test_logs_in_a_folder_that_the_job_names(written, tmp_path):
    """Found by the same attempts and incarnations."""
    named = tmp_path / "elsewhere"
    path = named / "digits/attempt-1/node-0.2/round-1"
    path.mkdir(parents=True)
    (path / "rank-0.out").write_text("here\n")
    written.folder.node(0, 1, 2).path.mkdir(parents=True)
    plan = build(Plan, **{**PLAN.__dict__, "log_dir": str(named)})

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


# --- Hostile logs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """Count the bytes that are read of logs."""
    read = []

    class Counting:
        def __init__(self, file):
            self._file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def __getattr__(self, name):
            return getattr(self._file, name)

        def read(self, size=-1):
            read.append(self._file.read(size))
            return read[-1]

        def readline(self, size=-1):
            read.append(self._file.readline(size))
            return read[-1]

    monkeypatch.setattr(logs, "open_below", lambda *path: Counting(files.open_below(*path)))
    return lambda: sum(map(len, read))


def test_the_tail_of_a_huge_log_reads_no_more_than_its_end(written, counted):
    """Neither one line of hundreds of MiB nor millions of lines are read for the last few of them."""
    written.write("first\n" + "x" * (64 << 20), round_=1)
    written.write("short\n" * (4 << 20), round_=2, stream="err")
    tail = written.reader(rank=0).tail(1000, final=True)

    assert counted() <= 5 << 20
    assert len(tail.lines) <= 1002
    assert max(len(line.text) for line in tail.lines) <= LINE_BYTES + 100


def test_a_line_without_an_end_is_read_in_pieces(written, counted):
    """One batch needs a bounded part of memory, whatever a script writes."""
    written.write("x" * (64 << 20) + "\nlast\n")
    reader = written.reader()
    first = reader.read(final=False)

    assert counted() <= 6 << 20
    assert {len(line.text) for line in first} == {LINE_BYTES}
    rest, size, last = first, 0, ""
    while rest:
        size += sum(len(line.text) for line in rest)
        last, rest = rest[-1].text, reader.read(final=False)
    assert (size, last) == ((64 << 20) + len("last"), "last")


def test_a_huge_line_that_is_not_finished_is_told_before_its_end(written):
    """Who follows a log sees it grow, and the memory does not."""
    written.write("x" * (LINE_BYTES + 10))

    assert [len(line.text) for line in written.read()] == [LINE_BYTES]


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(lambda log, secret: log.symlink_to(secret), id="the file is a link"),
        pytest.param(lambda log, secret: (log.parent.rmdir(), log.parent.symlink_to(secret.parent)), id="its folder is a link"),
        pytest.param(lambda log, _: os.mkfifo(log), id="a named pipe"),
        pytest.param(lambda log, _: log.mkdir(), id="a folder"),
    ],
)
@pytest.mark.parametrize("how", ["read", "tail"])
def test_what_is_no_file_of_the_job_is_not_read(written, tmp_path, plant, how):
    """A script writes to its job's folder, and whoever reads it may read more than the script may."""
    secret = tmp_path / "elsewhere" / "rank-0.out"
    secret.parent.mkdir()
    secret.write_text("JWT_SECRET=open sesame\n")
    log = written.folder.node(0, 1, 1).path / "logs/round-1/rank-0.out"
    log.parent.mkdir(parents=True)
    plant(log, secret)
    reader = written.reader()

    with pytest.raises(BackendError, match=r"rank-0\.out: .*(symbolic link|regular file)"):
        reader.read(final=True) if how == "read" else reader.tail(10, final=True)


@pytest.mark.parametrize("name", ["record.json", "plan.json", "status.json"])
def test_a_job_that_is_a_link_to_a_file_is_not_read(tmp_path, name):
    """And what is in that file is not in the error."""
    (tmp_path / "secret").write_text("JWT_SECRET=open sesame")
    folder = tmp_path / "jobs" / "digits"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(JobRecord.new(name="digits", uid="u", digest="d", owner="o", now=1.0).to_json())
    (folder / "plan.json").write_text(codec.dumps(PLAN))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    store = Store(home=tmp_path)

    with pytest.raises(BackendError, match="symbolic link") as refused:
        store.status("digits") if name == "status.json" else store.load("digits")
    assert "sesame" not in str(refused.value)


def test_a_status_that_is_too_large_is_not_read(tmp_path):
    """A file of the job must not fill the memory of who looks at it."""
    folder = tmp_path / "jobs" / "digits"
    folder.mkdir(parents=True)
    with (folder / "status.json").open("wb") as file:
        file.truncate(bounds.LARGEST + 1)

    with pytest.raises(BackendError, match=f"has more than {bounds.LARGEST} bytes, the largest allowed size"):
        Store(home=tmp_path).status("digits")


def test_logs_elsewhere_can_be_left_alone(written, tmp_path):
    """The job chooses `log_dir`; a process with rights that the job has not reads the job's own folder alone."""
    path = tmp_path / "elsewhere/digits/attempt-1/node-0.1/round-1"
    path.mkdir(parents=True)
    (path / "rank-0.out").write_text("chosen\n")
    written.write("own\n")
    plan = build(Plan, **{**PLAN.__dict__, "log_dir": str(tmp_path / "elsewhere")})
    reader = LogReader(written.folder, plan, rank=0, own_folder=True)

    assert told(reader.tail(10, final=True).lines) == [(0, "out", "own")]
