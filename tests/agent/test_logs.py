"""Which stream of which worker goes where."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.workers.logs import Streams, open_logs
from rallypoint.agent.workers.tee import DEFAULT_PREFIX, Tail, Tee, prefix_of


@pytest.mark.parametrize(
    ("streams", "filed", "teed"),
    [
        pytest.param(Streams(), [0, 0], [0, 0], id="all to the console"),
        pytest.param(Streams(redirects=3), [3, 3], [0, 0], id="all to files"),
        pytest.param(Streams(redirects=1, tee=2), [3, 3], [2, 2], id="stderr to both"),
        pytest.param(Streams(redirects_of={1: 2}), [0, 2], [0, 0], id="stderr of rank 1 to a file"),
        pytest.param(Streams(tee_of={0: 1}), [1, 0], [1, 0], id="stdout of rank 0 to both"),
        pytest.param(Streams(tee=3, console=frozenset({1})), [3, 3], [0, 3], id="only rank 1 on the console"),
        pytest.param(Streams(console=frozenset({0})), [0, 3], [0, 0], id="the others to files although nothing is redirected"),
    ],
)
def test_streams_by_local_rank(streams: Streams, filed: list[int], teed: list[int]) -> None:
    """In the numbers of torchrun: 0 none, 1 stdout, 2 stderr, 3 both."""
    assert [streams.filed(rank) for rank in (0, 1)] == filed
    assert [streams.teed(rank) for rank in (0, 1)] == teed


def test_log_files_are_named_by_rank_and_appended_to(tmp_path: Path) -> None:
    """Nothing that was written before is lost when a file is opened again."""
    (tmp_path / "rank-3.out").write_text("before\n")
    logs = open_logs(tmp_path, 3, 1)
    assert logs.out is not None
    os.write(logs.out, b"after\n")
    logs.close()

    assert (tmp_path / "rank-3.out").read_text() == "before\nafter\n"
    assert (logs.err, logs.paths.err, logs.paths.error_file) == (None, None, tmp_path / "rank-3.error.json")


def test_a_log_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The error names the folder and the reason."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"log folder .*file/round-1: cannot create the log files: Not a directory"):
        open_logs(tmp_path / "file" / "round-1", 0, 3)


def test_the_prefix_is_torchruns() -> None:
    """And its template may be replaced; what it does not know stays."""
    assert prefix_of(DEFAULT_PREFIX, role="trainer", rank=5, local_rank=1) == b"[trainer1]:"
    assert prefix_of("${rank}/${what} ", role="trainer", rank=5, local_rank=1) == b"5/${what} "


def test_a_tail_copies_complete_lines_and_the_rest_at_the_end(tmp_path: Path) -> None:
    """Half a line of one worker must not be mixed with a line of another."""
    path, console = tmp_path / "log", io.BytesIO()
    tail = Tail(path=path, prefix=b"[t0]:", to=console)
    tail.drain()
    path.write_bytes(b"one\ntw")
    tail.drain()
    assert console.getvalue() == b"[t0]:one\n"
    with path.open("ab") as file:
        file.write(b"o\nthree")
    tail.drain()
    tail.drain(final=True)

    assert console.getvalue() == b"[t0]:one\n[t0]:two\n[t0]:three\n"


async def test_a_tee_lets_everything_out_before_it_finishes(tmp_path: Path) -> None:
    """The last words of a worker are on the console when its round is over, and the next round starts afresh."""
    console, tee = io.BytesIO(), Tee()
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\nend")
        tee.add(Tail(path=tmp_path / name, prefix=f"{name}>".encode(), to=console))
    await tee.finish()
    await tee.finish()

    assert sorted(console.getvalue().splitlines()) == [b"a>a", b"a>end", b"b>b", b"b>end"]


async def test_a_broken_console_stops_nobody(tmp_path: Path) -> None:
    """A pipe whose reader went away must not end the training, nor keep other lines from their console."""

    class Closed(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    (tmp_path / "log").write_text("line\n")
    console = io.BytesIO()
    tee = Tee()
    tee.add(Tail(path=tmp_path / "log", prefix=b"", to=Closed()))
    tee.add(Tail(path=tmp_path / "log", prefix=b"", to=console))

    await tee.finish()

    assert console.getvalue() == b"line\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create a folder of another user")
def test_no_log_file_is_opened_in_a_folder_of_another_user(tmp_path: Path) -> None:
    """Another user has renamed a folder above it since it was claimed, and put an own one in its place."""
    theirs = tmp_path / "round-2"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, 1234, 1234)

    with pytest.raises(ConfigError, match="this folder belongs to user 1234, who could replace the files in it"):
        open_logs(theirs, 0, 3)
    assert list(theirs.iterdir()) == []
