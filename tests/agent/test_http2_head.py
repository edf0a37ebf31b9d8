"""The beginning of a gRPC connection: what grpcio sends, in parts, and what a hostile client may send."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.agent.transport.http2_head import (
    PREFACE,
    SETTINGS,
    AcknowledgementFilter,
    Header,
    NotHttp2Error,
    RequestHead,
    read_head,
    rejection,
)
from tests.agent.fakes import TOKEN

NAME = "x-rallypoint-token"

DATA, HEADERS, SETTINGS_KIND, PING, GOAWAY, WINDOW, CONTINUATION, UNKNOWN = 0, 1, 4, 6, 7, 8, 9, 77
ACK, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 0x20


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def literal(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


FIRST = PREFACE + frame(SETTINGS_KIND, 0, 0, b"\0\2" + bytes(4)) + frame(WINDOW, 0, 0, b"\0\0\1\0")
ACKNOWLEDGED = frame(SETTINGS_KIND, ACK, 0)
CALL = frame(HEADERS, END_HEADERS, 1, b"\x83\x86" + literal(NAME, TOKEN))
REST = frame(DATA, 0, 1, b"report")


def is_ours(data: bytes) -> bool:
    head = read_head(data)
    assert head is not None
    return Header(NAME, TOKEN).is_in(head)


def test_a_head_is_read_when_it_is_complete() -> None:
    """Fails if a part of a head is treated as a whole one or as an error."""
    whole = FIRST + ACKNOWLEDGED + CALL
    assert [read_head(whole[:size]) for size in range(len(whole))] == [None] * len(whole)
    assert is_ours(whole)
    assert is_ours(FIRST + CALL + ACKNOWLEDGED + REST)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(frame(UNKNOWN, 0, 0, b"x"), id="unknown"),
        pytest.param(frame(GOAWAY, 0, 0, bytes(8)), id="GOAWAY"),
        pytest.param(frame(CONTINUATION, END_HEADERS, 1, b"\x83"), id="CONTINUATION"),
        pytest.param(frame(DATA, 0, 1), id="DATA"),
        pytest.param(frame(HEADERS, 0, 1, b"\x83"), id="unfinished headers"),
        pytest.param(frame(HEADERS, END_HEADERS, 0, b"\x83"), id="headers without a stream"),
        pytest.param(frame(HEADERS, END_HEADERS, 2, b"\x83"), id="headers on a stream of the server"),
        pytest.param(b"\xff\xff\xff\1\4\0\0\0\1", id="long headers"),
        pytest.param(b"\xff\xff\xff\4\0\0\0\0\0", id="long settings"),
        pytest.param(frame(SETTINGS_KIND, 0, 1), id="settings of a stream"),
        pytest.param(frame(PING, 0, 0, bytes(8)) * 16, id="many PING frames"),
    ],
)
def test_other_frames_are_refused(frames: bytes) -> None:
    """Fails if a client without the token can send other frames, or long ones, or many."""
    with pytest.raises(NotHttp2Error):
        read_head(PREFACE + frame(SETTINGS_KIND, 0, 0) + frames)


def test_other_protocols_are_refused() -> None:
    """Fails if data that is not HTTP/2 is collected."""
    with pytest.raises(NotHttp2Error):
        read_head(b"G")


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"", id="no header"),
        pytest.param(literal(NAME, ""), id="empty"),
        pytest.param(literal(NAME, TOKEN[:-1]), id="too short"),
        pytest.param(literal(NAME, f"{TOKEN}x"), id="too long"),
        pytest.param(literal(NAME, "x" * len(TOKEN)), id="another"),
        pytest.param(b"\0" + bytes([len(NAME)]) + NAME.encode(), id="no value"),
        pytest.param(b"\0" + bytes([len(NAME)]) + NAME.encode() + b"\x7f\xff\xff\xff\xff", id="a huge length"),
        pytest.param(literal("x-other", TOKEN), id="another header"),
    ],
)
def test_a_request_without_the_token_is_not_ours(block: bytes) -> None:
    """Fails if a request needs less than the whole token."""
    assert not is_ours(PREFACE + frame(HEADERS, END_HEADERS, 1, block))


def test_padding_and_priority_do_not_hide_the_token() -> None:
    """Fails if the fields before and after the encoded headers are taken for headers."""
    body = b"\4" + bytes(5) + literal(NAME, TOKEN) + bytes(4)
    assert is_ours(PREFACE + frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, body))


def test_a_proxy_may_compress_the_token() -> None:
    """Fails if the Huffman code is not that of RFC 7541, Appendix C.4."""
    header = Header("www.example.com", "no-cache")
    encoded = bytes.fromhex("8cf1e3c2e5f23a6ba0ab90f4ff") + bytes.fromhex("86a8eb10649cbf")
    assert header.is_in(RequestHead(stream=1, headers=b"\x40" + encoded))
    assert not header.is_in(RequestHead(stream=1, headers=b"\x40" + encoded[:-1]))


@pytest.mark.parametrize("before", [True, False])
def test_only_the_first_acknowledgement_is_removed(before: bool) -> None:
    """Fails if a server gets the acknowledgement of settings that it has not sent, in whatever parts it arrives."""
    data = FIRST + (ACKNOWLEDGED + CALL if before else CALL + ACKNOWLEDGED) + REST + ACKNOWLEDGED
    for size in range(len(data)):
        remove = AcknowledgementFilter()
        passed, again = remove(data[:size])
        passed += remove(data[size:])[0] if again else data[size:]
        assert passed == FIRST + CALL + REST + ACKNOWLEDGED


def test_the_acknowledgement_is_removed_byte_by_byte() -> None:
    """Fails if the state between two parts is lost."""
    remove, passed, again = AcknowledgementFilter(), b"", True
    for byte in FIRST + ACKNOWLEDGED + REST:
        part, again = remove(bytes([byte])) if again else (bytes([byte]), False)
        passed += part
    assert passed == FIRST + REST


@pytest.mark.parametrize("token", ["a secret", "0123456789abcdef" * 4, "x" * 126, "y" * 127, "z" * 300])
async def test_grpcio_sends_the_token_as_it_is_expected(token: str) -> None:
    """Fails if grpcio encodes the token differently, and if it does not understand the rejection."""
    grpc = pytest.importorskip("grpc")
    heads, finished, ended = [], asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        data = b""
        while (head := read_head(data)) is None:
            data += await reader.read(1 << 16)
        heads.append(head)
        writer.write(rejection(head, "no token"))
        await finished.wait()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
            call = channel.stream_stream("/a/b")(metadata=((NAME, token),))
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert await call.details() == "no token"
        finished.set()
        await ended.wait()
    assert [Header(NAME, token).is_in(head) for head in heads] == [True]
