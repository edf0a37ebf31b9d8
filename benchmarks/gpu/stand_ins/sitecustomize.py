"""Puts the stand-in for NVIDIA's library where `ctypes` would load the real one; of dry runs alone (../machine.py)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_state = os.environ.get("GPU_STAND_IN_NVML", "")


class _Loader(ctypes.CDLL):
    def __new__(cls, name: Any = None, *_: Any, **__: Any) -> Any:
        if name != _LIBRARY:
            return super().__new__(cls)
        from benchmarks.gpu.fake_nvml import FakeNvml  # noqa: PLC0415  few processes need it

        return FakeNvml(Path(_state))


if _state:
    ctypes.CDLL = _Loader  # type: ignore[misc]
