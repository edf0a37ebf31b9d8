"""Frames and the proof of the secret, without sockets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.training.roles import frames
from rallypoint.training.roles.errors import AuthenticationError, ProtocolError, ValueTypeError
from rallypoint.training.roles.frames import Frame, FrameReader, FrameWriter, Kind

KEY = b"k" * 32
_HEADS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=8), max_size=3)
_FRAMES = st.builds(
    lambda kind, head, buffers: Frame(kind=kind, head=head, buffers=buffers),
    st.sampled_from(Kind),
    _HEADS,
    st.lists(st.binary(max_size=100), max_size=4),
)


def feed(reader: FrameReader, data: bytes, step: int = 1 << 20) -> list[Frame]:
    """Give bytes to a reader in pieces; return its frames."""
    found, at = [], 0
    while at < len(data):
        target = reader.target()
        assert len(target) > 0
        part = data[at : at + min(step, len(target))]
        target[: len(part)] = part
        at += len(part)
        frame = reader.received(len(part))
        if frame is not None:
            found.append(frame)
    return found


def written(frames_: list[Frame], key: bytes = KEY) -> bytes:
    """Return the bytes of some frames."""
    writer = FrameWriter(key)
    return b"".join(bytes(part) for frame in frames_ for part in writer.write(frame))


@given(st.lists(_FRAMES, max_size=4), st.integers(1, 50))
def test_frames_arrive_in_pieces_of_any_size(sent, step):
    """Kind, head and buffers, also empty ones, are those that were sent."""
    found = feed(FrameReader(KEY), written(sent), step)

    assert [(one.kind, one.head, [bytes(part) for part in one.buffers]) for one in found] == [
        (one.kind, one.head, list(one.buffers)) for one in sent
    ]


@given(_FRAMES, st.data())
def test_a_changed_frame_is_refused(sent, data):
    """A changed bit in kind, sizes, signature or head is an error, or the frame never completes."""
    text = bytearray(written([sent]))
    signed = len(text) - sum(len(part) for part in sent.buffers)
    at = data.draw(st.integers(0, signed - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))

    try:
        found = feed(FrameReader(KEY), bytes(text))
    except ProtocolError:
        found = []

    assert found == []


@given(st.lists(_FRAMES, min_size=2, max_size=2))
def test_a_frame_cannot_be_repeated_or_left_out(sent):
    """The number of the frame is part of its signature."""
    first, both = written(sent[:1]), written(sent)

    with pytest.raises(ProtocolError, match="signature"):
        feed(FrameReader(KEY), first + first)
    with pytest.raises(ProtocolError, match="signature"):
        feed(FrameReader(KEY), both[len(first) :])


@given(_FRAMES, st.integers(0, 200))
def test_a_truncated_frame_gives_nothing(sent, lost):
    """The reader waits for the rest, and returns no part of it."""
    text = written([sent])
    lost = min(lost + 1, len(text))

    assert feed(FrameReader(KEY), text[:-lost]) == []


@given(st.binary(max_size=300))
def test_random_bytes_allocate_nothing_large(data):
    """A stranger with a random key makes the reader allocate at most the size of a head."""
    reader = FrameReader(KEY)
    try:
        assert feed(reader, data) == []
    except ProtocolError:
        return
    assert len(reader.target()) <= frames.HEAD_LIMIT + 8 * 65536


def test_announced_sizes_are_limited_before_memory_is_allocated(monkeypatch):
    """Also a process with the secret cannot make another one allocate more than the limit."""
    big = written([Frame(kind=Kind.CALL, head={}, buffers=[b"x" * 2000, b"y" * 2000])])
    monkeypatch.setattr(frames, "MESSAGE_LIMIT", 3000)

    with pytest.raises(ProtocolError, match="a message of 4000 bytes"):
        feed(FrameReader(KEY), big)
    with pytest.raises(ValueTypeError, match="too large"):
        written([Frame(kind=Kind.CALL, head={}, buffers=[b"x" * 4000])])


def test_a_head_that_is_no_object_is_refused():
    """The signature alone is not enough."""
    with pytest.raises(ProtocolError, match="must be a JSON object"):
        feed(FrameReader(KEY), written([Frame(kind=Kind.CALL, head=[1])]))  # type: ignore[arg-type]


def prove(server_secret: bytes, client_secret: bytes) -> tuple[frames.Session, frames.Session]:
    """Return both sessions after the proof."""
    told = frames.greeting(b"s" * 16)
    answer = frames.answer_greeting(client_secret, told, b"c" * 16)
    proof, server = frames.check_answer(server_secret, b"s" * 16, answer)
    assert (len(told), len(answer), len(proof)) == (frames.GREETING_SIZE, frames.ANSWER_SIZE, frames.PROOF_SIZE)
    return server, frames.check_proof(client_secret, told, b"c" * 16, proof)


def test_both_sides_get_the_same_keys():
    """What one side signs the other verifies; the two directions have different keys."""
    server, client = prove(b"secret", b"secret")

    assert (server.sending, server.receiving) == (client.receiving, client.sending)
    assert server.sending != server.receiving
    assert "secret" not in repr(server)


def test_a_wrong_secret_is_refused():
    """The server refuses the client before the client has its proof."""
    with pytest.raises(AuthenticationError, match="caller does not have the secret"):
        prove(b"secret", b"other")


def test_a_server_without_the_secret_is_refused():
    """It cannot answer with the client's own proof, or one of its own."""
    told = frames.greeting(b"s" * 16)
    answer = frames.answer_greeting(b"secret", told, b"c" * 16)

    for forged in (answer[16:], b"\0" * 32):
        with pytest.raises(AuthenticationError, match="called process does not have the secret"):
            frames.check_proof(b"secret", told, b"c" * 16, forged)


def test_another_program_at_the_address_is_refused():
    """The error does not depend on what that program sends."""
    with pytest.raises(ProtocolError, match="does not support this version of calls"):
        frames.answer_greeting(b"secret", b"HTTP/1.1 400 Bad Request"[: frames.GREETING_SIZE], b"c" * 16)
