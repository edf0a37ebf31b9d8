"""A batch sampler that follows the file of a tuned job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.training import TunedBatchSampler


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dataloader": {"version": 0, "batch_size": 0, "num_workers": 3}, "restart": False}))
    return path


def environ(path: Path, local_rank: int = 0) -> dict[str, str]:
    return {"RALLYPOINT_PARALLEL_CONFIG": str(path), "RALLYPOINT_LOCAL_RANK": str(local_rank)}


def tell(path: Path, version: int, batch: int) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"dataloader": {"version": version, "batch_size": batch}}))
    beside.replace(path)


def test_the_first_batch_is_written_down(file: Path) -> None:
    """By local rank 0 alone, and nothing else of the file changes."""
    before = file.read_text()
    TunedBatchSampler(range(10), 4, environ=environ(file, local_rank=1))
    assert file.read_text() == before

    TunedBatchSampler(range(10), 4, environ=environ(file))

    after = json.loads(file.read_text())
    loader = after["dataloader"]
    assert (loader["version"], loader["batch_size"], loader["num_workers"], after["restart"]) == (0, 4, 3, False)


def test_batches_follow_the_file(file: Path) -> None:
    """From the next batch on; an older version changes nothing, and no sample is lost or seen twice."""
    sampler = TunedBatchSampler(range(20), 2, environ=environ(file))
    batches = []
    for batch in sampler:
        batches.append(batch)
        if len(batches) == 2:
            tell(file, 1, 5)
        if len(batches) == 3:
            tell(file, 1, 9)

    assert [len(batch) for batch in batches] == [2, 2, 5, 5, 5, 1]
    assert [index for batch in batches for index in batch] == list(range(20))
    assert len(sampler) == 4


def test_the_next_attempt_begins_with_what_was_tuned(file: Path) -> None:
    """And does not write its own over it."""
    tell(file, 3, 7)
    assert TunedBatchSampler(range(20), 2, environ=environ(file)).batch_size == 7
    assert json.loads(file.read_text())["dataloader"]["batch_size"] == 7


def test_what_is_left_may_be_dropped(file: Path) -> None:
    """As torch's own sampler does."""
    sampler = TunedBatchSampler(range(10), 4, drop_last=True, environ={})
    assert ([len(batch) for batch in sampler], len(sampler)) == ([4, 4], 2)


def test_a_file_in_mid_write_changes_nothing(file: Path) -> None:
    """DLRover's loaders write it in place."""
    sampler = TunedBatchSampler(range(4), 2, environ=environ(file))
    file.write_text('{"dataloader": {"ver')
    assert [len(batch) for batch in sampler] == [2, 2]


def test_without_a_file_the_batch_stays() -> None:
    """As under any other launcher."""
    assert [len(batch) for batch in TunedBatchSampler(range(5), 2, environ={})] == [2, 2, 1]
    with pytest.raises(ValueError, match="batch_size 0: not allowed; expected 1 or more"):
        TunedBatchSampler(range(5), 0, environ={})
