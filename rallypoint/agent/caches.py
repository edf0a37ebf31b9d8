"""Where libraries may keep their caches when there is no home that they could write into."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["CACHES", "cache_variables", "home_is_writable"]

#: The variable of each cache, and its folder beside the others.
CACHES: Mapping[str, str] = {
    "XDG_CACHE_HOME": ".",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
}


def home_is_writable(base: Mapping[str, str]) -> bool:
    """Return whether HOME names a folder in which files can be made."""
    home = base.get("HOME", "")
    return bool(home) and Path(home).is_dir() and os.access(home, os.W_OK | os.X_OK)


def cache_variables(base: Mapping[str, str], folder: Path, *, writable: bool) -> dict[str, str]:
    """Return what must be added to `base` so that each cache can be written: nothing where the home is `writable`.

    Torch even fails to name its own default in a container whose user has no name.
    """
    if writable:
        return {}
    return {name: str(folder / place) for name, place in CACHES.items() if not base.get(name)}
