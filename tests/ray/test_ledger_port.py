"""The port of the ledger, and names of files that actors report: input of processes that are not trusted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
from aiohttp import web

from rallypoint.backends.ray import calls

pytest.importorskip("ray")

KEY = b"k" * 43


@pytest.mark.parametrize(
    ("given", "body", "status"),
    [
        (b"\xff\xfe", b"{}", b"401"),
        (b"", b"{}", b"401"),
        (KEY, b"[" * 100_000, b"400"),
        (KEY, b"[1]", b"400"),
        (KEY, b"\xff", b"400"),
        (KEY, b"{}", b"200"),
    ],
    ids=["not UTF-8", "no key", "deep", "no object", "no text", "right"],
)
async def test_a_request_of_any_form_has_an_answer_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: bytes, body: bytes, status: bytes
) -> None:
    """Each one wrote a traceback into the log of the ledger, also without the key."""
    from rallypoint.backends.ray.cluster.ledger import Ledger

    ledger = Ledger(str(tmp_path), "team", "127.0.0.1")
    ledger._key = KEY.decode()
    application = web.Application(client_max_size=1 << 20)
    application.router.add_post(calls.PATH + "{method}", ledger._answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
        head = b"POST /v1/ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body)
        writer.write(head + b"Authorization: Bearer " + given + b"\r\n\r\n" + body)
        answer = await reader.read()
        writer.close()
    finally:
        await runner.cleanup()

    assert answer.split(b" ")[1] == status
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        *((name, True) for name in ("agent.log", "logs/round-3/rank-0.out", "units/actor-0/1.1.1/exit.json")),
        ("units/actor-0/1.1.1/rank-0.err", True),
        *((name, False) for name in ("../job.json", "/etc/passwd", "logs/round-1/../../x", "logs/round-1/rank-0/../../x", "")),
        *((name, False) for name in ("units/../../exit.json", "units/a/b/start.json", "agent.log\n", "logs/round-1/rank-0\0")),
    ],
)
def test_only_output_of_the_node_is_copied(name: str, *, copied: bool) -> None:
    """A name with `..` left the folder of the node on the head."""
    from rallypoint.backends.ray.cluster.nodes import is_output

    assert is_output(name) is copied


@pytest.mark.parametrize("planted", [True, False])
def test_a_ledger_uses_no_key_that_others_can_write(tmp_path: Path, *, planted: bool) -> None:
    """Who knows the key runs programs on the cluster. The folder itself may be open, as mounted volumes often are."""
    from rallypoint.backends.ray.cluster.ledger import Ledger

    ledger = Ledger(str(tmp_path), "team", "127.0.0.1")
    ledger.home.mkdir(parents=True, exist_ok=True)
    ledger.home.chmod(0o777)
    (ledger.home / "ledger.key").write_text("known to others")
    (ledger.home / "ledger.key").chmod(0o666 if planted else 0o600)

    with pytest.raises(PermissionError, match="mode 0666") if planted else contextlib.nullcontext():
        ledger._prepare()
