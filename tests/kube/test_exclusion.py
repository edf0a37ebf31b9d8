"""Which machines the pods of a job keep off."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.kubernetes.exclusion import choose_exclusion
from rallypoint.backends.kubernetes.manifests.hosts import Exclusion
from rallypoint.backends.kubernetes.watching.views import host_view
from rallypoint.job import Role, load_job

BAD, FLAGGED = frozenset({"a"}), frozenset({"b"})


def role(**fields: Any) -> Role:
    return load_job({"name": "train", "entrypoint": "train.py", "image": "any:1", **fields}, based=False).roles[0]


def machine(name: str, ready: str = "True", *, cordoned: bool = False, taint: str = "", **labels: str) -> dict[str, Any]:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": cordoned, "taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("machines", "fields", "expected"),
    [
        pytest.param([machine("a"), machine("c")], {}, Exclusion(required=BAD), id="another one is there"),
        pytest.param([machine("a")], {}, Exclusion(), id="no other one is there"),
        pytest.param([machine("a"), machine("c", ready="Unknown")], {}, Exclusion(), id="the other one is lost"),
        pytest.param([machine("a"), machine("c", cordoned=True)], {}, Exclusion(), id="the other one is cordoned"),
        pytest.param([machine("a"), machine("c", taint="gpu")], {}, Exclusion(), id="the other one is tainted"),
        pytest.param(
            [machine("a"), machine("c", taint="gpu")],
            {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
            Exclusion(required=BAD),
            id="its taint is tolerated",
        ),
        pytest.param(
            [machine("a"), machine("c", pool="cpu")], {"node_selector": {"pool": "gpu"}}, Exclusion(), id="it is not selected"
        ),
        pytest.param([machine("a"), machine("c")], {"host_ignore_list": ["c"]}, Exclusion(), id="the user excludes it"),
        pytest.param(None, {}, Exclusion(preferred=BAD), id="machines may not be looked at"),
    ],
)
def test_a_fault_keeps_a_job_off_a_machine_while_another_can_take_it(
    machines: list[dict[str, Any]] | None, fields: dict[str, Any], expected: Exclusion
) -> None:
    """The last usable machine is never excluded; where nobody knows which there are, the exclusion is a preference."""
    hosts = None if machines is None else [host_view(found) for found in machines]

    assert choose_exclusion(BAD, frozenset(), hosts, role(**fields)) == expected


def test_flagged_devices_are_never_used() -> None:
    """A broken accelerator is no place to train, even where it is the last."""
    assert choose_exclusion(BAD, FLAGGED, None, role()) == Exclusion(required=FLAGGED, preferred=BAD)
    assert choose_exclusion(BAD, FLAGGED, [host_view(machine("a"))], role()) == Exclusion(required=FLAGGED)
