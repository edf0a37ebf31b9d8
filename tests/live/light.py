"""Jobs whose scripts need no torch: where there is none to import, all that is started costs a tenth."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["without_torch"]

ROOT = Path(__file__).parents[2]


def without_torch(folder: Path) -> str:
    """Hide torch by something in a folder; return the PYTHONPATH of the processes that shall not find it."""
    stub = folder / "no_torch" / "torch"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ModuleNotFoundError('torch is hidden from this test')\n")
    return os.pathsep.join((str(stub.parent), str(ROOT)))
