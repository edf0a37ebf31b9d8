"""A coordinator's dealings with the API server: its status, its predecessor's, its supervisor's heartbeat."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import pytest

from rallypoint.agent.coordinator.configmap import NO_ROUTE, STATUS_KEY, ConfigMapSink, PodSink
from rallypoint.agent.coordinator.kube import ApiError, KubeApi
from rallypoint.agent.coordinator.namespaced import Namespaced
from rallypoint.agent.coordinator.pod_home import RECORD_KEY, LeaseHeartbeat, SignsOfLife, newest
from rallypoint.agent.coordinator.sink import FileSink, read_status
from rallypoint.agent.errors import ConfigError, StaleError
from rallypoint.backends.kubernetes.lease import parse_time
from rallypoint.wire import codec
from rallypoint.wire.env import API_SERVER
from rallypoint.wire.fence import Fence
from rallypoint.wire.status import STATUS_WRITTEN, JobState, JobStatus
from tests.agent.fake_api import FakeApi, serving

STATUS = Namespaced(namespace="lab", name="digits-status")
STATUS_PATH = "/api/v1/namespaces/lab/configmaps/digits-status"
RECORD = Namespaced(namespace="lab", name="rallypoint-digits")
RECORD_PATH = "/api/v1/namespaces/lab/configmaps/rallypoint-digits"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/lab/leases/rallypoint-supervisor-a"


def status(term: int = 1, *, round_: int = 0, **more: object) -> JobStatus:
    fields: dict[str, object] = {"job": "digits", "uid": "u1", "fence": Fence(attempt=1, term=term, round=round_)}
    return JobStatus(**{**fields, "state": JobState.RUNNING, **more})  # type: ignore[arg-type]


def written(fake: FakeApi) -> JobStatus:
    return codec.loads(JobStatus, fake.objects[STATUS_PATH]["data"][STATUS_KEY])


# --- Requests --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "namespace", "expected"),
    [
        pytest.param("lab/digits", "", Namespaced(namespace="lab", name="digits"), id="with its namespace"),
        pytest.param("digits", "lab", Namespaced(namespace="lab", name="digits"), id="in the namespace around it"),
    ],
)
def test_an_object_is_named_by_namespace_and_name(text: str, namespace: str, expected: Namespaced) -> None:
    """As `kubectl` people write it."""
    assert Namespaced.parse(text, namespace=namespace) == expected
    assert str(expected) == "lab/digits"


@pytest.mark.parametrize("text", ["", "digits", "/digits", "lab/", "a/b/c"])
def test_half_a_name_is_none(text: str) -> None:
    """The value and what is allowed are named."""
    with pytest.raises(ValueError, match=r"is not allowed; expected NAMESPACE/NAME"):
        Namespaced.parse(text)


async def test_the_token_is_read_anew_for_each_request(tmp_path: Path) -> None:
    """Kubernetes replaces it; and without one we are whoever anybody is."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        await api.get(STATUS_PATH)
        for token in ("one", "two"):
            (tmp_path / "token").write_text(f"{token}\n")
            await api.get(STATUS_PATH)

    assert fake.tokens == ["", "Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    ("code", "headers", "refused", "after"),
    [
        pytest.param(403, {}, True, 0.0, id="forbidden"),
        pytest.param(401, {}, True, 0.0, id="unknown"),
        pytest.param(429, {"Retry-After": "7"}, False, 7.0, id="busy"),
        pytest.param(500, {"Retry-After": "soon"}, False, 0.0, id="broken"),
    ],
)
async def test_what_the_api_server_refuses_is_told(
    tmp_path: Path, code: int, headers: dict[str, str], refused: bool, after: float
) -> None:
    """With the request, the status and its own words."""
    async with serving(tmp_path) as (fake, api, _):
        fake.failures = [(code, headers)]
        with pytest.raises(ApiError, match=f"GET {STATUS_PATH}: HTTP {code}: as the test wants it") as caught:
            await api.get(STATUS_PATH)

    assert (caught.value.status, caught.value.refused, caught.value.retry_after) == (code, refused, after)


