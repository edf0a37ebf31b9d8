"""Snapshots that one node's agent keeps for another: what is taken, what is refused, and that nothing torn is ever there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.capabilities.snapshots.replica_frames import (
    NONCE,
    PROOF_TIME,
    Head,
    ReplicaError,
    read_answer,
    read_exactly,
    write_head,
)
from rallypoint.capabilities.snapshots.replica_server import ReplicaServer, ReplicaShelf
from rallypoint.capabilities.snapshots.replicas import ReplicaSender, send
from rallypoint.checkpoint.memory import Held, Part, area_of, everything, held, own, replica_area
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.replica import SOCKET, Offer, Settled
from tests.waiting import PATIENCE, eventually, eventually_async

SECRET, SIZE = "the job's secret", 3 << 20
FENCE = Fence(attempt=1, term=1, round=1)


def leave(folder: Path, step: int, *, rank: int = 1, fence: Fence = FENCE, size: int = SIZE, whole: bool = False) -> Held:
    """Leave a snapshot as a worker does."""
    area = area_of(folder, rank)
    area.mkdir(parents=True, exist_ok=True)
    path = area / f"{step}.bin"
    path.write_bytes(bytes([step]) * size)
    part = Part(
        job="ab12",
        granted=fence,
        step=step,
        rank=rank,
        world_size=2,
        whole=whole,
        torch="2.13.0",
        size=size,
        digest="not looked at here",
        values_at=0,
        values_size=0,
        tensors=(),
    )
    path.with_suffix(".json").write_text(codec.dumps(part))
    return next(one for one in held(area) if one.part.step == step)


@pytest.fixture
def shelf(tmp_path: Path) -> ReplicaShelf:
    folder = tmp_path / "neighbour"
    folder.mkdir()
    return ReplicaShelf(folder, limit=4 * SIZE, attempt=1)


@pytest.fixture
def target(shelf: ReplicaShelf) -> Iterator[str]:
    server = ReplicaServer(shelf, secret=SECRET)
    yield f"127.0.0.1:{server.start('127.0.0.1')}"
    server.close()


def head_of(one: Held, *ranks: int) -> Head:
    return Head(attempt=1, ranks=ranks or (1,), part=one.text.decode())


def kept(tmp_path: Path, rank: int = 1) -> list[int]:
    return [one.part.step for one in held(replica_area(tmp_path / "neighbour", rank))]


def test_a_snapshot_arrives_as_it_was_and_the_last_two_stay(tmp_path: Path, target: str) -> None:
    """Bytes and header; it lies beside the node's own, and is none of them."""
    sent = [leave(tmp_path / "here", step) for step in (2, 4, 6)]
    for one in sent:
        send(one, head_of(one), target, SECRET)

    assert kept(tmp_path) == [6, 4]
    newest = held(replica_area(tmp_path / "neighbour", 1))[0]
    assert newest.path.read_bytes() == bytes([6]) * SIZE
    assert newest.text == sent[-1].text
    found = everything(tmp_path / "neighbour")
    assert (len(found), own(found)) == (2, [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(
            {"attempt": 2},
            "snapshot of attempt 2 is not allowed; expected a snapshot of attempt 1, the current attempt",
            id="of another attempt",
        ),
        pytest.param({"ranks": (0,)}, "the sending node has ranks", id="of a rank that the node has not"),
        pytest.param({"part": "{}"}, "part: ", id="no header"),
    ],
)
def test_what_does_not_belong_here_is_refused(tmp_path: Path, target: str, change: dict[str, object], why: str) -> None:
    """And said to who sends it."""
    one = leave(tmp_path / "here", 2)
    with pytest.raises(ReplicaError, match=why):
        send(one, dataclasses.replace(head_of(one), **change), target, SECRET)  # type: ignore[arg-type]

    assert kept(tmp_path) == []


