"""Objects with hostile values in every field: what a watch keeps of one is counted, and has a largest size."""

from __future__ import annotations

import copy
import dataclasses
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from rallypoint.backends.kubernetes.labels import ATTEMPT, DRIVER_PODS, DRIVERS, END, JOB, LIVES, PART, PLACE, UID, Part
from rallypoint.backends.kubernetes.manifests import kueue
from rallypoint.backends.kubernetes.manifests.hosts import HOSTNAME
from rallypoint.backends.kubernetes.manifests.objects import JOB_KEY, MANIFEST_KEY, PLAN_KEY, RECORD_KEY, STATUS_KEY
from rallypoint.backends.kubernetes.watching.bounded import memory_of
from rallypoint.backends.kubernetes.watching.cache import View
from rallypoint.backends.kubernetes.watching.views import ENDED, HOLDER, configmap_view, host_view, pod_view
from rallypoint.backends.kubernetes.wrapped.objects import view_of
from rallypoint.backends.kubernetes.wrapped.seen import SUSPENDED
from rallypoint.wire.plan import Kind
from tests.kube.pods import condition, ended, pod, waiting
from tests.scale import sized

Read = Callable[[Mapping[str, Any]], View | None]

WIDE = "\U0001f600" + "a" * 60_000

#: What may stand where something else is expected: JSON, as an API server sends it.
HOSTILE = {
    "long": json.dumps("a" * 250_000),
    "wide": json.dumps(WIDE),
    "surrogate": '"\\ud800"',
    "nested": f"[{','.join(['[]'] * 3_000)}]",
    "texts": json.dumps([WIDE[:20_000]] * 4),
    "names": json.dumps([f"n{number}" for number in range(2_500)]),
    "mapping": json.dumps({f"k{number}": "" for number in range(2_500)}),
    "number": "1" + "0" * 400,
    "float": "1e999",
    "nan": "NaN",
    "negative": "-7",
    "null": "null",
    "true": "true",
}

UNIT = {PART: Part.UNIT.value, PLACE: "place", JOB: "digits", UID: "u", ATTEMPT: "1"}


def full_pod() -> dict[str, Any]:
    """A pod that says something in every field that is read."""
    lives = {"lastState": ended(3, "Error", "before")["state"], "restartCount": 2}
    found = pod(
        conditions=(
            condition("PodScheduled", "Unschedulable", "0/3 nodes", status="False"),
            condition("DisruptionTarget", "EvictionByEvictionAPI", "evicted"),
        ),
        containers=({**waiting("ErrImagePull", "no such image"), **lives}, ended(1, "Error", "words", name="b")),
        host="",
        deleting=True,
        spec={
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": ["host-b", "host-c"]}]}
                        ]
                    }
                }
            },
            "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        initContainerStatuses=[ended(0, "Completed", name="init")],
        reason="Evicted",
        message="its node has no room",
        podIP="10.0.0.1",
    )
    found["metadata"]["labels"] |= {**UNIT, kueue.GROUP: "g"}
    found["metadata"]["finalizers"] = [kueue.FINALIZER]
    found["metadata"]["annotations"] = {LIVES: "a-0=0.1", DRIVERS: "a,b", DRIVER_PODS: "2", END: "x", kueue.RETRIABLE: "true"}
    return found


def scheduled_pod() -> dict[str, Any]:
    """The fields that a pod has only without others."""
    found = full_pod()
    found["spec"] |= {"nodeName": "host-a", "schedulingGates": [{"name": "a/b"}]}
    return found


def full_configmap(part: Part) -> dict[str, Any]:
    keys = (JOB_KEY, PLAN_KEY, RECORD_KEY, MANIFEST_KEY, STATUS_KEY, "other")
    annotations = {HOLDER: "me", ENDED: "1@5"}
    labels = {JOB: "digits", UID: "u", PART: part.value}
    metadata = {"name": "c", "uid": "u", "resourceVersion": "1", "labels": labels, "annotations": annotations}
    return {"metadata": {**metadata, "deletionTimestamp": "x"}, "data": dict.fromkeys(keys, "{}")}


