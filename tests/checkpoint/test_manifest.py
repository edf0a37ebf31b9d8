from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.checkpoint.manifest import (
    Checkpoint,
    FileEntry,
    Manifest,
    claim_fence,
    name_of,
    newest_first,
    parse_name,
    refuse_stale,
    surplus,
)
from rallypoint.training.errors import CheckpointError
from rallypoint.wire.codec import dumps, loads
from rallypoint.wire.fence import Fence

numbers = st.integers(0, 10**13)
fences = st.builds(Fence, attempt=numbers, term=numbers, round=numbers)


def checkpoint(attempt, term, number, step):
    fence = Fence(attempt=attempt, term=term, round=number)
    return Checkpoint(fence=fence, step=step, path=Path(name_of(fence, step)))


def manifest(fence, *, job="", granted=None):
    return Manifest(job=job, granted=granted or fence, fence=fence, step=1, world_size=1, torch="2", files={})


def at(attempt, number=1):
    return Fence(attempt=attempt, term=1, round=number)


@given(fence=fences, step=numbers)
def test_a_name_says_fence_and_step(fence, step):
    """A final name is read back as what it was made of."""
    path = Path("/data") / name_of(fence, step)

    assert parse_name(path) == Checkpoint(fence=fence, step=step, path=path)


@pytest.mark.parametrize("name", ["step-000000000001-1.1.1.tmp", "step-1-1.1.1", "result.json", "step-000000000001-1.1", "x"])
def test_other_names_are_not_ours(name):
    """Unfinished checkpoints and foreign files are not checkpoints."""
    assert parse_name(Path(name)) is None


def test_a_newer_round_is_newer_whatever_its_step():
    """Order is by (attempt, term, round), then by step as a number."""
    expected = [
        checkpoint(2, 1, 1, 5),
        checkpoint(1, 2, 1, 10),
        checkpoint(1, 1, 10, 20),
        checkpoint(1, 1, 9, 10**12),
        checkpoint(1, 1, 9, 999),
    ]

    assert newest_first(c.path for c in reversed(expected)) == expected


def test_a_manifest_survives_its_file():
    """A manifest is read back from its JSON as it was."""
    one = Manifest(
        job="ab12",
        granted=at(1),
        fence=at(3),
        step=7,
        world_size=4,
        torch="2.13.0",
        files={"values.pt": FileEntry(size=3, sha256="00"), "__0_0.distcp": FileEntry(size=1 << 30, sha256="")},
    )

    assert loads(Manifest, dumps(one)) == one


CLAIMS = [
    pytest.param([], "ab", at(1, 2), at(1, 2), id="an empty folder: the job's own fence"),
    pytest.param([manifest(at(1), job="ab")], "ab", at(1, 2), at(1, 2), id="the job goes on: its own fence"),
    pytest.param([manifest(at(1, 9), job="old")], "ab", at(1), at(2), id="another job was here: above it"),
    pytest.param([manifest(at(2), job="ab", granted=at(1))], "ab", at(1, 2), at(2, 2), id="and it stays above it"),
    pytest.param([manifest(at(1, 3))], "", at(1), at(2), id="an agent by hand, started again: above the start before"),
    pytest.param([manifest(at(1))], "", at(1, 2), at(1, 2), id="an agent by hand, next round: its own fence"),
    pytest.param([], "", None, Fence(attempt=1), id="outside Rallypoint: the first attempt"),
    pytest.param([manifest(at(4, 2))], "", None, Fence(attempt=5), id="outside Rallypoint again: the next attempt"),
]


@pytest.mark.parametrize(("found", "uid", "granted", "expected"), CLAIMS)
def test_a_writer_orders_itself_behind_what_is_there(found, uid, granted, expected):
    """The fence to write under is the job's own, lifted above other jobs' checkpoints where those are higher."""
    named = [Checkpoint(fence=m.fence, step=m.step, path=Path(name_of(m.fence, m.step))) for m in found]

    assert claim_fence(named, found, uid, granted) == expected


@pytest.mark.parametrize("granted", [pytest.param(at(1), id="in a job"), pytest.param(None, id="outside Rallypoint")])
def test_a_claim_goes_above_damaged_ones_too(granted):
    """The fence that is claimed is never one that a damaged checkpoint of another job makes stale."""
    named = [checkpoint(2, 2, 4, 9), checkpoint(1, 1, 1, 5)]
    fence = claim_fence(named, [manifest(at(1), job="old")], "ab", granted)

    assert fence.attempt == 3
    refuse_stale(fence, named)


def test_a_stale_writer_is_refused():
    """Who finds a higher fence than its own does not write; an equal one is its own."""
    refuse_stale(at(1, 2), [checkpoint(1, 1, 2, 5)])
    with pytest.raises(CheckpointError, match=r"fencing token 1\.1\.1, but a worker with the newer token 1\.1\.2"):
        refuse_stale(at(1, 1), [checkpoint(1, 1, 2, 5)])


def test_damaged_ones_do_not_count_as_kept():
    """Only what is older than the `keep` newest complete ones goes; with fewer complete ones nothing does."""
    newest, damaged, good, old = (checkpoint(1, 1, 1, step) for step in (40, 30, 20, 10))

    assert surplus([newest, damaged, good, old], [newest, good, old], 2) == [old]
    assert surplus([newest, damaged, good], [newest, good], 1) == [damaged, good]
    assert surplus([newest, damaged], [newest], 2) == []
