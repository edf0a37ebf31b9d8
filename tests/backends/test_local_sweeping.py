"""Folders of jobs that are over for long enough go; those of others stay."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.store import Hold, Store, sweep
from rallypoint.job import load_job
from rallypoint.supervision.record import Attempt, Phase
from tests.waiting import eventually_async

pytestmark = pytest.mark.may_block("the tests look at the folders themselves")

WEEK = 604800.0
ENDED = 1000.0


async def place(home, folder, name, phase, **fields):
    """Let a job lie on disk that ended, or did not."""
    (folder / "train.py").touch()
    backend = LocalBackend(home, agent_command=("true",))
    stored = await backend.submit(backend.plan(load_job({"name": name, "entrypoint": "train.py"}, base=folder)), owner="ann")
    over = phase in (Phase.SUCCEEDED, Phase.FAILED)
    attempt = Attempt(number=1, owner="ann", started_at=ENDED - 10, ended_at=ENDED if over else None)
    record = dataclasses.replace(stored.record, phase=phase, attempt=1, attempts=(attempt,), **fields)
    await backend.save(record, version=stored.version)


async def test_only_what_succeeded_long_ago_goes(home, tmp_path):
    """What has failed stays, what runs stays, and a job of which nobody can say anything disturbs none of it."""
    await place(home, tmp_path, "succeeded", Phase.SUCCEEDED)
    await place(home, tmp_path, "failed", Phase.FAILED)
    await place(home, tmp_path, "running", Phase.RUNNING)
    await place(home, tmp_path, "broken", Phase.SUCCEEDED)
    (home / "jobs" / "broken" / "record.json").write_text("{")
    store = Store(home=home)

    sweep(store, ENDED + WEEK - 1)
    assert "succeeded" in store.names()
    sweep(store, ENDED + WEEK)

    assert store.names() == ("broken", "failed", "running")
    assert not any(path.name.startswith(".deleted") for path in store.jobs.iterdir())


async def test_the_job_of_a_role_stays(home, tmp_path):
    """It goes with the whole job: until then its record says that the role has succeeded."""
    (tmp_path / "train.py").touch()
    backend = LocalBackend(home, agent_command=("true",))
    blueprint = backend.plan(load_job({"name": "rl-trainer", "entrypoint": "train.py"}, base=tmp_path))
    await backend.submit(dataclasses.replace(blueprint, plan=dataclasses.replace(blueprint.plan, job="rl")), owner="rl/1.0.1")
    stored = await backend.load("rl-trainer")
    assert stored is not None
    attempt = Attempt(number=1, owner="rl/1.0.1", started_at=ENDED - 10, ended_at=ENDED)
    record = dataclasses.replace(stored.record, phase=Phase.SUCCEEDED, attempt=1, attempts=(attempt,))
    await backend.save(record, version=stored.version)

    sweep(Store(home=home), ENDED + WEEK)

    assert Store(home=home).names() == ("rl-trainer",)


async def test_what_somebody_holds_stays(home, tmp_path):
    """They may be about to begin it again."""
    await place(home, tmp_path, "digits", Phase.SUCCEEDED)
    store = Store(home=home)
    hold = Hold(store.job("digits"), "ann")
    hold.acquire()

    sweep(store, ENDED + WEEK)
    assert store.names() == ("digits",)
    hold.release()
    sweep(store, ENDED + WEEK)

    assert store.names() == ()


async def test_a_process_that_supervises_looks_through_them(home, tmp_path):
    """It does so as long as its heart beats."""
    await place(home, tmp_path, "digits", Phase.SUCCEEDED)
    backend = LocalBackend(home, agent_command=("true",), sweeps=0.05)

    async with backend.heartbeat("ann"):

        async def gone():
            return await backend.names() == ()

        await eventually_async(gone)
        assert await backend.names() == ()