def full_host() -> dict[str, Any]:
    labels = {"autopilot.ibm.com/gpuhealth": "EVICT", "zone": "a"}
    return {
        "metadata": {"name": "host-a", "uid": "h", "resourceVersion": "1", "labels": labels},
        "spec": {"unschedulable": True, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def full_wrapper(**status: Any) -> dict[str, Any]:
    annotations = {ATTEMPT: "2", SUSPENDED: "true"}
    metadata = {"name": "w", "uid": "u", "resourceVersion": "1", "labels": {JOB: "digits", UID: "u"}}
    conditions = [
        {"type": kind, "status": "True", "reason": "Why", "message": "words", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("QuotaReserved", "PodsReady", "Failed")
    ]
    return {
        "metadata": {**metadata, "annotations": annotations, "deletionTimestamp": "x"},
        "spec": {"suspend": True, "runPolicy": {"suspend": True}},
        "status": {"conditions": conditions, **status},
    }


def ray_status() -> dict[str, Any]:
    message = "Job entrypoint command failed with exit code 3, last available logs:\nline 1\nline 2"
    return {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "state": "x", "reason": "AppFailed", "message": message}


def reader(kind: Kind) -> Read:
    return lambda found: view_of(kind, found)


#: By name: an object, what reads it, and the most bytes that are kept of one.
CASES: dict[str, tuple[dict[str, Any], Read, int]] = {
    "pod": (full_pod(), pod_view, 1 << 20),
    "scheduled pod": (scheduled_pod(), pod_view, 1 << 20),
    "job": (full_configmap(Part.JOB), configmap_view, 5 << 20),
    "status": (full_configmap(Part.STATUS), configmap_view, 5 << 20),
    "host": (full_host(), host_view, 1 << 20),
    "appwrapper": (full_wrapper(phase="Running", resettingCount=1), reader(Kind.APPWRAPPER), 2 << 20),
    "unknown phase": (full_wrapper(phase="Foo"), reader(Kind.APPWRAPPER), 2 << 20),
    "pytorchjob": (full_wrapper(), reader(Kind.PYTORCHJOB), 2 << 20),
    "rayjob": (full_wrapper(**ray_status()), reader(Kind.RAYJOB), 2 << 20),
    "raycluster": (full_wrapper(**ray_status()), reader(Kind.RAYCLUSTER), 2 << 20),
}

_MARK = "\x00here"


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of an object, itself excepted."""
    if path:
        yield path
    parts = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def with_value(found: dict[str, Any], path: tuple[Any, ...], value: str) -> str:
    """Return the JSON of an object with this JSON in one place."""
    changed = copy.deepcopy(found)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), value)


def with_all(found: Any, value: str, most: int) -> Any:
    """Return an object whose texts all end in `value`, and whose lists have their entries many times."""
    if isinstance(found, dict):
        named = {f"k{n}": value for n in range(most)} if all(isinstance(part, str) for part in found.values()) else {}
        return {**{key: with_all(part, value, most) for key, part in found.items()}, **named}
    if isinstance(found, list):
        return [with_all(part, value, most) for part in found] * most
    return f"{found}{value}" if isinstance(found, str) else found


def check(read: Read, text: str, largest: int) -> View | None:
    """Read an object, and compare what is kept of it with what is counted."""
    tracemalloc.start()
    try:
        read(json.loads(text))  # Python keeps some freed lists and mappings for the next ones
        before = tracemalloc.get_traced_memory()[0]
        view = read(json.loads(text))
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = 0 if view is None else memory_of(view)
    assert counted + 4096 >= 0.8 * kept, f"counted {counted} bytes of {kept}"
    assert counted <= largest
    return view


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("value", HOSTILE)
def test_what_is_kept_of_a_hostile_value_is_counted(case: str, value: str) -> None:
    """In each place of an object, of which `make test` draws a quarter by value; and nothing in it ends the watch."""
    found, read, largest = CASES[case]
    assert read(copy.deepcopy(found)) is not None
    every = sized(1, 4)
    for path in list(places(found))[list(HOSTILE).index(value) % every :: every]:
        check(read, with_value(found, path, HOSTILE[value]), largest)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("ending", "most"), [(WIDE[:30_000], 3), ("a" * 200, 12), ("", 30), ("\U0001f600" + "a" * 300, 12)])
def test_many_hostile_values_have_a_largest_size(case: str, ending: str, most: int) -> None:
    """All of them at once: names stay, since without them nothing is kept."""
    found, read, largest = CASES[case]
    hostile = with_all(found, ending, most)
    for field in ("name", "uid", "resourceVersion", "labels"):
        hostile["metadata"][field] = found["metadata"].get(field)
    view = check(read, json.dumps(hostile), largest)
    assert view is not None


@pytest.mark.parametrize("names", [("pod", "scheduled pod"), ("job",), ("host",), ("appwrapper", "unknown phase", "rayjob")])
def test_the_objects_of_this_test_fill_every_field(names: tuple[str, ...]) -> None:
    """A field that is added later must be given a value here."""
    views: list[Any] = [read(found) for found, read, _ in map(CASES.__getitem__, names)]
    empty = [f.name for f in dataclasses.fields(views[0]) if not any(getattr(view, f.name) for view in views)]
    assert empty == []
