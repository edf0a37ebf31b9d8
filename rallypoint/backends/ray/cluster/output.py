"""Output files of a node, which its actor sends and the ledger copies into the node's folder on the head."""

from __future__ import annotations

import re
from pathlib import Path

from rallypoint.backends.local import durable
from rallypoint.wire.unit_files import EXIT, UNITS

__all__ = ["append", "is_output", "sizes"]

#: Names of the files that actors report (`host._chunks`).
_PART = r"\w[\w.-]{0,200}"
_OUTPUT = re.compile(
    rf"agent\.log|logs/round-\d{{1,10}}/rank-{_PART}|{UNITS}/{_PART}/{_PART}/(rank-{_PART}|{re.escape(EXIT)})", re.ASCII
)


def sizes(folder: Path) -> dict[str, int]:
    """Return how many bytes of each file are there, by its name in the folder of the node."""
    files = [folder / "agent.log", *folder.glob("logs/round-*/rank-*"), *folder.glob(f"{UNITS}/*/*/rank-*")]
    files += folder.glob(f"{UNITS}/*/*/{EXIT}")
    return {str(path.relative_to(folder)): path.stat().st_size for path in files if path.exists()}


def is_output(name: str) -> bool:
    """Return whether an actor may have this file of its node copied: an output file, below the node's folder."""
    return _OUTPUT.fullmatch(name) is not None


def append(folder: Path, name: str, offset: int, data: bytes) -> None:
    """Write a part of a file at an offset."""
    path = folder / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.name == EXIT:  # it is read as soon as it is there
        durable.write_text(str(path), data.decode())
        return
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(offset)
        file.write(data)
