"""What is kept of what was told: the newer word stands, whoever said it, and what is deleted stays so."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from rallypoint.backends.kubernetes.labels import JOB as JOB_LABEL
from rallypoint.backends.kubernetes.labels import PART as PART_LABEL
from rallypoint.backends.kubernetes.labels import UID as UID_LABEL
from rallypoint.backends.kubernetes.watching.cache import Cache
from rallypoint.backends.kubernetes.watching.gone import Gone
from rallypoint.backends.kubernetes.watching.views import PodView, pod_view
from tests.kube.pods import JOB, ended, pod

UID = JOB.uid


def phases(cache):
    return {view.name: view.phase for view in cache.pods_of(UID)}


def test_the_newer_word_stands():
    """An answer to our own request may come before the watch tells of what was older."""
    cache = Cache()
    cache.pods.put(pod(phase="Running", version="12"))
    cache.pods.put(pod(phase="Pending", version="9"))

    assert phases(cache) == {"digits-a1-n0-1": "Running"}


def test_a_late_word_brings_nothing_back():
    """What was deleted is not there again because an older event comes after it."""
    cache = Cache()
    cache.pods.put(pod(version="5"))
    cache.pods.remove(pod(version="8", phase="Failed", containers=(ended(143),)))
    cache.pods.put(pod(version="7"))

    assert phases(cache) == {}


def test_a_new_object_of_an_old_name_is_another():
    """The one before is gone, and the new one is there."""
    cache = Cache()
    cache.follow("digits")
    cache.pods.put(pod(version="5", uid="old"))
    cache.pods.put(pod(version="3", uid="new"))

    assert [view.uid for view in cache.pods_of(UID)] == ["new"]
    assert [view.uid for view in cache.gone_of(UID)] == ["old"]


def test_a_list_ends_what_is_not_in_it():
    """But not what is younger than the list, nor what the list was not about."""
    cache = Cache()
    cache.pods.put(pod(node=0, version="5"))
    cache.pods.put(pod(node=1, version="6"))
    cache.pods.put(pod(node=2, version="30"))
    cache.pods.keep({pod(node=1)["metadata"]["uid"]}, "20")
    assert sorted(phases(cache)) == ["digits-a1-n1-1", "digits-a1-n2-1"]

    cache.pods.keep(set(), "40", among=lambda view: view.labels.uid == "another job's")
    assert sorted(phases(cache)) == ["digits-a1-n1-1", "digits-a1-n2-1"]


@pytest.mark.parametrize("followed", [pytest.param(True, id="followed"), pytest.param(False, id="nobody asks")])
def test_how_a_pod_was_seen_last_is_kept_for_who_follows(followed):
    """Its last state tells the exit code; without a follower it would be kept for nothing."""
    cache = Cache()
    if followed:
        cache.follow("digits")
    cache.pods.put(pod(version="5"))
    cache.pods.remove(pod(version="8", phase="Failed", containers=(ended(143),)))

    assert [view.phase for view in cache.gone_of(UID)] == (["Failed"] if followed else [])
    cache.forget_gone(UID, [view.uid for view in cache.gone_of(UID)])
    assert cache.gone_of(UID) == ()


async def test_news_wake_who_follows_that_job():
    """At once, also when they came before the wait; and nobody else."""
    cache = Cache()
    mine, other = cache.follow("digits"), cache.follow("another")
    cache.pods.put(pod(version="5"))

    await asyncio.wait_for(mine.wait(3600), timeout=60)
    began = asyncio.get_running_loop().time()
    await other.wait(0.05)
    await mine.wait(0.05)
    assert asyncio.get_running_loop().time() - began >= 0.09


def test_a_pod_or_status_that_changes_its_job_is_kept_once():
    """Any user of the namespace can change the labels, as often as they like."""
    cache, found = Cache(), pod()
    for number in range(3):
        its = {JOB_LABEL: f"job-{number}", UID_LABEL: f"uid-{number}"}
        meta = {**found["metadata"], "resourceVersion": str(number + 50), "labels": {**found["metadata"]["labels"], **its}}
        cache.pods.put({**found, "metadata": meta})
        cache.statuses.put({"metadata": {**meta, "name": "s", "uid": "s", "labels": {**its, PART_LABEL: "status"}}})

    assert [len(cache.pods_of(f"uid-{number}")) for number in range(3)] == [0, 0, 1]
    assert [cache.status(f"uid-{number}") is not None for number in range(3)] == [False, False, True]


def test_a_hosts_heartbeat_is_no_news():
    """Its object changes all the time; only that it is ready, or flagged, is told to the jobs that are there."""
    cache = Cache()
    cache.pods.put(pod(version="5"))
    news = cache.follow("digits")
    node: dict[str, Any] = {"metadata": {"name": "host-a", "uid": "h", "resourceVersion": "1"}, "status": {"conditions": []}}
    cache.hosts.put(node)
    news._news.clear()
    cache.hosts.put({**node, "metadata": {**node["metadata"], "resourceVersion": "2"}})
    assert not news._news.is_set()

    ready = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    flagged = {**node["metadata"], "resourceVersion": "3", "labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}
    cache.hosts.put({**node, "metadata": flagged, "status": ready})
    assert news._news.is_set()


def test_objects_above_the_limit_are_read_when_they_are_needed():
    """All ConfigMaps of a namespace may be larger than the memory of a triggerer: a watch that lost some is not up to date."""
    cache = Cache(most_bytes=3_000)
    for node in range(3):
        assert cache.pods.put(pod(node=node, version="5")) is not None
    assert (sorted(phases(cache)), cache.pods.full) == (["digits-a1-n0-1"], True)

    cache.pods.keep(set(), "9")  # of this list some objects are missing
    assert (phases(cache), cache.pods.full) == ({}, True)

    cache.pods.put(pod(node=4, version="10"))
    cache.pods.keep({pod(node=4)["metadata"]["uid"]}, "10")
    assert (sorted(phases(cache)), cache.pods.full) == (["digits-a1-n4-1"], False)


def test_a_flood_of_deleted_pods_leaves_the_pods_of_work():
    """Whoever may create pods may delete them, and the end of one that ran must be known: large ones are forgotten first."""
    gone = Gone(most=(100, 1 << 20), of_all=(150, 2 << 20))
    mine = [view(node=n) for n in range(60)]
    for one in mine:
        gone.add(one)
    for number in range(500):
        gone.add(view(node=0, uid=f"large-{number}", message="x" * 30_000))
        assert gone.size <= 1 << 20
    assert set(mine) <= set(gone.of(UID))

    for number in range(500):
        gone.add(view(node=0, uid=f"small-{number}"))
        assert gone.count <= 100
    assert gone.of(UID)[-1].uid == "small-499"


def test_a_flood_of_deleted_pods_of_one_job_leaves_those_of_another():
    """The labels of a pod can name any job."""
    gone = Gone(most=(100, 1 << 20), of_all=(150, 2 << 20))
    mine = view(node=0)
    gone.add(mine)
    for number in range(1000):
        one = view(node=0, uid=f"other-{number}")
        gone.add(dataclasses.replace(one, labels=dataclasses.replace(one.labels, uid=f"other-{number % 3}")))
        assert gone.count <= 150
    assert gone.of(UID) == (mine,)
    for number in range(3):
        gone.drop(f"other-{number}")
    gone.forget(UID, [mine.uid])
    assert (gone.count, gone.size, gone.of(UID)) == (0, 0, ())


def view(**said: Any) -> PodView:
    found = pod_view(pod(**said))
    assert found is not None
    return found
