"""Calls between roles on Ray with `tls: auto`: under the certificates of the job, which the ledger renews."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rallypoint.backends.certificates import renewed
from rallypoint.backends.local import durable
from rallypoint.backends.ray.access import LEDGER
from rallypoint.supervision.record import Phase
from rallypoint.wire.tls import AUTHORITY_KEY, CERTIFICATE, KEY, PEER_FILES
from tests.cluster.roles_jobs import SIMPLE, RolesJob, roles_job
from tests.ray.sites import RaySite, states
from tests.ray.test_role_kills import JUDGE
from tests.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read certificates")]

#: Prints where its certificates and the directory are, then calls until the file `end` is there.
ASKER = textwrap.dedent("""
    import os, pathlib, time
    from rallypoint.training.roles import RoleGroup, wait_for

    print("tls:", os.environ["RALLYPOINT_ROLES_TLS"], flush=True)
    print("directory:", os.environ["RALLYPOINT_ROLES_URL"], flush=True)
    wait_for("judge", timeout=60)
    gate = pathlib.Path(os.environ["GATE"]) / "end"
    while not gate.exists():
        print("asked:", RoleGroup("judge", timeout=30).call("double", 21), flush=True)
        time.sleep(0.2)
""")


async def test_calls_are_under_tls(site: RaySite) -> None:
    """An elastic role and a simple one call a third; nothing in the clear is answered; a new certificate reaches all nodes."""
    command = [site.python, "-u", "-c"]
    asker = {"entrypoint": {"command": [*command, ASKER]}}
    judge = {**SIMPLE, "entrypoint": {"command": [*command, JUDGE]}, "total": 2, "driver": False}
    roles = {"elastic": {**asker, "launch": "elastic", "nodes": 1}, "simple": {**SIMPLE, **asker}, "judge": judge}
    async with roles_job(site, roles, tls="auto") as job:
        folders = [Path(await told(job, role, "tls: ")) for role in ("elastic", "simple")]
        await asked(job, 1)
        directory = urlsplit(await told(job, "simple", "directory: "))
        in_the_clear = await plain(str(directory.hostname), int(directory.port or 0))
        names = [sorted(path.name for path in folder.iterdir()) for folder in folders]

        own = site.storage / "jobs" / job.job.name / "tls"
        old = age(own, job.job.name)
        os.kill((await asyncio.to_thread(states, site.namespace))[LEDGER], signal.SIGKILL)
        await job.job.record()  # starts another ledger, which renews what is old

        async def arrived() -> Any:
            new = (own / CERTIFICATE).read_text()
            return new != old and all((folder / CERTIFICATE).read_text() == new for folder in folders)

        await eventually_async(arrived, timeout=60.0, every=0.2, why="the new certificate should be on all nodes")
        await asked(job, await answers(job, "simple") + 3)
        (site.gate / "end").touch()
        record = await job.job.over()

    assert record.phase is Phase.SUCCEEDED
    assert in_the_clear.partition(b" ")[2][:3] == b"400", in_the_clear
    assert in_the_clear.endswith(b"s of this job"), in_the_clear
    assert names == [sorted(PEER_FILES)] * 2


def age(folder: Path, job: str) -> str:
    """Replace a certificate by one that has been in use for eleven days; return it."""
    files = {name: (folder / name).read_text() for name in (*PEER_FILES, AUTHORITY_KEY)}
    older = renewed(files, job, time.time() - 11 * 86400.0)
    for name in (KEY, CERTIFICATE):
        durable.write_text(str(folder / name), older[name])
    return older[CERTIFICATE]


async def plain(host: str, port: int) -> bytes:
    """Return what a server answers to a request without TLS."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /v1/entries HTTP/1.1\r\nHost: directory\r\n\r\n")
        return await asyncio.wait_for(reader.read(4096), 30.0)
    finally:
        writer.close()


async def told(job: RolesJob, role: str, start: str) -> str:
    """Return what follows `start` in the output of a role, once it is there."""
    found: list[str] = []

    async def there() -> Any:
        found[:] = [text for line in await job.output(role) if (text := line.partition(start)[2])]
        return found

    await eventually_async(there, timeout=60.0, every=0.2, why=f"{role} should print {start!r}")
    return found[0]


async def answers(job: RolesJob, role: str) -> int:
    return sum("asked: [42, 42]" in line for line in await job.output(role))


async def asked(job: RolesJob, number: int) -> None:
    async def there() -> Any:
        return [await answers(job, role) >= number for role in ("elastic", "simple")] == [True, True]

    await eventually_async(there, timeout=60.0, every=0.2, why=f"both roles should have {number} answers")