async def test_an_api_server_that_is_away_is_an_error_without_a_status(tmp_path: Path) -> None:
    """It may be back at the next try."""
    async with serving(tmp_path) as (_, api, _):
        pass
    with pytest.raises(ApiError, match="GET /version") as caught:
        await api.get("/version")
    await api.close()

    assert (caught.value.status, caught.value.refused) == (0, False)


def test_where_the_api_server_is_stands_in_the_environment() -> None:
    """In a pod Kubernetes says it; a variable of ours comes first; elsewhere there is none."""
    told = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert KubeApi.of_this_pod(told).server == "https://[fd00::1]:6443"
    assert KubeApi.of_this_pod({**told, API_SERVER: "http://127.0.0.1:1/"}).server == "http://127.0.0.1:1"
    assert KubeApi.of_this_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).server == "https://10.0.0.1:443"

    with pytest.raises(ConfigError, match=r"KUBERNETES_SERVICE_HOST \(or RALLYPOINT_API_SERVER\) is not set"):
        KubeApi.of_this_pod({})


# --- The status ------------------------------------------------------------------------------------------------------------


async def test_what_is_published_is_read_back(tmp_path: Path) -> None:
    """Also by the next coordinator; nothing is read again before the next write."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH, data={STATUS_KEY: ""})
        sink = ConfigMapSink(api, STATUS)
        assert await sink.read() is None
        await sink.publish(status(round_=1))
        await sink.publish(status(round_=2))

        assert [method for method, _ in fake.asked] == ["GET", "PATCH", "PATCH"]
        assert await ConfigMapSink(api, STATUS).read() == status(round_=2)


async def test_other_keys_and_other_writers_are_left_in_peace(tmp_path: Path) -> None:
    """Somebody annotates the ConfigMap meanwhile: it is read again, and what he wrote stays."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH, data={"note": "first"})
        sink = ConfigMapSink(api, STATUS)
        await sink.publish(status(round_=1))
        fake.rivals = [(STATUS_PATH, {"note": "second"})]
        await sink.publish(status(round_=2))

        assert fake.objects[STATUS_PATH]["data"] == {"note": "second", STATUS_KEY: codec.dumps(status(round_=2))}


@pytest.mark.parametrize("late", [pytest.param(True, id="between look and write"), pytest.param(False, id="before the look")])
async def test_a_later_coordinator_is_never_overwritten(tmp_path: Path, late: bool) -> None:
    """Whenever it wrote: the compare-and-swap fails, and the second look tells why."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        sink = ConfigMapSink(api, STATUS)
        await sink.publish(status(1))
        later = {STATUS_KEY: codec.dumps(status(2))}
        if late:
            fake.rivals = [(STATUS_PATH, later)]
        else:
            fake.put(STATUS_PATH, data=later)

        with pytest.raises(
            StaleError, match="ConfigMap lab/digits-status: a newer coordinator \\(attempt 1, term 2\\) has published"
        ):
            await sink.publish(status(1, round_=5))
        assert written(fake) == status(2)


async def test_a_write_whose_answer_was_lost_is_written_again(tmp_path: Path) -> None:
    """Nobody knows whether it was done: the next look tells, and no conflict with oneself comes of it."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        sink = ConfigMapSink(api, STATUS)
        await sink.publish(status(round_=1))
        fake.failures = [(504, {})]
        with pytest.raises(ApiError, match="HTTP 504"):
            await sink.publish(status(round_=2))
        await sink.publish(status(round_=2))

        assert written(fake) == status(round_=2)


