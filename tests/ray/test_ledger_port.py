"""The port of the ledger, and names of files that actors report: input of processes that are not trusted."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from rallypoint.backends.ray.ledger_client import LedgerClient, LedgerLostError

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
    from rallypoint.backends.ray.cluster.jobs import ClusterJobs
    from rallypoint.backends.ray.cluster.ledger import Ledger
    from rallypoint.backends.ray.cluster.nodes import Nodes

    ledger = Ledger(str(tmp_path), "team", "127.0.0.1")
    ledger._key, ledger._jobs = KEY.decode(), ClusterJobs(tmp_path, host="127.0.0.1", nodes=Nodes(lambda _: None))
    application = web.Application(client_max_size=1 << 20)
    ledger._add_routes(application.router)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
        head = b"POST /v1/names HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body)
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
    from rallypoint.backends.ray.cluster.output import is_output

    assert is_output(name) is copied


async def test_each_ledger_proves_a_key_of_its_own(tmp_path: Path) -> None:
    """Fails if a key is that of an earlier ledger, which another program may know, or if the proof is that of another key."""
    from rallypoint.backends.ray.cluster.ledger import Ledger

    ledgers = [Ledger(str(tmp_path), "team", "127.0.0.1") for _ in range(2)]
    application = web.Application()
    ledgers[1]._add_routes(application.router)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ledgers[1]._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    clients = [LedgerClient(ledgers[1]._url, ledger._key) for ledger in ledgers]
    try:
        with pytest.raises(LedgerLostError, match="has not proven that it has the key of the ledger"):
            await clients[0].prove()
        await clients[1].prove()
    finally:
        for client in clients:
            await client.close()
        await runner.cleanup()

    assert [len(ledger._key) >= 32 for ledger in ledgers] == [True, True]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_the_key_is_printed_for_its_owner_alone(tmp_path: Path) -> None:
    """Ray's file with the output of a job is open to all users of the head node, who may have opened it before."""
    tmp_path.chmod(0o777)
    code = "from rallypoint.backends.ray.cluster import place; place.print_secret('KEY\\n')"
    output = tmp_path / "job-driver.log"
    output.write_text("earlier\n")
    with output.open("rb") as early, output.open("ab") as written:
        subprocess.run([sys.executable, "-c", code], stdout=written, check=True)
        seen = early.read()

    assert (seen, output.read_text()) == (b"earlier\n", "earlier\nKEY\n")
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["job-driver.log"]
