"""The lock of a job's record, which the script of the job can hold as long as it likes."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from rallypoint.backends.local import durable
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.store import LockedError
from rallypoint.job import load_job


@pytest.fixture
def locked_jobs(tmp_path):
    """Forty jobs, whose scripts hold the locks of their records."""
    backend = LocalBackend(tmp_path)
    drawn = [backend.plan(load_job(name=f"job-{number}", entrypoint=["true"])) for number in range(40)]
    stored = [asyncio.run(backend.submit(blueprint, owner="me")) for blueprint in drawn]
    locks = [JobFolder(path=tmp_path / "jobs" / one.record.name).record_lock for one in stored]
    held = [durable.try_lock(str(lock)) for lock in locks]
    yield backend, stored, locks
    for descriptor in held:
        assert descriptor is not None
        os.close(descriptor)


async def test_a_lock_that_is_never_released_is_an_error(locked_jobs, monkeypatch):
    """Its supervisor waits, but no thread does: other triggers of the triggerer have few."""
    monkeypatch.setattr("rallypoint.backends.local.backend._LOCKED", 1.0)
    backend, stored, locks = locked_jobs
    saving = [asyncio.create_task(backend.save(one.record, version=one.version)) for one in stored]
    waited = [await duration(asyncio.to_thread(time.time)) for _ in range(10)]
    failed = await asyncio.gather(*saving, return_exceptions=True)

    assert min(waited) < 0.2
    assert {type(error) for error in failed} == {LockedError}
    assert all(str(error).startswith(f"{lock}: another process has locked") for error, lock in zip(failed, locks, strict=True))


async def duration(work) -> float:
    """Return the seconds that something takes."""
    begun = time.monotonic()
    await work
    return time.monotonic() - begun
