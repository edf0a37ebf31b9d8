"""What a manifest tells of the data: the plain entries of a state, and nothing that is long or is no JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rallypoint.checkpoint.memory import everything
from rallypoint.training import Checkpoints, ResumableSampler, Snapshots
from rallypoint.training.values import position_of
from rallypoint.wire import env


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param({"step": 3, "names": ["a", None], "share": 0.5, "last": True}, True, id="plain"),
        pytest.param(7, True, id="a counter"),
        pytest.param({"x": torch.zeros(1)}, False, id="a tensor in it"),
        pytest.param({1: 2}, False, id="a key that JSON has not"),
        pytest.param(float("nan"), False, id="no number"),
        pytest.param([float("inf")], False, id="no number that JSON has"),
        pytest.param("x" * 3000, False, id="too long"),
        pytest.param(object(), False, id="an object"),
    ],
)
def test_plain_entries_are_told(value: object, told: bool) -> None:
    """As they are; the others are in the state alone."""
    assert position_of({"it": value}) == ({"it": value} if told else {})


def test_manifests_say_where_in_the_data_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A persisted snapshot's and the helper's; with step, size of the world and the digest of each part."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv(env.SNAPSHOT_DIR, str(memory))
    sampler = ResumableSampler(64, batch_size=8, seed=3)
    sampler.batch(4)
    state = {"weight": torch.ones(8), "sampler": sampler, "epoch": 2}
    snapshots = Snapshots(state, storage=tmp_path / "snapshots", persist_every=1)
    snapshots.save(5)
    snapshots.close()
    Checkpoints(tmp_path / "checkpoints").save(5, state)

    told = {}
    for kind in ("snapshots", "checkpoints"):
        (path,) = (tmp_path / kind).glob("*/manifest.json")
        told[kind] = json.loads(path.read_text())
        assert told[kind]["position"] == {"sampler": sampler.state_dict(), "epoch": 2}
        assert (told[kind]["step"], told[kind]["world_size"]) == (5, 1)
    (one,) = everything(memory)
    assert told["snapshots"]["digests"] == {"rank-00000.part": one.part.digest}
