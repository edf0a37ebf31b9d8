"""Objects that any user of a namespace can write, and what the watches of all its jobs do with them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.contract import BackendError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.labels import ATTEMPT, DRIVERS, INCARNATION, JOB, NODE, PART, UID, Part
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.backends.kubernetes.manifests.objects import RECORD_KEY, job_configmap
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.sweeping import Sweeper
from rallypoint.backends.kubernetes.watching.bounded import memory_of
from rallypoint.backends.kubernetes.watching.cluster import Cluster
from rallypoint.backends.kubernetes.watching.views import ENDED, Waiting
from rallypoint.backends.kubernetes.wrapped.objects import wrappers_of
from rallypoint.backends.supervise import supervise
from rallypoint.job import JobError, load_job
from rallypoint.job.document import NODES_LIMIT
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.plan import Kind
from rallypoint.wire.status import Event
from tests.emulator.crds import DEFINITIONS
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.pods import waiting
from tests.kube.wrappers import wrapper
from tests.waiting import eventually_async

pytestmark = pytest.mark.live

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
RAYJOBS = "/apis/ray.io/v1/namespaces/default/rayjobs"
WRAPPERS = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers"
LABELS = {JOB: "bad", UID: "u"}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Running]:
    """A cluster whose AppWrappers and RayJobs have no controller: the tests write their statuses."""
    with running(Options(nodes=(), crds=(DEFINITIONS / "appwrappers.yaml.gz", DEFINITIONS / "rayjobs.yaml.gz"))) as cluster:
        yield cluster


@pytest.fixture
async def cluster(emulator: Running) -> AsyncIterator[Cluster]:
    found = Cluster(Access(namespace="default", server=emulator.url))
    yield found
    await found.close()


def write(emulator: Running, method: str, path: str, body: Any = None) -> Any:
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    code, answer = emulator.request(method, path, body, content=content)
    assert code in (200, 201, 202), answer
    return answer


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("\x01" * 900_000, id="six bytes of JSON for each character"),
        pytest.param(",[{" * 300_000, id="looks like many values"),
    ],
)
async def test_a_large_configmap_keeps_no_watch_from_its_events(emulator: Running, cluster: Cluster, data: str) -> None:
    """It is read as it comes; all jobs of the namespace share the watch. What nobody reads of it is not kept."""
    async with cluster.following("good"):
        await eventually_async(lambda: cluster.fresh)
        metadata = {"name": "large", "labels": {**LABELS, PART: Part.JOB.value}}
        write(emulator, "POST", CONFIGMAPS, {"metadata": metadata, "data": {RECORD_KEY: data, "other": "x" * 10_000}})
        try:
            await eventually_async(lambda: cluster.cache.job("large") is not None)
            assert (cluster.fresh, cluster.configmaps.relisted) == (True, 0)
            again = await cluster.job("large")
            assert again is not None
            assert again.data == {RECORD_KEY: data}
        finally:
            write(emulator, "DELETE", f"{CONFIGMAPS}/large")
        await eventually_async(lambda: cluster.cache.job("large") is None)


LONG = "\U0001f600" + "a" * 200_000


async def test_long_texts_of_a_status_are_cut(emulator: Running, cluster: Cluster) -> None:
    """Four bytes for each character of a text with one emoji: a watch would keep gigabytes of what controllers say."""
    async with cluster.following("good"):
        await eventually_async(lambda: cluster.fresh)
        write(emulator, "POST", PODS, trainer("long", node=0))
        status = {"phase": "Pending", "podIP": LONG, "reason": LONG, "containerStatuses": [waiting(LONG, LONG)]}
        write(emulator, "PATCH", f"{PODS}/long/status", {"status": status})
        try:
            await eventually_async(lambda: any(pod.containers for pod in cluster.cache.pods))
            (view,) = cluster.cache.pods
            state = view.containers[0].state
            assert isinstance(state, Waiting)
            assert (LONG.startswith(state.reason), len(state.reason), view.ip) == (True, 1024, "")
            assert memory_of(view) < 300_000
            assert cluster.pods.fresh
        finally:
            write(emulator, "DELETE", f"{PODS}/long", {"gracePeriodSeconds": 0})


async def test_a_full_cache_hides_no_pod_of_a_job(emulator: Running, cluster: Cluster) -> None:
    """The server told of it: a supervisor would start another one in its place."""
    cluster.cache.pods._most_bytes = 3_000
    for node in range(3):
        write(emulator, "POST", PODS, trainer(f"kept-{node}", node=node))
    try:
        found = await cluster.pods_of(JobRef(name="bad", uid="u", namespace="default"))
        assert (len(cluster.cache.pods), cluster.cache.pods.full) == (1, True)
        assert sorted(pod.name for pod in found) == ["kept-0", "kept-1", "kept-2"]
    finally:
        for node in range(3):
            write(emulator, "DELETE", f"{PODS}/kept-{node}", {"gracePeriodSeconds": 0})


async def test_the_output_of_a_driver_is_cut(emulator: Running, cluster: Cluster) -> None:
    """Ray puts the output of a program into the status of its RayJob, and any program can write long lines."""
    wrappers = wrappers_of(cluster, Kind.RAYJOB)
    cluster.also(wrappers._watch)
    async with cluster.following("good"):
        await eventually_async(lambda: wrappers._watch.fresh)
        given = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "long", "labels": LABELS}, "spec": {}}
        write(emulator, "POST", RAYJOBS, given)
        message = "failed with exit code 3\n" + "\n".join(["\U0001f600" + "a" * 8_000] * 50)
        write(emulator, "PATCH", f"{RAYJOBS}/long/status", {"status": {"jobStatus": "FAILED", "message": message}})
        try:
            await eventually_async(lambda: [one.driver.exit_code for one in wrappers._shelf if one.driver is not None] == [3])
            assert wrappers._shelf._size < 300_000
            assert wrappers._watch.fresh
        finally:
            write(emulator, "DELETE", f"{RAYJOBS}/long")


async def test_pods_that_are_created_and_deleted_at_once_are_not_kept(emulator: Running) -> None:
    """Any user who may create pods can write the labels of a followed job, and a watch tells of each."""
    backend = KubernetesBackend(Access(namespace="default", server=emulator.url, context="gone"))
    try:
        job = load_job({"name": "good", "image": "py", "entrypoint": "t.py", "nodes": "1"}, based=False)
        record = (await backend.submit(backend.plan(job), owner="ann")).record
        cluster = (await backend._its()).cluster
        seen: list[str] = []
        async with backend.changes("good"):
            supervising = asyncio.create_task(supervise(backend, "good", holder="me"))
            await eventually_async(lambda: any(pod.labels.part is Part.NODE for pod in cluster.cache.pods_of(record.uid)))
            drivers = ",".join(f"{number:x}" for number in range(45_000))
            for number in range(12):
                name, labels = f"fake-{number}", {JOB: "good", UID: record.uid, ATTEMPT: "1", INCARNATION: str(900 + number)}
                fake = trainer(name, node=0)
                fake["metadata"] |= {"labels": {**labels, PART: Part.COORDINATOR.value}, "annotations": {DRIVERS: drivers}}
                write(emulator, "POST", PODS, fake)
                write(emulator, "DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
                seen.append(name)
            write(emulator, "POST", PODS, trainer("last", node=0))  # the watch tells of it after all others
            await eventually_async(lambda: cluster.cache.pods.get("last") is not None)
            write(emulator, "DELETE", f"{PODS}/last", {"gracePeriodSeconds": 0})
            await eventually_async(lambda: cluster.cache.gone_of(record.uid) == ())
            kept = [pod.name for pod in (*cluster.cache.pods_of(record.uid), *cluster.cache.gone_of(record.uid))]
            supervising.cancel()
            await asyncio.wait([supervising])
        assert not set(seen).intersection(kept)
    finally:
        await backend.close()


def trainer(name: str, *, node: int) -> dict[str, Any]:
    """A pod with the labels of a node, which nothing starts."""
    labels = {**LABELS, PART: Part.NODE.value, ATTEMPT: "1", NODE: str(node), INCARNATION: "1"}
    spec = {"schedulingGates": [{"name": "a/b"}], "containers": [{"name": "trainer", "image": "py"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def condition(at: str) -> dict[str, Any]:
    return {"type": "PodsReady", "status": "True", "reason": "x", "message": "m", "lastTransitionTime": at}


@pytest.mark.parametrize(
    ("annotations", "status", "refused"),
    [
        pytest.param({ATTEMPT: "x"}, {}, "attempt: 'x' is not allowed; expected a number from 0", id="attempt is no number"),
        pytest.param({ATTEMPT: "9" * 5000}, {}, "attempt: '9{40}' is not allowed", id="attempt has too many digits"),
        pytest.param({}, {"phase": "Resetting", "resettingCount": 2**31 - 1}, "resettingCount: '2147483647'", id="resets"),
        pytest.param({}, {"phase": "Foo"}, "AppWrapper bad: status.phase: 'Foo' is unknown", id="unknown phase"),
        pytest.param({}, {"phase": "Running", "conditions": [condition("0000-01-01T00:00:00Z")]}, "", id="year 0"),
        pytest.param({}, {"phase": "Running", "conditions": [condition("2016-12-31T23:59:60Z")]}, "", id="second 60"),
    ],
)
async def test_a_hostile_appwrapper_ends_no_watch(
    emulator: Running, cluster: Cluster, annotations: dict[str, str], status: dict[str, Any], refused: str
) -> None:
    """Only its own job has an error, where its status cannot be used at all."""
    wrappers = wrappers_of(cluster, Kind.APPWRAPPER)
    cluster.also(wrappers._watch)
    async with cluster.following("good"):
        await eventually_async(lambda: wrappers._watch.fresh)
        bad = copy.deepcopy(wrapper())
        bad["metadata"] |= {"name": "bad", "labels": LABELS, "annotations": annotations}
        write(emulator, "POST", WRAPPERS, bad)
        if status:
            write(emulator, "PATCH", f"{WRAPPERS}/bad/status", {"status": status})
        try:
            good = copy.deepcopy(bad)
            good["metadata"] |= {"name": "good", "annotations": {}}
            write(emulator, "POST", WRAPPERS, good)
            await eventually_async(lambda: wrappers._shelf.get("good") is not None)
            assert wrappers._watch.fresh
            for now in (False, True):
                if refused:
                    with pytest.raises(BackendError, match=refused):
                        await wrappers.get("bad", now=now)
                else:
                    found = await wrappers.get("bad", now=now)
                    assert found is not None
                    assert found.told is not None
                    assert found.told.first_attempt == 1
        finally:
            for name in ("bad", "good"):
                write(emulator, "DELETE", f"{WRAPPERS}/{name}")


@given(st.text(alphabet="0123456789-:.TZ+", max_size=40) | st.text(max_size=20))
def test_every_text_is_a_time_or_none(text: str) -> None:
    """A time can be any text that a user of the namespace writes."""
    assert 0.0 <= parse_time(text) < 3e11


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T00:00:00.5Z", 1767225600.5),
        ("2026-01-01T00:00:00.123456789Z", 1767225600.123456789),
        ("2026-01-01T01:00:00.25+01:00", 1767225600.25),
        ("0001-01-01T00:00:00+23:59", 0.0),
        ("", 0.0),
    ],
)
def test_a_time_has_any_number_of_decimals(text: str, seconds: float) -> None:
    """Kubernetes writes whole seconds or microseconds, its components also nanoseconds."""
    assert parse_time(text) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"env": {f"A{n}": "" for n in range(NODES_LIMIT)}}, "more than 20000 values", id="many values"),
        pytest.param({"env": {"A": "x" * 600_000}}, "exceeds 524288 bytes", id="much text"),
    ],
)
def test_a_job_that_could_not_be_read_again_is_refused(fields: dict[str, Any], text: str) -> None:
    """As a mapping it passes no reader of text: each creation of a node would fail, after the submission has succeeded."""
    with pytest.raises(JobError, match=text):
        load_job({"name": "fat", "entrypoint": "train.py", **fields})


async def test_a_job_with_as_many_values_as_allowed_is_read_again(emulator: Running) -> None:
    """Keys of mappings are no values: what submit accepts, the supervisor reads."""
    backend = KubernetesBackend(Access(namespace="default", server=emulator.url))
    try:
        job = load_job(
            {"name": "fat", "image": "py", "entrypoint": "t.py", "env": {f"A{n}": "" for n in range(15_000)}}, based=False
        )
        stored = await backend.submit(backend.plan(job), owner="ann")
        async with backend.changes("fat"):
            spec, _, _ = await (await backend._its()).store.spec(stored.record)
        assert len(spec.roles[0].env) == 15_000
    finally:
        await backend.close()


async def test_large_finished_jobs_do_not_stop_the_event_loop(emulator: Running, cluster: Cluster) -> None:
    """A thousand of them may lie in a namespace: a record is read in a thread, one at a time."""
    backend = KubernetesBackend(Access(namespace="default", server=emulator.url, context="sweeping"))
    job = load_job({"name": "done", "image": "py", "entrypoint": "t.py"}, based=False)
    plan = backend.plan(job).plan
    await backend.close()
    record = dataclasses.replace(
        JobRecord.new(name="done", uid="u", digest=plan.digest, owner="ann", claimant="", now=1e9),
        phase=Phase.SUCCEEDED,
        history=tuple(Event(at=float(n), kind="rank", detail="x" * 80) for n in range(4096)),
    )
    manifest = job_configmap(JobRef(name="done", uid="u", namespace="default"), spec=job, plan=plan, record=record)
    for number in range(8):
        manifest["metadata"] |= {"name": f"done-{number}", "labels": manifest["metadata"]["labels"] | {JOB: f"done-{number}"}}
        write(emulator, "POST", CONFIGMAPS, manifest)
    used: list[float] = []

    def timed(text: str) -> tuple[JobRecord, float]:
        begun = time.thread_time()
        return JobRecord.from_json(text), time.thread_time() - begun

    async def measure() -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            used.append(time.thread_time() - begun)

    async with cluster.following("good"):
        await eventually_async(lambda: sum(view.job.startswith("done-") for view in cluster.cache.jobs) == 8)
        read, cost = await asyncio.to_thread(timed, manifest["data"][RECORD_KEY])
        measuring = asyncio.create_task(measure())
        await Sweeper(cluster).sweep()
        measuring.cancel()
    stamped = [write(emulator, "GET", f"{CONFIGMAPS}/done-{n}")["metadata"]["annotations"][ENDED] for n in range(8)]
    for number in range(8):
        write(emulator, "DELETE", f"{CONFIGMAPS}/done-{number}")

    assert read == record
    assert [stamp.partition("@")[0] for stamp in stamped] == ["0"] * 8
    # All eight at once would take eight times as long; a garbage collection of a large test process takes about one.
    assert max(used) < 4 * cost, f"the event loop used {max(used):.3f} s at once, and one record takes {cost:.3f} s"
