"""From shared memory to storage: parts become a checkpoint beside those that the script writes.

Each node writes the parts that lie in its memory, and whoever finds that none is missing completes the checkpoint: nobody
leads, so nobody's death can keep a finished one from being complete. The buffer is pinned meanwhile; training goes on in the
others.

A persisted snapshot has the name, the manifest and so the place in the order of every other checkpoint (manifest.py); its parts
keep their own headers, whose digests are proven when they are loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rallypoint.checkpoint.errors import DamagedCheckpointError
from rallypoint.checkpoint.manifest import Manifest, claim_fence, name_of
from rallypoint.checkpoint.memory import Held, Part, pinned, read_part
from rallypoint.checkpoint.store import APART, Store
from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.codec import WireError, dumps, loads
from rallypoint.wire.private import replace_file

__all__ = [
    "PART_DATA",
    "Destination",
    "Persisted",
    "Retention",
    "commit",
    "is_snapshot",
    "part_files",
    "persist",
    "read_destination",
    "surplus_snapshots",
    "write",
    "write_destination",
]

_log = logging.getLogger(__name__)

PART_DATA, _PART_HEADER = ".part", ".json"
_DESTINATION = "storage.json"


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which persisted snapshots stay: the newest `count`, and every one whose step is a multiple of `interval` (0: none)."""

    count: int = 2
    interval: int = 0


@dataclass(frozen=True, kw_only=True)
class Persisted:
    """What became of it; `complete` is False while parts of other nodes are missing."""

    checkpoint: str
    step: int
    complete: bool


def part_files(rank: int) -> tuple[str, str]:
    """Return the names of a part's data and of its header."""
    return f"rank-{rank:05d}{PART_DATA}", f"rank-{rank:05d}{_PART_HEADER}"


def is_snapshot(manifest: Manifest) -> bool:
    """Return whether a checkpoint is a persisted snapshot."""
    return any(name.endswith(PART_DATA) for name in manifest.files)


def persist(found: Sequence[Held], store: Store, retention: Retention) -> Persisted | None:
    """Persist the newest snapshot of this node's memory.

    Args:
        found: all that is held, newest first.
        store: where it goes.
        retention: of persisted snapshots; other checkpoints are left alone.

    Returns:
        What became of it, or None when there is nothing, or it is persisted already.

    Raises:
        CheckpointError: when it could not be written. `NoRoomError` says how many bytes are missing. What is there stays.
        OSError: as the storage says it.

    """
    for age in sorted({one.part.age for one in found}, reverse=True):
        parts = {one.part.rank: one for one in found if one.part.age == age}
        chosen = [parts[min(parts)]] if parts[min(parts)].part.whole else [parts[rank] for rank in sorted(parts)]
        try:
            return _persist_one(chosen, store, retention)
        except DamagedCheckpointError as error:
            _log.warning("a snapshot is damaged and cannot be stored (%s); trying to store the previous snapshot", error)
    return None


def _persist_one(held: Sequence[Held], store: Store, retention: Retention) -> Persisted | None:
    return None if write(held, store) is None else commit(held[0].part, store, retention)


def write(held: Sequence[Held], store: Store) -> str | None:
    """Write parts of one snapshot into its draft, and return its name; None where it is a complete checkpoint already.

    Raises as `persist` does.
    """
    part = held[0].part
    known = store.complete()
    if _stored(part, known) is not None:
        return None
    name = name_of(claim_fence(store.named(), known, part.job, part.granted), part.step)
    draft = _draft(name, part)
    store.begin(draft, sum(one.part.size for one in held))
    for one in held:
        data, header = part_files(one.part.rank)
        with pinned(one) as fd:
            store.write(draft, data, fd, one.part.size)
        store.note(draft, header, one.text)
    return name


def commit(part: Part, store: Store, retention: Retention) -> Persisted:
    """Make the snapshot that `part` is of a complete checkpoint, if none of its parts is missing. Raises as `persist` does."""
    known = store.complete()
    done = _stored(part, known)
    if done is not None:
        return Persisted(checkpoint=name_of(done.fence, done.step), step=done.step, complete=True)
    fence = claim_fence(store.named(), known, part.job, part.granted)
    name = name_of(fence, part.step)
    draft = _draft(name, part)
    there = _parts(store.notes(draft).values(), part)
    ranks = {part.rank} if part.whole else set(there)
    complete = part.whole or ranks == set(range(part.world_size))
    if complete:
        files = store.describe(draft, [file for rank in sorted(ranks) for file in part_files(rank)])
        torn = [rank for rank in sorted(ranks & set(there)) if files[part_files(rank)[0]].size != there[rank].size]
        if torn:
            raise DamagedCheckpointError(
                f"snapshot {draft}: the part of rank {torn[0]} does not have the size that its header states"
            )
        manifest = Manifest(
            job=part.job,
            granted=part.granted,
            fence=fence,
            step=part.step,
            world_size=part.world_size,
            torch=part.torch,
            files=files,
            position=part.position,
            digests={part_files(rank)[0]: there[rank].digest for rank in sorted(ranks & set(there))},
        )
        store.publish(draft, name, manifest)
        for old in surplus_snapshots(store.complete(), retention):
            store.discard(old)
    return Persisted(checkpoint=name, step=part.step, complete=complete)


def _stored(part: Part, known: Iterable[Manifest]) -> Manifest | None:
    return next((m for m in known if (m.job, m.granted, m.step) == (part.job, part.granted, part.step)), None)


def _draft(name: str, part: Part) -> str:
    # Nodes that have a whole state each do not write into one place: one complete part is all that is needed.
    return f"{name}{APART}{part.rank}" if part.whole else name


def _parts(headers: Iterable[bytes], part: Part) -> dict[int, Part]:
    """Return the parts of the same snapshot that are there, by rank: a header is written after its data."""
    found = {}
    for text in headers:
        try:
            other = read_part(text)
        except WireError:
            continue
        if (other.job, other.age) == (part.job, part.age):
            found[other.rank] = other
    return found


def surplus_snapshots(complete: Sequence[Manifest], retention: Retention) -> list[str]:
    """Return the names of the persisted snapshots that need not stay; `complete` is ordered newest first."""
    snapshots = [manifest for manifest in complete if is_snapshot(manifest)]
    old = snapshots[retention.count :]
    return [name_of(m.fence, m.step) for m in old if not retention.interval or m.step % retention.interval]


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where a script wants its snapshots persisted; told to the agent by a file beside them."""

    limits: ClassVar = {"count": WHOLE, "interval": WHOLE}

    where: str
    count: int = 2
    interval: int = 0

    @property
    def retention(self) -> Retention:
        """Which of them stay."""
        return Retention(count=self.count, interval=self.interval)


def write_destination(folder: Path, destination: Destination) -> None:
    """Tell the agent; the last word counts."""
    replace_file(folder / _DESTINATION, dumps(destination))


def read_destination(folder: Path) -> Destination | None:
    """Return what the script told, None when it told nothing that can be read."""
    try:
        return loads(Destination, (folder / _DESTINATION).read_bytes())
    except FileNotFoundError:
        return None
    except WireError as error:
        _log.warning("%s: %s", folder / _DESTINATION, error)
        return None
