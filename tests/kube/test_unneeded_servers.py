"""Which servers of a job in an AppWrapper should end, by what the pods say."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.kubernetes.labels import FIRST, JOB, PART, UID
from rallypoint.backends.kubernetes.watching.views import PodView, pod_view
from rallypoint.backends.kubernetes.wrapped.seen import unneeded


def pod(node: int, phase: str, *, codes: dict[str, int] | None = None, deleting: bool = False, **annotations: str) -> PodView:
    """A pod by its slot; `codes` are those of its containers that have ended."""
    labels = {JOB: "rl", UID: "u1", PART: "wrapped", FIRST: str(node)}
    words = {f"rallypoint.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata: dict[str, Any] = {"name": f"p{node}", "uid": f"u{node}", "labels": labels, "annotations": words}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ended = [{"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in (codes or {}).items()]
    found = pod_view({"metadata": metadata, "spec": {}, "status": {"phase": phase, "containerStatuses": ended}})
    assert found is not None
    return found


SERVER = pod(9, "Running", driver_pods="2")
ENDED = (pod(0, "Succeeded", drivers="a-0"), pod(1, "Succeeded", drivers="a-1"))


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param((*ENDED, SERVER), {"u9"}, id="all drivers have succeeded"),
        pytest.param((*ENDED, pod(9, "Pending", driver_pods="2")), {"u9"}, id="a server that does not run yet"),
        pytest.param((ENDED[0], SERVER), set(), id="a driver has no pod"),
        pytest.param((ENDED[0], pod(1, "Running", drivers="a-1"), SERVER), set(), id="a driver runs"),
        pytest.param((ENDED[0], pod(1, "Failed", drivers="a-1", codes={"a-1": 3}), SERVER), set(), id="a driver has failed"),
        pytest.param((ENDED[0], ENDED[0], SERVER), set(), id="the same driver twice"),
        pytest.param((*ENDED, pod(9, "Running", driver_pods="2", end="x")), set(), id="asked already"),
        pytest.param((*ENDED, pod(9, "Running", driver_pods="2", deleting=True)), set(), id="being deleted"),
        pytest.param((*ENDED, pod(9, "Succeeded", driver_pods="2")), set(), id="ended"),
        pytest.param(
            (ENDED[0], pod(1, "Running", drivers="a-1", codes={"a-1": 0}, driver_pods="2")), {"u1"}, id="both in one pod"
        ),
        pytest.param(
            (ENDED[0], pod(1, "Running", drivers="a-1,b-1", codes={"a-1": 0}, driver_pods="2")), set(), id="one of two drivers"
        ),
        pytest.param((*ENDED, pod(9, "Running", driver_pods="two")), set(), id="no number"),
        pytest.param((*ENDED, pod(9, "Running", driver_pods="9" * 5000)), set(), id="a number without end"),
        pytest.param((*ENDED, pod(9, "Running")), set(), id="no server"),
    ],
)
def test_which_servers_should_end(pods: tuple[PodView, ...], expected: set[str]) -> None:
    """Those of pods that are neither asked nor gone, once all pods with drivers have succeeded."""
    assert unneeded(pods) == expected