def test_a_stale_one_never_takes_the_place_of_a_newer(tmp_path: Path, target: str) -> None:
    """By fence first: a leftover of an older round may be steps ahead."""
    newer = leave(tmp_path / "here", 3, fence=Fence(attempt=1, term=1, round=2))
    send(newer, head_of(newer), target, SECRET)
    for step, fence in ((3, Fence(attempt=1, term=1, round=2)), (9, FENCE)):
        stale = leave(tmp_path / f"left-over-{step}", step, fence=fence)
        with pytest.raises(ReplicaError, match=f"step {step} .* is not newer than the stored snapshot of step 3"):
            send(stale, head_of(stale), target, SECRET)

    assert kept(tmp_path) == [3]


def test_without_the_secret_nothing_is_believed(tmp_path: Path, target: str) -> None:
    """Not even the header is read."""
    one = leave(tmp_path / "here", 2)
    with pytest.raises(ReplicaError, match="authentication failed"):
        send(one, head_of(one), target, "another secret")

    assert list((tmp_path / "neighbour").iterdir()) == []


@pytest.mark.parametrize("cut", ["torn", "damaged"])
def test_what_arrives_torn_or_damaged_is_not_kept(tmp_path: Path, target: str, cut: str) -> None:
    """The one before stays."""
    before = leave(tmp_path / "here", 2)
    send(before, head_of(before), target, SECRET)
    one = leave(tmp_path / "here", 4)
    host, port = target.split(":")
    with socket.create_connection((host, int(port))) as sock:
        nonce = read_exactly(sock, NONCE)
        sock.sendall(write_head(head_of(one), SECRET, nonce))
        read_answer(sock)
        sock.sendall(b"\4" * (SIZE if cut == "damaged" else SIZE // 2))
        sock.sendall(b"?" * 32 if cut == "damaged" else b"")
        sock.shutdown(socket.SHUT_WR)
        with pytest.raises(ReplicaError, match="does not match its digest" if cut == "damaged" else "received .* bytes"):
            read_answer(sock)

    assert kept(tmp_path) == [2]
    send(one, head_of(one), target, SECRET)
    assert kept(tmp_path) == [4, 2]


def test_beyond_the_limit_it_is_refused_with_the_numbers(tmp_path: Path, target: str, shelf: ReplicaShelf) -> None:
    """Counted twice from the beginning, since two are kept; what is there stays."""
    for rank in (1, 2):
        one = leave(tmp_path / "here", 2, rank=rank)
        send(one, head_of(one, 1, 2, 3), target, SECRET)
        one = leave(tmp_path / "here", 4, rank=rank)
        send(one, head_of(one, 1, 2, 3), target, SECRET)
    assert shelf.size == 4 * SIZE
    third = leave(tmp_path / "here", 4, rank=3)
    with pytest.raises(ReplicaError, match=f"two snapshots of {SIZE:,} bytes, this node would store {6 * SIZE:,} bytes"):
        send(third, head_of(third, 1, 2, 3), target, SECRET)

    assert (kept(tmp_path, 1), kept(tmp_path, 2), kept(tmp_path, 3)) == ([4, 2], [4, 2], [])


def test_the_ring_of_a_newer_round_gives_up_what_the_older_had(tmp_path: Path, target: str) -> None:
    """The node before this one has other ranks by now: the limit is for those."""
    old = leave(tmp_path / "here", 2, rank=1)
    send(old, head_of(old, 1), target, SECRET)
    new = leave(tmp_path / "here", 2, rank=0, fence=Fence(attempt=1, term=1, round=2))
    send(new, head_of(new, 0), target, SECRET)

    assert (kept(tmp_path, 0), replica_area(tmp_path / "neighbour", 1).exists()) == ([2], False)


def test_a_full_memory_is_said(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is asked for before a byte is taken."""
    monkeypatch.setattr("rallypoint.capabilities.snapshots.replica_server.free_memory", lambda _: 1000)
    one = leave(tmp_path / "here", 2)
    with pytest.raises(ReplicaError, match=f"not enough memory: {SIZE:,} bytes needed, 1,000 free"):
        send(one, head_of(one), target, SECRET)


@pytest.mark.may_block("the test itself leaves files and looks at them")
async def test_a_worker_is_told_when_the_neighbour_has_it_or_why_not(tmp_path: Path, target: str) -> None:
    """Over the socket in the folder; without a neighbour the answer comes at once."""
    folder = tmp_path / "here"
    leave(folder, 2)
    leave(folder, 4, whole=True)
    sender = ReplicaSender(folder, secret=SECRET, attempt=1)
    await sender.begin()
    reader, writer = await asyncio.open_unix_connection(str(folder / SOCKET))

    async def said(step: int) -> Settled:
        writer.write(codec.dumps(Offer(local_rank=1, fence=FENCE, step=step)).encode() + b"\n")
        return codec.loads(Settled, await reader.readline())

    assert (await said(2)).error == "no other node of this round stores snapshots of this node"
    sender.assigned(target, range(1, 2))
    assert await said(2) == Settled(step=2)
    assert kept(tmp_path) == [2]
    assert "already overwritten the snapshot" in (await said(3)).error
    assert (await said(4)).error == "not needed, because the state is not sharded and each node has a full copy"
    sender.assigned("127.0.0.1:1", range(1, 2))
    assert "127.0.0.1:1: " in (await said(2)).error
    writer.close()
    await eventually_async(lambda: not sender._open, why="its line is closed")
    sender.close()


def test_words_of_an_answer_that_is_none_are_an_error() -> None:
    """Who listens there may be anybody."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(json.dumps({"x": 1}).encode() + b"\n")
        with pytest.raises(ReplicaError, match="answer: "):
            read_answer(ours)


def test_a_closed_server_lets_go(tmp_path: Path, shelf: ReplicaShelf) -> None:
    """Who is in the middle is hung up on, and nobody else gets in."""
    server = ReplicaServer(shelf, secret=SECRET)
    port = server.start("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as sock:
        read_exactly(sock, NONCE)
        server.close()
        eventually(lambda: not server._open, why="nobody is served")
    one = leave(tmp_path / "here", 2)
    with pytest.raises(OSError, match="refused"):
        send(one, head_of(one), f"127.0.0.1:{port}", SECRET)


@contextlib.contextmanager
def strangers(target: str, number: int, first: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that send `first` and no more."""
    host, _, port = target.rpartition(":")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(number)]
        for sock in opened:
            with contextlib.suppress(OSError):
                sock.sendall(first)
        yield opened


@pytest.mark.parametrize("first", [b"", b"x" * 31, b"\x01\xff\xff\xff"], ids=["nothing", "half a proof", "a length"])
def test_strangers_keep_no_sender_out(tmp_path: Path, target: str, first: bytes) -> None:
    """A hundred that prove nothing: the oldest are ended, and a snapshot arrives at once."""
    one = leave(tmp_path / "here", 2)
    with strangers(target, 100, first) as opened:
        began = time.monotonic()
        send(one, head_of(one), target, SECRET)

        assert time.monotonic() - began < 2 * PATIENCE
        eventually(lambda: sum(map(has_ended, opened)) >= 84)
    assert kept(tmp_path) == [2]


def has_ended(sock: socket.socket) -> bool:
    """Return whether the other side has ended a connection."""
    sock.setblocking(False)
    try:
        while data := sock.recv(1 << 16):
            assert len(data) <= NONCE
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_a_handshake_has_a_deadline(target: str) -> None:
    """In all, and not from byte to byte."""
    with strangers(target, 1, b"") as (sock,):
        began = time.monotonic()

        def drip() -> bool:
            with contextlib.suppress(OSError):
                sock.send(b"x")
            return has_ended(sock)

        eventually(drip, every=0.3)
        assert PROOF_TIME - 1 <= time.monotonic() - began <= PROOF_TIME + PATIENCE


def test_without_a_proof_nothing_is_kept_in_memory(target: str) -> None:
    """A stranger that announces a head of 32 MiB and sends it is ended after 32 bytes."""
    with strangers(target, 1, (32 << 20).to_bytes(4, "big") + b"x" * 28) as (sock,):
        read_exactly(sock, NONCE)
        with pytest.raises(ReplicaError, match="authentication failed"):
            read_answer(sock)
        eventually(lambda: has_ended(sock))
