"""Jobs that are over for long enough are deleted by whoever supervises another job of the namespace."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.client import KubeApi
from rallypoint.backends.kubernetes.sweeping import read_stamp
from rallypoint.backends.kubernetes.watching.views import ENDED
from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import Phase
from rallypoint.wire.status import Outcome
from tests.backends.stage import running, verdict
from tests.emulator.options import Options
from tests.emulator.running import running as emulated
from tests.kube.stage import KubernetesStage
from tests.waiting import eventually, eventually_async

pytestmark = pytest.mark.live

WEEK = 604800.0


@pytest.fixture
async def stage(tmp_path, home):
    """A cluster of its own."""
    with emulated(Options()) as cluster:
        place = KubernetesStage(tmp_path, cluster)
        yield place
        await place.close()


def sweeping(stage):
    """Another process, that looks through the ended jobs all the time."""
    access = Access(namespace=stage.namespace, server=stage.emulator.url, context="sweeping")
    backend = KubernetesBackend(access, beat=0.2, silent=2.0, sweeps=0.2)
    stage.opened.append(backend)
    return backend


async def live(stage, name, outcome=Outcome.SUCCEEDED, **fields):
    """Let a job of one node run to its end under a supervisor that leaves then."""
    # The stand-ins of all jobs look for their exit codes in the same folder; an earlier job's would end this one's at once.
    for left in stage.ends.iterdir():
        left.unlink()
    backend = stage.another()
    await backend.submit(backend.plan(stage.job(name, nodes=1, **fields)), owner="ann")
    told = asyncio.Event()

    def on_turn(snapshot):
        record = snapshot.record
        if record.phase in (Phase.RESUMING, Phase.RUNNING) and not told.is_set():
            told.set()
            asyncio.get_running_loop().run_in_executor(None, end, record)

    def end(record):
        stage.say(running(record))
        eventually(lambda: any(p["status"].get("phase") == "Running" and "-n0-" in p["metadata"]["name"] for p in stage.pods()))
        stage.say(verdict(record, outcome))
        stage.end_node(record, 0, 0 if outcome is Outcome.SUCCEEDED else 1)

    return await asyncio.wait_for(supervise(backend, name, holder="test", on_turn=on_turn), 600)


@contextlib.asynccontextmanager
async def supervised(backend, name):
    """Have a process that supervises."""
    async with backend.changes(name), backend.hold(name, holder="test"):
        yield


def stamp_of(stage, name):
    """What stands in a job's ConfigMap about its end."""
    found = stage.ask("GET", stage.path("configmaps", names.job_configmap(name)))
    return (found["metadata"].get("annotations") or {}).get(ENDED, "")


def write_stamp(stage, name, text):
    """Write it, as if the job had ended at another time."""
    change = {"metadata": {"annotations": {ENDED: text}}}
    stage.ask("PATCH", stage.path("configmaps", names.job_configmap(name)), change, content="application/merge-patch+json")


@pytest.mark.extended
async def test_a_job_is_deleted_after_its_success_ttl(stage):
    """By another supervisor of the namespace, with its pods; one that succeeded later stays, and so does a failure's record."""
    tolerance = {"fault_tolerance": {"retry_limit": 0, "retry_pause_period": 0, "failure_grace_period": 0}}
    for name, outcome in (("old", Outcome.SUCCEEDED), ("new", Outcome.SUCCEEDED), ("failed", Outcome.FAILED)):
        record = await live(stage, name, outcome, **tolerance)
        assert record.phase is (Phase.SUCCEEDED if outcome is Outcome.SUCCEEDED else Phase.FAILED)
    backend = sweeping(stage)
    await backend.submit(backend.plan(stage.job("running")), owner="ann")
    server = KubeApi(backend.access)
    now = await server.time()
    await server.close()
    ended = read_stamp(stamp_of(stage, "old"), 1)

    assert ended is not None
    assert 0 <= now - ended < WEEK / 2
    assert stamp_of(stage, "failed") == ""

    write_stamp(stage, "old", f"1@{now - WEEK - 1:.0f}")
    write_stamp(stage, "new", f"1@{now - WEEK + 3600:.0f}")
    async with supervised(backend, "running"):
        await eventually_async(lambda: not any(p["metadata"]["name"].startswith("old-") for p in stage.pods()))

        async def others():
            return await backend.names() == ("failed", "new", "running")

        await eventually_async(others)
    # A failure's pod that had ended by itself when the job failed is kept for its log.
    assert {p["metadata"]["name"].split("-")[0] for p in stage.pods()} - {"failed"} == {"new"}


async def test_an_end_that_nobody_wrote_down_counts_from_when_it_was_seen(stage):
    """A supervisor was killed at the end: the next process that comes by stamps the job; an older attempt's stamp is none."""
    await live(stage, "old")
    write_stamp(stage, "old", "0@1000")
    backend = sweeping(stage)
    await backend.submit(backend.plan(stage.job("running")), owner="ann")

    async with supervised(backend, "running"):
        await eventually_async(lambda: stamp_of(stage, "old").startswith("1@"))

    assert await backend.names() == ("old", "running")


async def test_a_job_that_begins_again_is_not_deleted(stage):
    """Whoever wants to delete it has seen an older version of it."""
    await live(stage, "old")
    write_stamp(stage, "old", "1@1000")
    place = stage.path("configmaps", names.job_configmap("old"))
    found = stage.ask("GET", place)
    seen = {"uid": found["metadata"]["uid"], "resourceVersion": found["metadata"]["resourceVersion"]}
    write_stamp(stage, "old", "1@1001")

    assert stage.ask("DELETE", place, {"preconditions": seen}, fine=(409,)) is None
    assert json.loads(stage.ask("GET", place)["data"]["record.json"])["name"] == "old"


@pytest.mark.parametrize(
    ("text", "attempt", "ended"),
    [
        pytest.param("2@1000", 2, 1000.0, id="of this attempt"),
        pytest.param("1@1000", 2, None, id="of an attempt before"),
        pytest.param("", 1, None, id="none"),
        pytest.param("1@soon", 1, None, id="no time"),
    ],
)
def test_a_stamp_is_of_one_attempt(text, attempt, ended):
    """What somebody else wrote there is none."""
    assert read_stamp(text, attempt) == ended
