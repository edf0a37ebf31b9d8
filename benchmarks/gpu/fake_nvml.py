"""A stand-in for NVIDIA's management library, as strict as the real one, for machines without a GPU.

It stands where `ctypes.CDLL` returns the library: its functions take ctypes values and return NVML's codes. The GPUs are those
of a JSON file, which is read at each call, so that another process can change them:

    {"gpus": [{"uuid": "GPU-a", "utilization": 97, "uncorrected": 0}], "xids": [[0, 79]]}

`xids` is a log of (GPU, XID); a later entry is an event. Further keys of a GPU: `lost` (every call fails), `divided` (MIG: no
utilisation). `"driver": false` is a driver that is not loaded. In a process of a dry run `sitecustomize.py` beside it puts it
in place.
"""

# ruff: noqa: N802, SLF001  the names are those of nvml.h; `byref` keeps what it refers to in `_obj`
from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path
from typing import Any

__all__ = ["FakeNvml", "write_state"]

_UNINITIALIZED, _INVALID, _NOT_SUPPORTED, _NOT_FOUND, _NO_DRIVER, _TIMEOUT, _LOST = 1, 2, 3, 6, 9, 10, 15

#: Handles are addresses in the real library.
_BASE = 0x7F00_0000_0000

_POLL = 0.01


def write_state(path: Path, *, xids: tuple[tuple[int, int], ...] = (), driver: bool = True, **gpu: Any) -> None:
    """Write the state of a machine with one GPU; readers see all of it or nothing."""
    state = {"driver": driver, "gpus": [{"uuid": "GPU-dry", **gpu}], "xids": xids}
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(state))
    beside.rename(path)


class FakeNvml:
    """The library. Its names are those of nvml.h."""

    def __init__(self, state: Path) -> None:
        self._path = state
        self._initialized = False
        self._sets: dict[int, set[int]] = {}
        self._seen = 0

    def nvmlInit_v2(self) -> int:
        if not self._state.get("driver", True):
            return _NO_DRIVER
        self._initialized = True
        self._seen = len(self._state.get("xids", ()))
        return 0

    def nvmlShutdown(self) -> int:
        was, self._initialized = self._initialized, False
        return 0 if was else _UNINITIALIZED

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        if not self._initialized:
            return _UNINITIALIZED
        count._obj.value = len(self._gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        if not self._initialized:
            return _UNINITIALIZED
        if index.value >= len(self._gpus):
            return _INVALID
        handle._obj.value = _BASE + index.value
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if not self._initialized:
            return _UNINITIALIZED
        found = [number for number, gpu in enumerate(self._gpus) if gpu["uuid"].encode() == uuid]
        if not found:
            return _NOT_FOUND
        handle._obj.value = _BASE + found[0]
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, used: Any) -> int:
        gpu, code = self._gpu(device)
        if gpu is None:
            return code
        if gpu.get("divided"):
            return _NOT_SUPPORTED
        used._obj.gpu, used._obj.memory = gpu.get("utilization", 0), 0
        return 0

    def nvmlDeviceGetTotalEccErrors(
        self, device: ctypes.c_void_p, kind: ctypes.c_uint, counter: ctypes.c_uint, count: Any
    ) -> int:
        gpu, code = self._gpu(device)
        if gpu is None:
            return code
        if kind.value not in (0, 1) or counter.value not in (0, 1):
            return _INVALID
        if "uncorrected" not in gpu:
            return _NOT_SUPPORTED  # ECC is off
        count._obj.value = gpu["uncorrected"] if kind.value == 1 else 0
        return 0

    def nvmlEventSetCreate(self, events: Any) -> int:
        if not self._initialized:
            return _UNINITIALIZED
        events._obj.value = _BASE * 2 + len(self._sets)
        self._sets[events._obj.value] = set()
        return 0

    def nvmlDeviceRegisterEvents(self, device: ctypes.c_void_p, kinds: ctypes.c_ulonglong, events: ctypes.c_void_p) -> int:
        gpu, code = self._gpu(device)
        if gpu is None:
            return code
        registered = self._sets.get(events.value or 0)
        if registered is None or kinds.value & 0x8 == 0:
            return _INVALID
        registered.add((device.value or 0) - _BASE)
        return 0

    def nvmlEventSetWait_v2(self, events: ctypes.c_void_p | None, event: Any, milliseconds: ctypes.c_uint) -> int:
        if not self._initialized:
            return _UNINITIALIZED
        if events is None or events.value not in self._sets:
            return _INVALID
        until = time.monotonic() + milliseconds.value / 1000
        while True:
            if any(self._gpus[number].get("lost") for number in self._sets[events.value]):
                return _LOST
            xids = self._state.get("xids", ())
            while self._seen < len(xids):
                number, xid = xids[self._seen]
                self._seen += 1
                if number in self._sets[events.value]:
                    event._obj.device, event._obj.type, event._obj.data = _BASE + number, 0x8, xid
                    return 0
            if time.monotonic() >= until:
                return _TIMEOUT
            time.sleep(_POLL)

    def nvmlEventSetFree(self, events: ctypes.c_void_p) -> int:
        if events.value not in self._sets:
            return _INVALID
        del self._sets[events.value]
        return 0

    @property
    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._path.read_text())
        return state

    @property
    def _gpus(self) -> list[dict[str, Any]]:
        gpus: list[dict[str, Any]] = self._state["gpus"]
        return gpus

    def _gpu(self, device: ctypes.c_void_p) -> tuple[dict[str, Any] | None, int]:
        """Return the GPU of a handle, or else the code of the error."""
        if not self._initialized:
            return None, _UNINITIALIZED
        number = (device.value or 0) - _BASE
        if not 0 <= number < len(self._gpus):
            return None, _INVALID
        gpu = self._gpus[number]
        return (None, _LOST) if gpu.get("lost") else (gpu, 0)
