"""What is the head of an HTTP request and what is not, by its first bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.transport.request_head import HEAD_LIMIT, NotHttpError, bad_request, check_head, complete_head

HEAD = b"POST /v1/report?a=b HTTP/1.1\r\nHost: x:80\r\nX-Rallypoint-Token: \xff t \r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize("size", range(1, len(HEAD)))
def test_a_head_may_come_in_parts(size: int) -> None:
    """Any part of it is incomplete, and never rejected."""
    assert complete_head(HEAD[:size]) is None


def test_a_head_ends_with_an_empty_line() -> None:
    """What follows is not part of it."""
    assert complete_head(HEAD + b"hello\r\n\r\n") == HEAD
    check_head(HEAD)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01", id="TLS"),
        pytest.param(b"A\x80\xff", id="binary"),
        pytest.param(b"get / HTTP/1.1", id="a method in small letters"),
        pytest.param(b"A" * 21, id="a long method"),
        pytest.param(b"GET " + b"/" * 4097, id="a long target"),
        pytest.param(b"GET /\x00", id="a target with a control character"),
        pytest.param(b"GET / HTTP/1.1\n", id="a line that ends without CR"),
        pytest.param(b"GET / HTTP/2.0\r\n", id="another version"),
        pytest.param(b"GET /\r\n", id="no version"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_LIMIT // 6), id="no end within the limit"),
    ],
)
def test_an_incomplete_head_is_rejected_at_once(data: bytes) -> None:
    """As soon as no further bytes can make it a request."""
    with pytest.raises(NotHttpError):
        complete_head(data)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nno colon\r\n\r\n", id="no colon"),
        pytest.param(b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", id="a folded line"),
        pytest.param(b"GET / HTTP/1.1\r\na: \x00\r\n\r\n", id="a control character"),
        pytest.param(b"GET / HTTP/1.1\r\na: " + b"x" * 8191 + b"\r\n\r\n", id="a long value"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", id="many headers"),
        pytest.param(b"GET /\r\n\r\n", id="no version"),
        pytest.param(b"\xff\r\n\r\n", id="binary"),
    ],
)
def test_a_complete_head_is_checked(head: bytes) -> None:
    """The request line, and each header."""
    assert complete_head(head) == head
    with pytest.raises(NotHttpError):
        check_head(head)


@given(st.binary(max_size=200))
def test_any_bytes_are_judged(data: bytes) -> None:
    """The only error is the one that is expected."""
    for judge in (complete_head, check_head):
        try:
            judge(data)
        except NotHttpError:
            continue


def test_the_answer_to_a_bad_request() -> None:
    """A complete response, which says that the connection ends."""
    head, _, body = bad_request("wrong: é").partition(b"\r\n\r\n")
    assert (head.split(b" ", 2)[1], body.decode()) == (b"400", "wrong: é")
    assert {b"Connection: close", b"Content-Length: %d" % len(body)} <= set(head.split(b"\r\n"))
