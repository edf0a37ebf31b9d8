"""A sample of the behaviours on a real Ray cluster, for `make test`; all of them are in `make test-all`."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from rallypoint.backends.ray.line import LINE
from rallypoint.job import load_job
from tests.cluster.test_behaviours import (  # noqa: F401  collected here once more, with the site of this package
    test_a_killed_worker_is_started_again_in_place,
)
from tests.cluster.test_roles import test_a_driver_ends_while_servers_loop  # noqa: F401  as above
from tests.ray.sites import RaySite

pytestmark = pytest.mark.may_block("the hands of a test read /proc")


async def test_no_other_user_of_the_head_node_can_read_the_key(site: RaySite) -> None:
    """Ray's folder of a session is open to all of them."""
    backend = site.open()
    try:
        await backend.submit(backend.plan(load_job({"name": "digits", "entrypoint": "train.py"})), owner="try-1")
    finally:
        await backend.close()

    modes = await asyncio.to_thread(_modes_of_files_with_a_key)
    assert modes == {0o600}


def _modes_of_files_with_a_key() -> set[int]:
    files = (path for path in Path(os.environ["RAY_TMPDIR"]).rglob("*") if path.is_file())
    return {stat.S_IMODE(path.stat().st_mode) for path in files if LINE.encode() in path.read_bytes()}
