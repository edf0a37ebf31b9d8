"""The directory of the roles of a job: a process that ends with the ledger, at a port that stays the same."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.ray.cluster.directories import Directories, is_open
from tests.ray.sites import marked
from tests.waiting import eventually_async

pytestmark = [pytest.mark.live, pytest.mark.may_block("the hands of a test read /proc")]


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(path=tmp_path / "rl")
    made.path.mkdir()
    made.roles_secret.touch(mode=0o600)
    made.roles_secret.write_text(f"{secrets.token_hex(32)}\n")
    return made


@pytest.fixture
def uid() -> str:
    return secrets.token_hex(8)


@pytest.fixture
async def directories(uid: str) -> AsyncIterator[Directories]:
    made = Directories("127.0.0.1")
    yield made
    await made.close(uid)


async def test_it_is_started_again_at_its_port(directories: Directories, folder: JobFolder, uid: str) -> None:
    """Also by the next ledger; it runs once, however often it is asked for, and is gone once it was closed."""
    assert not is_open(folder)
    url = await directories.url(uid, folder)
    assert await directories.url(uid, folder) == url
    (first,) = marked(uid)
    os.kill(first.pid, signal.SIGKILL)
    await eventually_async(lambda: ended(uid, first.pid), why="the directory should end")

    assert is_open(folder)
    assert await directories.url(uid, folder) == url
    await directories.close(uid)
    assert marked(uid) == []
    following = Directories("127.0.0.1")
    try:
        assert await following.url(uid, folder) == url
    finally:
        await following.close(uid)


async def test_no_other_program_gets_the_port_of_a_directory(directories: Directories, folder: JobFolder, uid: str) -> None:
    """Fails if the port is free before the process listens, or after its end: another user of the machine could take it."""
    starting = asyncio.create_task(directories.url(uid, folder))
    await eventually_async(lambda: marked(uid), why="the directory should be started")
    port = json.loads((folder.path / "directory.json").read_text())["port"]
    with pytest.raises(OSError, match="Address already in use"):
        socket.create_server(("127.0.0.1", port))

    assert await starting == f"http://127.0.0.1:{port}"
    (process,) = marked(uid)
    os.kill(process.pid, signal.SIGKILL)
    await eventually_async(lambda: ended(uid, process.pid), why="the directory should end")
    with pytest.raises(OSError, match="Address already in use"):
        socket.create_server(("127.0.0.1", port))


async def test_a_directory_that_does_not_start_keeps_no_url(directories: Directories, folder: JobFolder, uid: str) -> None:
    """Fails if the ledger takes a socket that accepts connections for a directory that answers."""
    secret = folder.roles_secret.read_text()
    folder.roles_secret.write_text("\n")
    with pytest.raises(BackendError, match="job rl: the role directory of this job did not start"):
        await directories.url(uid, folder)

    folder.roles_secret.write_text(secret)
    assert (await directories.url(uid, folder)).startswith("http://127.0.0.1:")


async def ended(uid: str, pid: int) -> Any:
    await asyncio.sleep(0)  # the loop notes the end of its child
    return pid not in {process.pid for process in marked(uid)}


async def test_a_port_that_is_taken_is_left(directories: Directories, folder: JobFolder, uid: str) -> None:
    """Another program has it meanwhile: the directory has another port, and says so."""
    url = await directories.url(uid, folder)
    await directories.close(uid)
    port = int(url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        other = await directories.url(uid, folder)

    assert other != url
    assert await directories.url(uid, folder) == other
