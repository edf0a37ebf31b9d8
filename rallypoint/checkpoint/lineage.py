"""What tells the checkpoints of a run from those of another: the job's uid, or for a run by hand a name of its own.

It lies beside the snapshots in the agent's folder and so lasts as long as they do.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

__all__ = ["lineage_of", "take_lineage"]

_FILE = "lineage"


def lineage_of(folder: Path) -> str:
    """Return the name of the run whose snapshots lie in `folder`, "" when it has none yet."""
    try:
        return (folder / _FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def take_lineage(folder: Path, name: str = "") -> str:
    """Return the name of the run, which is `name`, or a new one, where it has none yet."""
    if not lineage_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        chosen = folder / f"{_FILE}.{secrets.token_hex(8)}"
        chosen.write_text(name or f"run-{secrets.token_hex(8)}", encoding="utf-8")
        with contextlib.suppress(FileExistsError):
            (folder / _FILE).hardlink_to(chosen)  # unlike a renaming it does not win over one that was faster
        chosen.unlink()
    return lineage_of(folder)
