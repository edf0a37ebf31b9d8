"""What a complete checkpoint is, and which of several is the newest. No torch, nothing is written here.

A checkpoint is a folder that bears its final name and holds a `manifest.json` that agrees with the files beside it. While
it is written it is called `<name>.tmp`; the last act of a save is the renaming. So a kill at any point leaves either a
`.tmp`, which nobody reads, or a complete checkpoint.

```
step-000000000300-1.1.2          step 300, attempt 1, term 1, round 2
    manifest.json                this file: fence, step, world size, every file's size and digest
    values.pt                    everything that is not a tensor, written by rank 0
    .metadata, __<rank>_0.distcp torch.distributed.checkpoint's own files
```

**What the manifest proves.** Every file is there and has the size it had (a torn or truncated file never passes), and
`values.pt` and every file of at most 1 MiB have the SHA-256 they had, which covers the metadata and all of a small
checkpoint. The contents of larger files are not read again: a bit that flips inside one is not seen here.

**Order.** By (fence, step): what a newer round wrote is newer, whatever its step and whenever its files were touched. A
stale round's writer can so never win over a newer one.

**Whose fence.** Fences count from 1 in each job, so a job that finds higher ones of another job adds its own attempts to the
highest attempt there, damaged checkpoints included, and keeps doing so. A start outside Rallypoint has nobody who counts for
it: it is an attempt of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from rallypoint.checkpoint.errors import CheckpointError, DamagedCheckpointError
from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.codec import WireError, loads
from rallypoint.wire.fence import Fence

__all__ = [
    "MANIFEST",
    "TEMPORARY",
    "VALUES",
    "Checkpoint",
    "FileEntry",
    "Manifest",
    "claim_fence",
    "describe",
    "name_of",
    "newest_first",
    "parse_name",
    "refuse_stale",
    "surplus",
    "verify",
]

MANIFEST = "manifest.json"
VALUES = "values.pt"
TEMPORARY = ".tmp"
_VERSION = 1
#: Files up to this size are digested; `values.pt` always is, since unpickling damaged bytes may do anything.
_DIGEST_BYTES = 1 << 20
_NAME = re.compile(r"step-(?P<step>\d{12,})-(?P<attempt>\d+)\.(?P<term>\d+)\.(?P<round>\d+)", re.ASCII)


@dataclass(frozen=True, order=True, kw_only=True)
class Checkpoint:
    """One checkpoint by its name; of two the greater is the newer."""

    fence: Fence
    step: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint; `sha256` in hex is empty for a file of more than 1 MiB other than `values.pt`."""

    limits: ClassVar = {"size": WHOLE}

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was written, by whom.

    Attributes:
        version: of this form.
        job: uid of the job that wrote it; "" when it has none.
        granted: the writer's fence as its job counts; `fence` is the one it has in this folder.
        step: number of finished steps.
        world_size: ranks that wrote; random states are restored to a world of this size only.
        torch: version of torch that wrote.
        files: by name, without the manifest.
        position: where in the data it is: the plain entries of the state, such as a sampler's and the step.
        digests: of the parts of a persisted snapshot, by file; see `training/snapshots/digest.py`.
    """

    limits: ClassVar = {"step": WHOLE}

    version: int = _VERSION
    job: str
    granted: Fence
    fence: Fence
    step: int
    world_size: int
    torch: str
    files: dict[str, FileEntry]
    position: dict[str, Any] = field(default_factory=dict, hash=False)
    digests: dict[str, str] = field(default_factory=dict, hash=False)


def name_of(fence: Fence, step: int) -> str:
    """Return the folder's final name."""
    return f"step-{step:012d}-{fence}"


def parse_name(path: Path) -> Checkpoint | None:
    """Read a folder's final name; None when it is not one of ours, or still temporary."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    number = {key: int(text) for key, text in match.groupdict().items()}
    step = number.pop("step")
    return Checkpoint(fence=Fence(**number), step=step, path=path)


def newest_first(paths: Iterable[Path]) -> list[Checkpoint]:
    """Return what bears a final name, ordered by (fence, step), newest first; it may still be damaged."""
    return sorted(filter(None, map(parse_name, paths)), reverse=True)


def describe(folder: Path) -> dict[str, FileEntry]:
    """Return the entries of all files in `folder`; raises `OSError`."""
    return {path.name: _entry(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}


def verify(checkpoint: Checkpoint) -> Manifest:
    """Return the manifest of a complete checkpoint; raises `DamagedCheckpointError`, which says what is wrong."""
    path = checkpoint.path
    try:
        manifest = loads(Manifest, (path / MANIFEST).read_bytes())
        if (manifest.version, manifest.fence, manifest.step) != (_VERSION, checkpoint.fence, checkpoint.step):
            raise DamagedCheckpointError(
                f"checkpoint {path}: {MANIFEST} belongs to another checkpoint, or its format version is not supported"
            )
        for name, entry in manifest.files.items():
            _check(path / name, entry)
    except (OSError, WireError) as error:
        raise DamagedCheckpointError(f"{path}: {error}") from error
    return manifest


def claim_fence(named: Iterable[Checkpoint], found: Sequence[Manifest], uid: str, granted: Fence | None) -> Fence:
    """Return the fence to write under.

    Args:
        named: all that bears a final name in the folder, damaged or not: `refuse_stale` counts the damaged ones too.
        found: the complete ones among them, newest first.
        uid: of the writer's job; "" when it has none.
        granted: the writer's fence as its job counts; None outside Rallypoint.

    """
    highest = max((checkpoint.fence for checkpoint in named), default=Fence())
    if granted is None:
        return Fence(attempt=highest.attempt + 1)
    own = next((m.fence.attempt - m.granted.attempt for m in found if uid and m.job == uid), None)
    if own is not None:
        return replace(granted, attempt=own + granted.attempt)
    return granted if granted > highest else replace(granted, attempt=highest.attempt + granted.attempt)


def refuse_stale(fence: Fence, found: Iterable[Checkpoint]) -> None:
    """Raise `CheckpointError` when somebody with a higher fence has written here: this writer is stale."""
    highest = max((checkpoint.fence for checkpoint in found), default=fence)
    if highest > fence:
        raise CheckpointError(
            f"this worker has fencing token {fence}, but a worker with the newer token {highest} has already written to the "
            "checkpoint folder. Either this worker is from an earlier round, or two jobs use this folder. Use a separate "
            "folder for each job"
        )


def surplus(ordered: Sequence[Checkpoint], complete: Sequence[Checkpoint], keep: int) -> list[Checkpoint]:
    """Return those of `ordered` that are older than the `keep` newest complete ones; both are ordered newest first."""
    if len(complete) < keep:
        return []
    return [checkpoint for checkpoint in ordered if checkpoint < complete[keep - 1]]


def _check(path: Path, entry: FileEntry) -> None:
    size = path.stat().st_size
    if size != entry.size:
        raise DamagedCheckpointError(f"checkpoint file {path}: has {size} bytes; expected {entry.size}, as {MANIFEST} states")
    if entry.sha256 and _digest(path) != entry.sha256:
        raise DamagedCheckpointError(f"checkpoint file {path}: its SHA-256 is not the one in {MANIFEST}")


def _entry(path: Path) -> FileEntry:
    size = path.stat().st_size
    digested = size <= _DIGEST_BYTES or path.name == VALUES
    return FileEntry(size=size, sha256=_digest(path) if digested else "")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
