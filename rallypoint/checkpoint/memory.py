"""Snapshots in shared memory: how they lie there, and who may touch what. No torch.

```
<folder>/                   RALLYPOINT_SNAPSHOT_DIR: one per agent, made and removed by it, in shared memory
    rank-<local rank>/      the area of one writer; its successor with the same local rank goes on with the same buffers
        0.bin  1.bin  ...   buffers, allocated once
        0.json              the header: what is in 0.bin; away for as long as that is written
    replica-<rank>/         the same of a rank of another node, written by the agent
```

**Complete or not there.** A writer takes a buffer that is not the newest, locks it, unlinks its header, copies, computes the
digest, and renames a new header into its place. So at every moment the area has a complete snapshot once it has had one, and
a writer that dies at any point leaves a buffer without a header, which nobody reads.

**Locks.** `flock` on a buffer: exclusive while it is written, shared while it is read or persisted; they end with their
process. A reader that has the lock looks at the header again; as long as it holds the lock, nothing changes.

**Order.** By (fence, step), as checkpoints are. Fences here are those of the running attempt, in whose agent's folder they lie.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rallypoint.checkpoint.errors import DamagedCheckpointError
from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.codec import WireError, loads
from rallypoint.wire.fence import Fence

__all__ = [
    "BUFFER",
    "HEADER",
    "Held",
    "Part",
    "TensorEntry",
    "area_of",
    "everything",
    "held",
    "own",
    "pinned",
    "read_part",
    "replica_area",
    "replica_areas",
]

BUFFER, HEADER = ".bin", ".json"
_VERSION = 1
_AREA, _REPLICA = "rank-", "replica-"


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a part.

    Attributes:
        key: names it in the state.
        dtype: torch's name of it, such as `float32`.
        shape: of what lies here; `at` is where that begins in the whole tensor, whose shape is `whole`.
        offset, size: bytes in the buffer.
        sharded: it is one rank's shard of a distributed tensor.
    """

    limits: ClassVar = {"shape[]": WHOLE, "whole[]": WHOLE, "at[]": WHOLE, "offset": WHOLE, "size": WHOLE}

    key: str
    dtype: str
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    at: tuple[int, ...]
    offset: int
    size: int
    sharded: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank kept of one step.

    Attributes:
        version: of this form.
        job: uid of the job; "" when it has none.
        granted: the writer's fence as its job counts.
        step: number of finished steps.
        rank, world_size: of the writer.
        whole: the state is not sharded: any one rank's part is all of it, but for the random states of the others.
        torch: version of torch that wrote.
        size: bytes that count; the digest is over them.
        digest: see `training/snapshots/digest.py`.
        values_at, values_size: where all that is not a tensor lies, pickled.
        tensors: in order of their place.
        position: where in the data it is; see `Manifest.position`.
    """

    limits: ClassVar = {"step": WHOLE, "size": WHOLE, "values_at": WHOLE, "values_size": WHOLE}

    version: int = _VERSION
    job: str
    granted: Fence
    step: int
    rank: int
    world_size: int
    whole: bool
    torch: str
    size: int
    digest: str
    values_at: int
    values_size: int
    tensors: tuple[TensorEntry, ...]
    position: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def age(self) -> tuple[Fence, int]:
        """The greater is the newer."""
        return self.granted, self.step


@dataclass(frozen=True, kw_only=True)
class Held:
    """A complete part and the buffer that it lies in; `text` is its header as it was read."""

    path: Path
    part: Part
    text: bytes


def area_of(folder: Path, local_rank: int) -> Path:
    """Return the area of a local rank; it may not exist yet."""
    return folder / f"{_AREA}{local_rank}"


def replica_area(folder: Path, rank: int) -> Path:
    """Return the area of a rank of another node; it may not exist yet."""
    return folder / f"{_REPLICA}{rank}"


def replica_areas(folder: Path) -> list[Path]:
    """Return all areas of ranks of other nodes."""
    return sorted(folder.glob(f"{_REPLICA}*"))


def own(found: Iterable[Held]) -> list[Held]:
    """Return those that were written by workers of this node."""
    return [one for one in found if one.path.parent.name.startswith(_AREA)]


def held(area: Path) -> list[Held]:
    """Return the complete snapshots of one area, newest first; none when there is no such folder."""
    try:
        headers = [path for path in area.iterdir() if path.suffix == HEADER]
    except FileNotFoundError:
        return []
    found = [one for path in headers if (one := _read(path)) is not None]
    return sorted(found, key=lambda one: one.part.age, reverse=True)


def everything(folder: Path) -> list[Held]:
    """Return the complete snapshots of all areas, newest first, and of one age in the order of ranks."""
    areas = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = [one for area in areas for one in held(area)]
    found.sort(key=lambda one: one.part.rank)
    return sorted(found, key=lambda one: one.part.age, reverse=True)


@contextlib.contextmanager
def pinned(one: Held) -> Iterator[int]:
    """Yield a descriptor of the buffer, which nobody overwrites meanwhile.

    Raises:
        DamagedCheckpointError: when it holds something else by now, or is shorter than its header says.

    """
    try:
        fd = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedCheckpointError(f"{one.path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DamagedCheckpointError(f"snapshot {one.path}: another process is writing this snapshot") from error
        now = _text(one.path.with_suffix(HEADER))
        if now != one.text:
            raise DamagedCheckpointError(f"snapshot {one.path}: another process has overwritten this snapshot")
        size = os.fstat(fd).st_size
        if size < one.part.size:
            raise DamagedCheckpointError(
                f"snapshot {one.path}: has {size} bytes; expected {one.part.size}, as its header states"
            )
        yield fd
    finally:
        os.close(fd)


def read_part(text: bytes) -> Part:
    """Read a header; raises `WireError`."""
    part = loads(Part, text)
    if part.version != _VERSION:
        raise WireError("version", part.version, str(_VERSION))
    return part


def _read(path: Path) -> Held | None:
    text = _text(path)
    try:
        part = None if text is None else read_part(text)
    except WireError:
        return None
    return None if part is None or text is None else Held(path=path.with_suffix(BUFFER), part=part, text=text)


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
