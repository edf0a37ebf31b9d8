"""The port of the ledger, and names of files that actors report: input of processes that are not trusted."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from rallypoint.backends.ray.line import PATH

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
    application.router.add_post(PATH + "{method}", ledger._answer)
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
    from rallypoint.backends.ray.cluster.output import is_output

    assert is_output(name) is copied


def prepared(home: Path) -> str:
    """Return the key with which a ledger in an open folder answers."""
    from rallypoint.backends.ray.cluster.ledger import Ledger

    ledger = Ledger(str(home), "team", "127.0.0.1")
    ledger._prepare()
    return ledger._key


def link(key: Path, known: Path) -> None:
    key.symlink_to(known)


def hard_link(key: Path, known: Path) -> None:
    key.hardlink_to(known)


def written(mode: int) -> Callable[[Path, Path], None]:
    def plant(key: Path, known: Path) -> None:
        key.write_text(known.read_text())
        key.chmod(mode)

    return plant


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (written(0o666), "has mode 0666"),
        (written(0o644), "has mode 0644"),
        (written(0o640), "has mode 0640"),
        (link, "is a symbolic link"),
        (hard_link, "is no regular file with one name"),
        (lambda key, _: os.mkfifo(key, 0o600), "is no regular file"),
        (lambda key, _: key.mkdir(0o700), "is no regular file"),
    ],
    ids=["writable", "readable", "for a group", "link", "hard link", "pipe", "folder"],
)
def test_a_ledger_uses_no_key_that_others_know(tmp_path: Path, plant: Callable[[Path, Path], None], told: str) -> None:
    """Who knows the key runs programs on the cluster: another user linked it to a file of which all know the content."""
    home, known = tmp_path / "ledger", tmp_path / "HEAD"
    home.mkdir()
    home.chmod(0o777)
    known.write_text("b3eff555b3eff555b3eff555b3eff555b3eff555\n")
    known.chmod(0o600)
    plant(home / "ledger.key", known)

    with pytest.raises(PermissionError, match=f"the key file of the ledger {told}"):
        prepared(home)


def test_a_ledger_keeps_its_key_in_an_open_folder(tmp_path: Path) -> None:
    """Mounted volumes often are open."""
    tmp_path.chmod(0o777)

    first = prepared(tmp_path)

    assert prepared(tmp_path) == first
    assert len(first) >= 32
    assert (tmp_path / "ledger.key").stat().st_mode & 0o777 == 0o600


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
