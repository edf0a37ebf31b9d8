"""Following the logs of many pods with few connections."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import PLACE, Part, labels
from rallypoint.backends.kubernetes.roles.known import containers
from rallypoint.backends.kubernetes.roles.lives import Life, Lives, MadePod
from rallypoint.backends.kubernetes.watching.follow import LogReader
from rallypoint.backends.kubernetes.watching.following import PodLog, due
from rallypoint.backends.kubernetes.watching.known_pods import Known, RankPlace, every_node, node_pods, place_of_rank
from rallypoint.backends.kubernetes.watching.log_shares import LogShares
from rallypoint.backends.kubernetes.watching.views import PodView, pod_view
from rallypoint.job import compile_plan, load_job
from rallypoint.supervision.record import JobRecord, Slot
from rallypoint.wire.fence import Fence
from rallypoint.wire.node_range import Size
from rallypoint.wire.podlog import front
from rallypoint.wire.role_plans import RolePlan
from rallypoint.wire.status import JobState, JobStatus, Member
from tests.kube.pods import JOB, pod
from tests.waiting import PATIENCE, eventually_async

if TYPE_CHECKING:
    from rallypoint.backends.kubernetes.watching.cluster import Cluster


def view(node: int = 0, attempt: int = 1, incarnation: int = 1) -> PodView:
    found = pod_view(pod(node=node, attempt=attempt, incarnation=incarnation))
    assert found is not None
    name = names.node_pod(JOB, attempt, node, incarnation)
    return dataclasses.replace(found, name=name, uid=f"uid-{name}")


# --- Which pods are read


def record(*slots: Slot, attempt: int = 1, **its) -> JobRecord:
    new = JobRecord.new(name="digits", uid=JOB.uid, digest="d", owner="o", now=0.0)
    return dataclasses.replace(new, attempt=attempt, slots=slots, **its)


PLAN = compile_plan(load_job({"name": "digits", "image": "i", "entrypoint": "/x.py", "nodes": 2}, based=False))[0]


def chosen(pods, its: JobRecord) -> list[tuple[int, int, int]]:
    found = node_pods(pods, ref=JOB, record=its, plan=PLAN)
    return sorted((one.labels.attempt, one.labels.node, one.labels.incarnation) for one in found)


def test_pods_that_the_record_does_not_know_are_not_read():
    """Anybody who can create pods can give them the labels of a job."""
    fakes = [dataclasses.replace(view(0), name=f"fake-{number}", uid=f"{number}") for number in range(100)]
    made = [view(0), view(0, incarnation=2), view(1)]
    forged = [view(0, incarnation=number) for number in range(3, 1103)] + [view(2), view(0, attempt=2), view(0, attempt=0)]
    assert chosen([*forged, *made, *fakes], record(Slot(node=0, incarnation=2), Slot(node=1))) == [
        (1, 0, 1),
        (1, 0, 2),
        (1, 1, 1),
    ]

    its = record(Slot(node=0, incarnation=7), Slot(node=1), attempt=2, retired=(Slot(node=2),))
    made = [view(1), view(1, attempt=2), view(2, attempt=2), view(0, attempt=2, incarnation=7)]
    forged = [view(0, attempt=2, incarnation=number) for number in (8, 10**9)] + [view(9), view(3), view(0, attempt=3)]
    assert chosen([*forged, *made, *fakes], its) == [(1, 1, 1), (2, 0, 7), (2, 1, 1), (2, 2, 1)]


def test_of_a_node_the_newest_incarnations_are_read():
    """Earlier ones have ended long ago; another user may create pods with their names."""
    pods = [view(0, incarnation=number) for number in range(1, 2000)]

    assert chosen(pods, record(Slot(node=0, incarnation=1000))) == [(1, 0, number) for number in range(997, 1001)]


def test_a_larger_job_has_more_nodes():
    """A user may have requested more nodes than the plan has."""
    pods = [view(node) for node in range(5)]

    assert chosen(pods, record()) == [(1, 0, 1), (1, 1, 1)]
    assert chosen(pods, record(size=Size(min_nodes=1, max_nodes=4))) == [(1, node, 1) for node in range(4)]


def unit(number: int, *, node: int = 0, lives: str = "actor-0=0.1", name: str = "") -> PodView:
    its = {**labels(JOB, Part.UNIT, attempt=1, node=node, incarnation=number), PLACE: "actor"}
    meta = {"name": name or f"digits-01234567-a1-actor-{node}-{number}", "uid": f"u{number}.{node}", "labels": its}
    found = pod_view({"metadata": {**meta, "annotations": {"rallypoint.dev/lives": lives}}, "spec": {"nodeName": "h"}})
    assert found is not None
    return found


def test_containers_of_roles_that_no_supervisor_has_started_are_not_read():
    """The supervisor keeps the number of the last pod of each group before it makes the pod."""
    lives = Lives(pods={"actor-0": MadePod(attempt=1, number=6, made=True, lives={"actor-0": Life()})})
    forged = [unit(number) for number in range(7, 1107)] + [unit(1, node=1, lives="actor-1=0.1"), unit(6, name="fake")]
    role = RolePlan(name="actor", elastic=False, total=2)

    found = containers([*map(unit, range(1, 7)), *forged], ref=JOB, role=role, lives=lives)

    assert [(one.main, one.labels.incarnation) for one in found] == [("actor-0", number) for number in (3, 4, 5, 6)]
    assert containers([unit(1)], ref=JOB, role=role, lives=Lives()) == []
    other = unit(6, lives="actor-1=0.1,actor-7=0.1,other-0=0.1,actor-x=0.1,actor-0=0.2")
    assert [one.main for one in containers([other], ref=JOB, role=role, lives=lives)] == ["actor-0"]


# --- Where a rank is


def member(node: int, first: int) -> Member:
    return Member(node=node, incarnation=1, agent="a", host="h", local_world_size=2, first_rank=first)


def test_where_a_rank_is_stands_in_the_status():
    """A status of another job, and one without the rank, say nothing."""
    fence = Fence(attempt=1, term=1, round=3)
    world = (member(4, 0), member(7, 2), member(9, -1))
    status = JobStatus(job="digits", uid="u", fence=fence, state=JobState.RUNNING, world=world)

    assert [place_of_rank(status, rank, uid="u") for rank in (0, 3)] == [
        RankPlace(attempt=1, round=3, node=node) for node in (4, 7)
    ]
    assert [place_of_rank(status, 4, uid="u"), place_of_rank(status, 0, uid="other"), place_of_rank(None, 0, uid="u")] == [
        None
    ] * 3


@pytest.mark.parametrize(
    ("later", "follows"),
    [
        pytest.param(RankPlace(attempt=1, round=3, node=0), True, id="the same"),
        pytest.param(RankPlace(attempt=1, round=4, node=5), True, id="the next round"),
        pytest.param(RankPlace(attempt=1, round=5, node=0), False, id="a round that no status has shown"),
        pytest.param(RankPlace(attempt=2, round=1, node=0), False, id="another attempt"),
        pytest.param(RankPlace(attempt=1, round=1, node=0), False, id="an earlier round"),
    ],
)
def test_a_round_may_be_missed(later, follows):
    """The rank may have been anywhere in it, so all logs are read once."""
    assert later.follows(RankPlace(attempt=1, round=3, node=0)) is follows


# --- Connections


def test_each_reader_has_its_share_of_a_quarter_of_the_open_files():
    """A reader that comes later gets as many as the others, once these have given theirs back."""
    shares = LogShares(lambda: 1024)
    shared = [shares.share()]
    assert [shared[0].take() for _ in range(65)] == [True] * 64 + [False]

    shared += [shares.share() for _ in range(7)]
    assert [share.limit for share in shared] == [32] * 8
    assert sum(share.take() for share in shared[1:] for _ in range(40)) == 192
    assert [share.taken for share in shared] == [64, 32, 32, 32, 32, 32, 32, 0]
    for _ in range(32):
        shared[0].give()
    assert sum(shared[7].take() for _ in range(40)) == 32


@pytest.mark.parametrize(
    ("files", "readers", "limit"),
    [
        pytest.param(-1, 10, 64, id="no limit"),
        pytest.param(1 << 62, 1, 64, id="a huge limit"),
        pytest.param(1024, 257, 0, id="more readers than connections"),
        pytest.param(3, 1, 1, id="hardly any files"),
        pytest.param(0, 2, 0, id="no files"),
    ],
)
def test_limits_of_any_size_leave_one_connection(files, readers, limit):
    """Without any connection no log would be read."""
    shares = LogShares(lambda: files)
    shared = [shares.share() for _ in range(readers)]

    assert (shared[0].limit, shared[0].take()) == (limit, True)
    for share in shared[1:]:
        share.leave()
    assert shared[0].limit >= 1


def test_turns_go_to_who_waits_longest():
    """A pod that cannot be read to its end comes first but once; one without the rank waits for a reason."""
    kinds = ("stuck", "over", "long", "short", "new", "far", "owed")
    logs = {name: PodLog(view(number), read_at=80.0) for number, name in enumerate(kinds)}
    logs["stuck"].pod = logs["over"].pod = dataclasses.replace(view(0), phase="Failed")
    logs["stuck"].tried = True
    logs["long"].read_at, logs["short"].read_at, logs["new"].read_at = 50.0, 99.0, -float("inf")
    logs["far"].near = logs["owed"].near = False
    logs["owed"].owed = True

    order = [name for log in due(logs.values(), 100.0) for name in kinds if logs[name] is log]

    assert order == ["over", "new", "long", "stuck", "owed"]


# --- All together


class _Pods:
    """A cluster with pods that write lines, and counts connections that are open."""

    def __init__(self, *views: PodView) -> None:
        self.views = {one.name: one for one in views}
        self.lines: dict[str, list[str]] = {one.name: [] for one in views}
        self.open, self.most, self.asked = 0, 0, list[tuple[str, bool]]()
        self.streamed: set[str] = set()
        self._seconds = itertools.count()
        self.api, self.fresh, self.parsing = self, True, asyncio.Lock()
        self.cache = SimpleNamespace(pods_of=lambda _: tuple(self.views.values()))

    def write(self, name: str, text: str, *, rank: int = 0) -> None:
        """Add a line, each in a second of its own."""
        count = next(self._seconds)
        self.lines[name].append(f"2026-01-02T03:{count // 60:02}:{count % 60:02}.5Z {front(1, rank, 'out')}{text}\n")

    def end(self) -> None:
        self.views = {name: dataclasses.replace(one, phase="Succeeded") for name, one in self.views.items()}

    def path(self, *parts: str) -> str:
        return "/".join(parts)

    @contextlib.asynccontextmanager
    async def stream(self, path, *, query=None, silence=30.0):
        name, follow = path.split("/")[1], "follow" in query
        self.asked.append((name, follow))
        self.open += 1
        self.most = max(self.most, self.open)
        if follow:
            self.streamed.add(name)
        try:
            yield self._blocks(name, query.get("sinceTime", ""), follow=follow)
        finally:
            self.open -= 1
            if follow:
                self.streamed.discard(name)

    async def _blocks(self, name: str, since: str, *, follow: bool):
        sent = 0
        while True:
            lines = [line for line in self.lines[name][sent:] if line[:19] >= since[:19]]
            sent = len(self.lines[name])
            await asyncio.sleep(0)
            if lines:
                yield "".join(lines).encode()
            if not follow or (self.views[name].phase == "Succeeded" and sent == len(self.lines[name])):
                return
            await asyncio.sleep(0.01)

    async def get(self, kind: str, name: str) -> dict:
        return {"status": {"phase": self.views[name].phase}}


class _Look:
    """What is known of the job."""

    def __init__(self) -> None:
        self.rank_place: RankPlace | None = None
        self.over = False

    async def __call__(self, known: Known) -> Known:
        return dataclasses.replace(known, rank_place=self.rank_place, over=self.over)


def reader(cluster: _Pods, *, files: int = 1 << 20, rank: int | None = None) -> LogReader:
    known = Known(chosen=every_node)
    return LogReader(cast("Cluster", cluster), JOB, rank=rank, cursor="", known=known, shares=LogShares(lambda: files))


async def told_by(one: LogReader, look: _Look, found: list[str]) -> None:
    async for line in one.follow(look):
        found.append(line.text)  # noqa: PERF401  a test looks at it meanwhile


async def told(cluster: _Pods, look: _Look, found: list[str], **its) -> None:
    await told_by(reader(cluster, **its), look, found)


async def test_many_pods_are_read_in_turns_and_no_line_is_lost():
    """16 connections for 150 pods, which write before, between and after their turns."""
    cluster, look, found = _Pods(*map(view, range(150))), _Look(), list[str]()
    expected = list[str]()

    def write(which: str) -> None:
        for rank, name in enumerate(cluster.views):
            cluster.write(name, f"{which} {rank}", rank=rank)
            expected.append(f"{which} {rank}")

    write("first")
    task = asyncio.create_task(told(cluster, look, found, files=64))
    await eventually_async(lambda: len(cluster.streamed) == 14)
    write("second")
    await eventually_async(lambda: len(found) == 300)
    write("last")
    cluster.end()
    look.over = True
    await task

    assert sorted(found) == sorted(expected)
    assert (cluster.most, cluster.open) == (16, 0)


async def test_the_pods_of_a_small_job_are_all_streamed():
    """A line comes at once, not at the next turn."""
    cluster, look, found = _Pods(*map(view, range(64))), _Look(), list[str]()
    task = asyncio.create_task(told(cluster, look, found))
    await eventually_async(lambda: len(cluster.streamed) == 64)
    began = time.monotonic()
    for rank, name in enumerate(cluster.views):
        cluster.write(name, "x", rank=rank)
    await eventually_async(lambda: len(found) == 64)
    waited = time.monotonic() - began
    cluster.end()
    look.over = True
    await task

    assert waited < 0.5 * PATIENCE


async def test_of_one_rank_only_its_node_is_streamed():
    """It moves to another node; a round that no status has shown, and the end of a pod, are reasons to read the other logs."""
    cluster, look, found = _Pods(*map(view, range(10))), _Look(), list[str]()
    pods = list(cluster.views)
    look.rank_place = RankPlace(attempt=1, round=1, node=3)
    task = asyncio.create_task(told(cluster, look, found, rank=0))
    await eventually_async(lambda: cluster.streamed == {pods[3]})
    read = len(cluster.asked)
    cluster.write(pods[3], "before")
    await eventually_async(lambda: found == ["before"])
    assert cluster.asked[read:] == []

    look.rank_place = RankPlace(attempt=1, round=2, node=5)
    await eventually_async(lambda: cluster.streamed == {pods[5]})
    cluster.write(pods[5], "a")
    cluster.write(pods[5], "after")
    await eventually_async(lambda: found == ["before", "a", "after"])
    read = len(cluster.asked)
    look.rank_place = RankPlace(attempt=1, round=4, node=5)
    await eventually_async(lambda: {name for name, _ in cluster.asked[read:]} == set(pods) - {pods[5]})
    cluster.write(pods[8], "hidden")
    cluster.end()
    look.over = True
    await task

    assert found[3:] == ["hidden"]
    assert cluster.open == 0


async def test_readers_that_outnumber_the_connections_take_turns():
    """Three readers with two connections: each hears all of its job."""
    shares, looks = LogShares(lambda: 8), [_Look() for _ in range(3)]
    clusters, found = [_Pods(view(0)) for _ in looks], [list[str]() for _ in looks]

    readers = [LogReader(cast("Cluster", cluster), JOB, rank=None, cursor="", shares=shares) for cluster in clusters]
    tasks = [asyncio.create_task(told_by(*each)) for each in zip(readers, looks, found, strict=True)]
    for count, text in enumerate(("a", "b"), 1):
        for cluster in clusters:
            cluster.write(next(iter(cluster.views)), text)
        await eventually_async(lambda count=count: [len(texts) for texts in found] == [count] * 3)  # type: ignore[misc]
    for cluster, look in zip(clusters, looks, strict=True):
        cluster.end()
        look.over = True
    await asyncio.gather(*tasks)

    assert found == [["a", "b"]] * 3


async def test_many_forged_pods_are_sorted_out_in_a_thread():
    """100,000 of them take a quarter of a second, every two seconds, for which other triggers of the process would wait."""
    made = view(0)
    fakes = (dataclasses.replace(made, name=f"fake-{number}", uid=f"{number}") for number in range(2000))
    cluster, look, found = _Pods(made, *fakes), _Look(), list[str]()
    threads = set[str]()

    def known(pods) -> list[PodView]:
        threads.add(threading.current_thread().name)
        return node_pods(pods, ref=JOB, record=record(Slot(node=0)), plan=PLAN)

    one = LogReader(cast("Cluster", cluster), JOB, rank=None, cursor="", known=Known(chosen=known))
    cluster.write(made.name, "x")
    cluster.end()
    look.over = True
    await told_by(one, look, found)

    assert found == ["x"]
    assert threading.main_thread().name not in threads
    assert {name for name, _ in cluster.asked} == {made.name}
