"""A job on Ray from the terminal: submitted, looked at, submitted again, and deleted with all that it made."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.wire.env import HOME
from tests.cluster.jobs import nothing_left
from tests.ray.sites import RaySite
from tests.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]


async def rallypoint(site: RaySite, home: Path, *words: str) -> tuple[int, str]:
    """Return exit code and output of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rallypoint.cli.main", *words, *site.where.options()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, HOME: str(home)},
    )
    out, _ = await process.communicate()
    return int(process.returncode or 0), out.decode()


async def submissions(site: RaySite) -> list[str]:
    """Return the ids of the Ray jobs of a namespace."""
    dashboard = Cluster(Access(address=site.cluster.url, namespace=site.namespace))
    try:
        return [job["submission_id"] for job in await dashboard.jobs() if job["metadata"].get("rallypoint") == site.namespace]
    finally:
        await dashboard.close()


async def test_a_job_from_the_terminal(site: RaySite, home: Path, tmp_path: Path) -> None:
    """Each command finds the job by the options alone; a second submission starts nothing."""
    file = tmp_path / "job.yaml"
    file.write_text(site.job("digits", nodes=2).to_yaml())
    code, told = await rallypoint(site, home, "status", "digits")
    assert (code != 0, "not found" in told, await submissions(site)) == (True, True, [])

    code, told = await rallypoint(site, home, "submit", str(file))
    assert code == 0, told
    assert "Job digits submitted: 2 nodes x 1 process" in told
    assert f"Record: ledger of the Ray namespace {site.namespace}" in told
    uid = await site.uid("digits")

    async def trains() -> Any:
        return "rank 1 of 2 begins" in (await rallypoint(site, home, "logs", "digits"))[1]

    await eventually_async(trains, timeout=60.0, why="both ranks should begin")
    code, told = await rallypoint(site, home, "submit", str(file))
    assert code == 0, told
    assert "Job digits is already running, and nothing was started" in told
    assert await site.uid("digits") == uid
    code, told = await rallypoint(site, home, "status", "digits")
    assert (code, "digits" in told) == (0, True)
    code, told = await rallypoint(site, home, "explain", "digits")
    assert code == 0, told
    code, told = await rallypoint(site, home, "delete", "digits")
    assert code == 0, told
    await nothing_left(site, "digits")
    code, told = await rallypoint(site, home, "status", "digits")
    assert code != 0
    assert "not found" in told


#: A rank of an elastic role, and an instance of a simple one, end well only in the folder of their script.
IN_FOLDER = """\
import pathlib
assert pathlib.Path("beside.txt").exists(), pathlib.Path.cwd()
print("found in", pathlib.Path.cwd().name)
"""


async def test_a_script_in_a_folder_of_the_working_dir(site: RaySite, home: Path, tmp_path: Path) -> None:
    """The folder is uploaded; `workdir` is relative to it, and the script to `workdir`."""
    source = tmp_path / "project" / "src"
    source.mkdir(parents=True)
    (source / "train.py").write_text(IN_FOLDER)
    (source / "beside.txt").write_text("")
    document = {
        "name": "folders",
        "roles": {
            "trainer": {"entrypoint": "train.py", "workdir": "src"},
            "judge": {"entrypoint": "train.py", "workdir": "src", "launch": "simple"},
            "set": {"entrypoint": "train.py", "workdir": "src", "launch": "simple", "setup_commands": ["true"]},
        },
        "fault_tolerance": {"retry_limit": 0},
        "recovery": {"max_restarts": 0, "node_replacements": 0},
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document))
    folder = json.dumps({"working_dir": str(tmp_path / "project")})

    code, told = await rallypoint(site, home, "submit", "--watch", "--runtime-env", folder, str(file))
    assert code == 0, told
    _, printed = await rallypoint(site, home, "logs", "folders")
    assert printed.count("found in src") == 3, printed
    assert (await rallypoint(site, home, "delete", "folders"))[0] == 0
