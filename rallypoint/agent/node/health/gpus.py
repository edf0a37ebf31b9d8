"""How busy the GPUs of a node are, as NVIDIA's management library tells it. Where there is none, nobody can tell.

The library is the driver's own (`libnvidia-ml.so.1`), called by `ctypes`: there is nothing to install, and nothing is started.
It is loaded when somebody asks for the first time, and whatever goes wrong in it means that nobody can tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Gpus"]

_LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: per cent of the last sample period in which kernels ran, and in which memory was used."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Gpus:
    """The GPUs that the workers of this node see, by local rank."""

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL, environment: Mapping[str, str] = os.environ) -> None:
        self._load, self._environment = load, environment
        self._library: Any = None
        self._tried = False
        self._handles: dict[int, Any] = {}

    def busy(self, local_rank: int) -> float:
        """Return how busy the GPU of a worker was of late, 0.0 to 1.0; 0.0 also where nobody can tell."""
        if not self._tried:
            self._tried = True
            self._library = self._begin()
        if self._library is None:
            return 0.0
        with contextlib.suppress(Exception):
            used = _Utilization()
            if self._library.nvmlDeviceGetUtilizationRates(self._handle(local_rank), ctypes.byref(used)) == 0:
                return int(used.gpu) / 100
        return 0.0

    def _begin(self) -> Any:
        try:
            library = self._load(_LIBRARY)
            return library if library.nvmlInit_v2() == 0 else None
        except (OSError, AttributeError):
            return None

    def _handle(self, local_rank: int) -> Any:
        """Return the handle of a worker's GPU: the one that CUDA_VISIBLE_DEVICES names, else the one of its number."""
        if local_rank not in self._handles:
            handle = ctypes.c_void_p()
            names = [name.strip() for name in self._environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
            name = names[local_rank] if local_rank < len(names) else str(local_rank)
            if name.isdecimal():
                code = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
            else:
                code = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
            if code != 0:
                raise OSError(f"GPU {name}: the library answers {code}")
            self._handles[local_rank] = handle
        return self._handles[local_rank]