async def test_somebody_who_never_stops_writing_is_not_waited_for(tmp_path: Path) -> None:
    """After a few conflicts it does not work now."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        fake.rivals = [(STATUS_PATH, {"note": str(number)}) for number in range(100)]

        with pytest.raises(ApiError, match="another client keeps changing this ConfigMap"):
            await ConfigMapSink(api, STATUS).publish(status())


async def test_a_status_that_makes_no_sense_is_replaced_one_of_a_far_version_is_not(tmp_path: Path) -> None:
    """The first is of use to nobody, the second to whoever wrote it."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH, data={STATUS_KEY: "{torn"})
        await ConfigMapSink(api, STATUS).publish(status())
        assert written(fake) == status()

        fake.put(STATUS_PATH, data={STATUS_KEY: '{"version": 9}'})
        with pytest.raises(ConfigError, match=r"ConfigMap lab/digits-status: status.json: version: 9 is not allowed"):
            await ConfigMapSink(api, STATUS).publish(status())


# --- A ConfigMap that may not be written -----------------------------------------------------------------------------------


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_without_the_permission_the_status_stays_in_the_pod_and_says_so(tmp_path: Path) -> None:
    """Not durable, in the file as in the trouble; once the permission is given, the ConfigMap has it again."""
    file, clock = tmp_path / "status.json", Hands()
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        fake.forbidden = {("PATCH", STATUS_PATH)}
        sink = PodSink(ConfigMapSink(api, STATUS), FileSink(file), clock=clock)
        await sink.publish(status(round_=1))

        assert await asyncio.to_thread(read_status, file) == status(round_=1, durable=False)
        assert sink.trouble.startswith(f"no permission to write the status ConfigMap (PATCH {STATUS_PATH}: HTTP 403")

        fake.forbidden, asked = set(), len(fake.asked)
        await sink.publish(status(round_=2))
        assert len(fake.asked) == asked
        clock.now = 61.0
        await sink.publish(status(round_=3))
        assert (sink.trouble, written(fake)) == ("", status(round_=3))
    assert await asyncio.to_thread(read_status, file) == status(round_=2, durable=False)


async def test_an_api_server_that_is_away_is_no_reason_to_keep_the_status_in_the_pod(tmp_path: Path) -> None:
    """It does not work now; what was not published is told to nobody, and no other place is as good."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        fake.failures = [(503, {})]
        sink = PodSink(ConfigMapSink(api, STATUS), FileSink(tmp_path / "status.json"))
        with pytest.raises(OSError, match="HTTP 503"):
            await sink.publish(status())
        await sink.publish(status())

        assert (sink.trouble, written(fake)) == ("", status())
    assert not (tmp_path / "status.json").exists()


async def test_an_api_server_that_never_answers_keeps_the_status_in_the_pod(tmp_path: Path) -> None:
    """A pod without a route to it would wait for ever; one that has answered once is waited for."""
    file, clock = tmp_path / "status.json", Hands()
    nowhere = KubeApi("http://127.0.0.1:9", token_file=tmp_path / "none", ca_file=tmp_path / "none")
    sink = PodSink(ConfigMapSink(nowhere, STATUS), FileSink(file), clock=clock)
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await sink.publish(status())
    clock.now = NO_ROUTE
    await sink.publish(status())
    await nowhere.close()

    assert await asyncio.to_thread(read_status, file) == status(durable=False)
    assert sink.trouble.startswith("the API server has never answered this pod; cannot write the status ConfigMap (")

    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        fake.failures = [(503, {})] * 2
        sink = PodSink(ConfigMapSink(api, STATUS), FileSink(tmp_path / "other.json"), clock=clock)
        with pytest.raises(OSError, match="HTTP 503"):
            await sink.publish(status())
        clock.now += 10 * NO_ROUTE
        with pytest.raises(OSError, match="HTTP 503"):
            await sink.publish(status())


async def test_a_published_status_carries_the_servers_own_time(tmp_path: Path) -> None:
    """So that its age can be told by one clock."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(STATUS_PATH)
        await ConfigMapSink(api, STATUS).publish(status())
        annotations = fake.objects[STATUS_PATH]["metadata"]["annotations"]

    assert abs(parse_time(annotations[STATUS_WRITTEN]) - time.time()) < 60.0


def test_the_newest_status_is_that_of_the_highest_fence() -> None:
    """Of equal ones the later: the supervisor's copy may be old, and so may the pod's own."""
    old, new = status(1, round_=9, updated_at=99.0), status(2, round_=1, updated_at=1.0)
    later = dataclasses.replace(new, updated_at=2.0)

    assert newest(old, None, new) == new
    assert newest(later, new) == later
    assert newest(None) is None


# --- The heartbeat ---------------------------------------------------------------------------------------------------------


def record(lease: str | None) -> dict[str, str]:
    return {RECORD_KEY: json.dumps({"holder": None if lease is None else {"id": "a", "heartbeat": lease}})}


@pytest.mark.parametrize("lease", ["rallypoint-supervisor-a", "lab/rallypoint-supervisor-a"])
async def test_a_lease_that_is_renewed_is_a_heart_that_beats(tmp_path: Path, lease: str) -> None:
    """One request for each look: in turn for the record and for the Lease that it names."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(RECORD_PATH, data=record(lease))
        source, marks = LeaseHeartbeat(api, RECORD), []
        for beat in range(6):
            fake.put(LEASE_PATH, spec={"renewTime": f"2026-01-01T00:00:{beat:02}.000000Z"})
            marks.append(await source.read())

        assert [path for _, path in fake.asked] == [RECORD_PATH, LEASE_PATH] * 3
        assert None not in marks
        assert len(set(marks)) == 4  # each Lease that was seen, and the holder who wrote himself into the record


async def test_a_lease_that_stands_still_is_no_sign_of_life(tmp_path: Path) -> None:
    """The mark stays as it is, and so the time goes on."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(RECORD_PATH, data=record("rallypoint-supervisor-a"))
        fake.put(LEASE_PATH, spec={"renewTime": "2026-01-01T00:00:00.000000Z"})
        source = LeaseHeartbeat(api, RECORD)
        marks = [await source.read() for _ in range(6)]

    assert len(set(marks[1:])) == 1


async def test_another_holder_is_a_sign_of_life_and_is_looked_at_from_then_on(tmp_path: Path) -> None:
    """The old one may beat on for other jobs."""
    other = LEASE_PATH.replace("supervisor-a", "supervisor-b")
    async with serving(tmp_path) as (fake, api, _):
        fake.put(RECORD_PATH, data=record("rallypoint-supervisor-a"))
        fake.put(LEASE_PATH, spec={})
        source = LeaseHeartbeat(api, RECORD)
        first = [await source.read() for _ in range(2)][-1]
        fake.put(RECORD_PATH, data=record("rallypoint-supervisor-b"))
        fake.put(other, spec={})
        taken, beat = await source.read(), await source.read()

        assert len({first, taken, beat}) == 3
        assert fake.asked[-1] == ("GET", other)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="no record yet"),
        pytest.param({RECORD_KEY: "{torn"}, id="torn"),
        pytest.param({RECORD_KEY: "[]"}, id="of another kind"),
        pytest.param(record(None), id="nobody holds it"),
        pytest.param(record(""), id="a holder without a Lease"),
    ],
)
async def test_a_record_that_names_no_lease_is_no_sign_of_life(tmp_path: Path, data: dict[str, str]) -> None:
    """And costs no second request."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(RECORD_PATH, data=data)
        source = LeaseHeartbeat(api, RECORD)

        assert [await source.read() for _ in range(3)] == [None, None, None]
        assert {path for _, path in fake.asked} == {RECORD_PATH}


async def test_a_lease_that_is_gone_and_an_api_that_refuses_are_no_sign_of_life(tmp_path: Path) -> None:
    """The supervisor has ended, or we may not look."""
    async with serving(tmp_path) as (fake, api, _):
        fake.put(RECORD_PATH, data=record("rallypoint-supervisor-a"))
        source = LeaseHeartbeat(api, RECORD)
        assert await source.read() is not None
        assert await source.read() is None
        fake.forbidden = {("GET", RECORD_PATH)}
        assert await source.read() is None


async def test_a_supervisor_that_comes_by_is_a_sign_of_life(tmp_path: Path) -> None:
    """Where the Lease may not be read, each new counter counts; the same one twice says nothing."""
    async with serving(tmp_path) as (fake, api, _):
        fake.forbidden = {("GET", RECORD_PATH)}
        signs = SignsOfLife(LeaseHeartbeat(api, RECORD))
        marks = [await signs.read()]
        for mark in ("a:1", "a:1", "a:2"):
            signs.seen(mark)
            marks.append(await signs.read())

    assert marks == [None, "a:1", "a:1", "a:2"]
