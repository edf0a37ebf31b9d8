"""The log of a pod: every worker's lines on one stream, and files that do not fill its disk."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from rallypoint.agent.node.copies import KEPT_ROUNDS, forget_old_rounds, pod_tails
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.setup import CACHES, cache_variables, home_is_writable
from rallypoint.agent.workers.group import Worker
from rallypoint.agent.workers.logs import RankLogs, Streams
from rallypoint.agent.workers.tee import Tail
from rallypoint.wire import podlog
from rallypoint.wire.podlog import LINE_BYTES, PodLine, parse_line
from tests.agent.test_worker_env import PLACE
from tests.wire.test_codec import PLAN

MIB = 1 << 20


def tail(path: Path, to: io.BytesIO, **more: object) -> Tail:
    front = podlog.front(2, 5, "out").encode()
    return Tail(path=path, prefix=front, to=to, cut=podlog.pieces, **more)  # type: ignore[arg-type]


def test_a_workers_lines_are_lines_of_the_pods_log(tmp_path: Path) -> None:
    """Each with its round, rank and stream; one that is not finished waits for its end."""
    path, to = tmp_path / "rank-5.out", io.BytesIO()
    path.write_bytes(b"first\n\nthird \xff\nunfin")
    copying = tail(path, to)
    copying.drain()
    said = [parse_line(line) for line in to.getvalue().decode(errors="replace").splitlines()]
    assert said == [
        PodLine(round=2, rank=5, stream="out", text=text) for text in ("first", "", "third \N{REPLACEMENT CHARACTER}")
    ]

    with path.open("ab") as file:
        file.write(b"ished")
    copying.drain(final=True)
    assert to.getvalue().endswith(b"rallypoint[2/5/out] unfinished\n")


def test_a_line_that_is_too_long_goes_on_in_the_next(tmp_path: Path) -> None:
    """Nothing of it is lost, and no runtime splits it without our front."""
    path, to = tmp_path / "rank-5.out", io.BytesIO()
    path.write_bytes(b"x" * 40_000 + b"\nend\n")
    tail(path, to).drain()
    lines = to.getvalue().splitlines(keepends=True)
    said = [parse_line(line.decode()) for line in lines]

    assert max(map(len, lines)) <= LINE_BYTES
    assert "".join(line.text for line in said[:-1] if line) == "x" * 40_000
    assert said[-1] == PodLine(round=2, rank=5, stream="out", text="end")


def test_what_was_copied_takes_no_room_for_long(tmp_path: Path) -> None:
    """The writer goes on where it was, the last lines can be read, and the disk holds little more than those."""
    path, to = tmp_path / "rank-5.out", io.BytesIO()
    copying = tail(path, to, keep=MIB)
    line = b"y" * 1023 + b"\n"
    for _ in range(16):
        with path.open("ab") as file:
            file.write(line * 1024)
        copying.drain()

    seen = path.stat()
    assert seen.st_size == 16 * MIB
    assert seen.st_blocks * 512 <= 3 * MIB
    assert path.read_bytes()[-MIB:] == line * 1024
    assert to.getvalue().count(b"\n") == 16 * 1024


def test_logs_that_somebody_asked_for_are_kept_whole(tmp_path: Path) -> None:
    """Without a bound nothing is given back."""
    path = tmp_path / "rank-5.out"
    path.write_bytes(b"z" * 1023 * 4096)
    tail(path, io.BytesIO()).drain()

    assert path.stat().st_blocks * 512 >= 1023 * 4096


@pytest.mark.parametrize(("bounded", "keep"), [pytest.param(True, MIB, id="bounded"), pytest.param(False, None, id="whole")])
def test_both_streams_go_to_the_pods_log(tmp_path: Path, bounded: bool, keep: int | None) -> None:
    """Whatever the plan says of the console: the pod's log is the only one that is left of it."""
    config = NodeConfig(
        plan=PLAN,
        attempt=1,
        node=0,
        incarnation=1,
        host="10.0.0.1",
        folder=tmp_path,
        log_folder=tmp_path,
        streams=Streams(redirects=3),
        pod=True,
        bounded=bounded,
    )
    logs = RankLogs(out=tmp_path / "o", err=tmp_path / "e", error_file=tmp_path / "x")
    tails = list(pod_tails(config, Worker(place=PLACE, logs=logs)))
    fronts = [f"rallypoint[{PLACE.assignment.fence.round}/{PLACE.rank}/{stream}] ".encode() for stream in ("out", "err")]

    assert [(t.path, t.prefix, t.keep) for t in tails] == [(logs.out, fronts[0], keep), (logs.err, fronts[1], keep)]


def test_old_rounds_are_forgotten(tmp_path: Path) -> None:
    """By their number, not by their name; what is no round stays."""
    for name in ("round-2", "round-9", "round-10", "round-11", "round-x", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.out").touch()

    forget_old_rounds(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "round-10", "round-11", "round-9", "round-x"]
    assert KEPT_ROUNDS == 3


# --- Caches ----------------------------------------------------------------------------------------------------------------


def test_without_a_home_each_cache_has_a_folder_of_the_node(tmp_path: Path) -> None:
    """What somebody has set stays; with a home of one's own nothing is set."""
    base = {"TRITON_CACHE_DIR": "/fast"}
    told = cache_variables(base, tmp_path, writable=False)

    assert told == {"XDG_CACHE_HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchinductor")}
    assert set(told) | set(base) == set(CACHES)
    assert cache_variables(base, tmp_path, writable=True) == {}


@pytest.mark.parametrize(
    ("home", "writable"),
    [
        pytest.param(None, False, id="unset"),
        pytest.param("", False, id="empty"),
        pytest.param("nowhere", False, id="not there"),
        pytest.param(".", True, id="one's own"),
    ],
)
def test_a_home_is_a_folder_that_can_be_written(tmp_path: Path, home: str | None, writable: bool) -> None:
    """Containers often have none."""
    base = {} if home is None else {"HOME": str(tmp_path / home) if home else ""}

    assert home_is_writable(base) is writable
