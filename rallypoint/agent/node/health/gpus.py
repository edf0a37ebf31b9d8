"""How busy the GPUs of a node are, as NVIDIA's management library tells it."""

from __future__ import annotations

import ctypes
from typing import Any

from rallypoint.agent.node.health.driver import Driver

__all__ = ["Gpus"]


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: per cent of the last sample period in which kernels ran, and in which memory was used."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Gpus(Driver):
    """The GPUs that the workers of this node see."""

    LIBRARY, BEGIN, VISIBLE = "libnvidia-ml.so.1", "nvmlInit_v2", "CUDA_VISIBLE_DEVICES"

    def _percent(self, local_rank: int) -> int:
        used = _Utilization()
        code = self._library.nvmlDeviceGetUtilizationRates(self._handle(local_rank), ctypes.byref(used))
        return int(used.gpu) if code == 0 else 0

    def _handle(self, local_rank: int) -> Any:
        handle, name = ctypes.c_void_p(), self._named(local_rank)
        if name.isdecimal():
            code = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            code = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        if code != 0:
            raise OSError(f"GPU {name}: the library answers {code}")
        return handle
