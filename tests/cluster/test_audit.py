"""What the disasters are judged by sees what must never be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.audit import Audit, two_worlds
from tests.emulator.store import Change, Version


def changed(audit: Audit, node: int, incarnation: int, uid: str, phase: str = "Running", kind: str = "MODIFIED") -> None:
    labels = {"part": "node", "attempt": 1, "node": node, "incarnation": incarnation}
    metadata: dict[str, Any] = {"uid": uid, "labels": {f"rallypoint.dev/{key}": str(value) for key, value in labels.items()}}
    body = {"metadata": metadata, "status": {"phase": phase}}
    now = Version(key="pods", namespace="lab", name=f"pod-{uid}", body=body, revision=1)
    audit(Change(type=kind, revision=1, before=None, now=now))


def test_a_replacement_beside_the_living_is_seen() -> None:
    """Two living pods in one slot are wrong; one after the other's end is not."""
    audit = Audit("lab")
    changed(audit, 0, 1, "a")
    changed(audit, 0, 1, "a", phase="Failed")
    changed(audit, 0, 2, "b")
    assert audit.wrong == []
    changed(audit, 0, 3, "c", phase="Pending")
    assert audit.wrong == ["node 0 is alive 2 times: ['b', 'c']"]
    assert audit.incarnations() == {0: 3}


def test_an_incarnation_that_is_created_again_is_seen() -> None:
    """An incarnation is created once, however it ended."""
    audit = Audit("lab")
    changed(audit, 1, 1, "a")
    changed(audit, 1, 1, "a", kind="DELETED")
    changed(audit, 1, 1, "b")
    assert audit.wrong == ["incarnation 1 of node 1 was created 2 times"]


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        pytest.param({"1-0-7": "1 2", "1-1-8": "1 3", "2-0-9": "4 5"}, 0, id="one after the other"),
        pytest.param({"1-0-7": "1 2", "1-1-8": "1 4.5", "2-0-9": "4 5"}, 1, id="a step after the next round began"),
        pytest.param({"1-0-7": "1 2", "1-0-8": "1 2"}, 1, id="a rank twice"),
    ],
)
def test_two_worlds_are_seen(tmp_path: Path, files: dict[str, str], wrong: int) -> None:
    """Trails that overlap between rounds, or within one, are told."""
    for name, times in files.items():
        (tmp_path / name).write_text("\n".join(times.split()))
    assert len(two_worlds(tmp_path)) == wrong
