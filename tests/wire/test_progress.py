"""The shared-memory slots: what is written is read, and what is torn is never believed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rallypoint.wire.codec import WireError
from rallypoint.wire.progress import METRICS_BYTES, Life, ProgressFile, ProgressSlot, life_offset


def test_a_slot_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Two mappings of one file see the same slot, and only that one changes."""
    written = ProgressSlot(step=12, resumed_from=10, liveness=3, at=1.5, metrics={"loss": 0.25}, checkpoint="/ckpt/é")
    reader = ProgressFile.create(tmp_path / "p", 2)
    ProgressFile.open(tmp_path / "p").write(1, written)
    assert reader.read(1) == written
    assert reader.read(0) == ProgressSlot()


def test_a_slot_whose_writer_died_in_mid_write_is_unreadable(tmp_path: Path) -> None:
    """An odd sequence number means torn: None, never a wrong value; the next writer mends it."""
    path = tmp_path / "p"
    file = ProgressFile.create(path, 1)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<Q", raw, 16, 7)
    path.write_bytes(raw)
    torn = ProgressFile.open(path)
    assert torn.read(0) is None
    torn.write(0, ProgressSlot(step=1))
    assert torn.read(0) == ProgressSlot(step=1)
    file.close()


def test_metrics_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The limit is named; the slot keeps its last value."""
    file = ProgressFile.create(tmp_path / "p", 1)
    file.write(0, ProgressSlot(step=1))
    with pytest.raises(WireError, match=f"at most {METRICS_BYTES} bytes"):
        file.write(0, ProgressSlot(step=2, metrics={f"metric-{n}": 1.0 for n in range(100)}))
    assert file.read(0) == ProgressSlot(step=1)


@pytest.mark.parametrize("path", ["half a pair \ud9c4", "\udfff\ud800"])
def test_a_checkpoint_that_no_file_can_be_is_refused(tmp_path: Path, path: str) -> None:
    """Bytes that are no UTF-8 are a path, as `os.fsdecode` spells them; other lone surrogates are none."""
    file = ProgressFile.create(tmp_path / "p", 1)
    file.write(0, ProgressSlot(step=1, checkpoint="img_\udcff"))
    with pytest.raises(WireError, match=r"checkpoint: .*expected a path that Python"):
        file.write(0, ProgressSlot(step=2, checkpoint=path))
    assert file.read(0) == ProgressSlot(step=1, checkpoint="img_\udcff")


@pytest.mark.parametrize("index", [pytest.param(-1, id="below"), pytest.param(2, id="above")])
def test_a_slot_that_is_not_there_is_an_error(tmp_path: Path, index: int) -> None:
    """A local rank outside the file is refused by name."""
    file = ProgressFile.create(tmp_path / "p", 2)
    with pytest.raises(WireError, match="local_rank"):
        file.read(index)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """Whatever is not ours is not written to."""
    path = tmp_path / "p"
    path.write_bytes(b"x" * 64)
    with pytest.raises(WireError, match="progress file of Rallypoint in format version 5"):
        ProgressFile.open(path)


def test_a_life_record_has_its_own_place(tmp_path: Path) -> None:
    """Each field is written by itself, and neither another rank's record nor any slot changes."""
    file = ProgressFile.create(tmp_path / "p", 3)
    file.write(1, ProgressSlot(step=5))
    raw = bytearray((tmp_path / "p").read_bytes())
    struct.pack_into("<Qqqq", raw, life_offset(3, 1), 7, 4711, 9, 2)
    (tmp_path / "p").write_bytes(raw)
    read = ProgressFile.open(tmp_path / "p")

    assert read.life(1) == Life(steps=7, pid=4711, stacks=9, trains=True)
    assert (read.life(0), read.life(2)) == (Life(), Life())
    assert read.read(1) == ProgressSlot(step=5)
    assert life_offset(3, 1) % 8 == 0


def test_a_torn_slot_is_not_stepped_on(tmp_path: Path) -> None:
    """Whoever takes over from a writer that died in mid-write must write it whole once."""
    file = ProgressFile.create(tmp_path / "p", 1)
    file.write(0, ProgressSlot(step=1, metrics={"loss": 1.0}))
    sequence = int.from_bytes(file._map[16:24], "little")
    file._map[16:24] = (sequence + 1).to_bytes(8, "little")
    advance = file.stepper(0, [None])

    assert not advance(2, {})
    assert file.read(0) is None

    file.write(0, ProgressSlot(step=2, metrics={"loss": 0.5}))
    assert file.stepper(0, [None])(3, {"loss": 0.25})
    assert file.read(0) == ProgressSlot(step=3, liveness=1, at=(file.read(0) or ProgressSlot()).at, metrics={"loss": 0.25})


def test_whoever_has_the_turn_writes_alone(tmp_path: Path) -> None:
    """Another thread's step is refused meanwhile, and every way out gives the turn back."""
    file = ProgressFile.create(tmp_path / "p", 1)
    turn: list[None] = [None]
    advance = file.stepper(0, turn)

    turn.clear()
    assert not advance(1, {})
    turn.append(None)
    assert not advance(1, {"new": 1.0})
    assert advance(2, {})

    assert turn == [None]
    assert file.read(0) == ProgressSlot(step=2, liveness=1, at=(file.read(0) or ProgressSlot()).at)


def test_names_that_none_of_ours_writes_are_an_error(tmp_path: Path) -> None:
    """What a script scribbles there must not be taken for metrics."""
    file = ProgressFile.create(tmp_path / "p", 1)
    file.write(0, ProgressSlot(step=1, metrics={"loss": 1.0}))
    begin = file._map.find(b'["loss"]')
    file._map[begin : begin + 8] = b'{"l": 1}'

    with pytest.raises(
        WireError,
        match="metrics: 'dict' is not allowed; expected a list of at most 256 names",
    ):
        file.read(0)
    file.close()
