"""NVIDIA's management library (NVML), called by `ctypes`: the few functions that an agent needs of it.

The library comes with the driver; there is nothing to install. Where it is missing, or the driver is not loaded, `open_library`
returns None. The names, numbers and structures are those of NVIDIA's nvml.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["GONE", "Nvml", "NvmlError", "open_library"]

_LIBRARY = "libnvidia-ml.so.1"

_TIMEOUT = 10

#: Return codes that say that a device must be reset or replaced: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED.
GONE = frozenset({15, 16})

_NAMES = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "driver not loaded",
    15: "GPU is lost",
    16: "reset required",
    999: "unknown error",
}

#: nvmlEventTypeXidCriticalError; NVML_MEMORY_ERROR_TYPE_UNCORRECTED; NVML_VOLATILE_ECC: since the driver was loaded.
_XID_EVENTS, _UNCORRECTED, _VOLATILE = ctypes.c_ulonglong(0x8), ctypes.c_uint(1), ctypes.c_uint(0)


class NvmlError(Exception):
    """A call failed; `code` is NVML's."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {_NAMES.get(code, f'error {code}')}")
        self.code = code


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: per cent of the last sample period in which kernels ran, and in which memory was used."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Event(ctypes.Structure):
    """`nvmlEventData_t`; `data` is the number of an XID."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """An initialised library. A device is its handle. Every call may raise `NvmlError`, and may take long on a sick GPU."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._events: ctypes.c_void_p | None = None

    def count(self) -> int:
        """Return the number of GPUs."""
        found = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(found))
        return found.value

    def device(self, name: str) -> int:
        """Return the GPU of that number or UUID; for a part of a divided GPU (`MIG-...`) the whole GPU."""
        handle = ctypes.c_void_p()
        if name.isdecimal():
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(handle))
        if name.startswith("MIG-"):
            part, handle = handle, ctypes.c_void_p()
            self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(handle))
        return handle.value or 0

    def utilization(self, device: int) -> int:
        """Return the per cent of the last sample period in which kernels ran; not supported by a GPU that is divided."""
        used = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", ctypes.c_void_p(device), ctypes.byref(used))
        return int(used.gpu)

    def uncorrected_errors(self, device: int) -> int:
        """Return the memory errors since the driver was loaded that ECC could not correct; not supported where ECC is off."""
        count = ctypes.c_ulonglong()
        handle = ctypes.c_void_p(device)
        self._call("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, ctypes.byref(count))
        return count.value

    def watch_xids(self, device: int) -> None:
        """Have `next_xid` return the XIDs of a device from now on."""
        if self._events is None:
            events = ctypes.c_void_p()
            self._call("nvmlEventSetCreate", ctypes.byref(events))
            self._events = events
        self._call("nvmlDeviceRegisterEvents", ctypes.c_void_p(device), _XID_EVENTS, self._events)

    def next_xid(self, within: float) -> tuple[int, int] | None:
        """Wait for the next XID and return its device and number; None when none came `within` seconds."""
        event = _Event()
        milliseconds = ctypes.c_uint(int(1000 * within))
        code = self._library.nvmlEventSetWait_v2(self._events, ctypes.byref(event), milliseconds)
        if code == _TIMEOUT:
            return None
        if code != 0:
            raise NvmlError("nvmlEventSetWait_v2", code)
        return event.device or 0, event.data

    def close(self) -> None:
        """Free what was made."""
        events, self._events = self._events, None
        if events is not None:
            self._library.nvmlEventSetFree(events)
        self._library.nvmlShutdown()

    def _call(self, name: str, *args: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(name, 13) from None
        code = function(*args)
        if code != 0:
            raise NvmlError(name, code)


def open_library(load: Callable[[str], Any] = ctypes.CDLL) -> Nvml | None:
    """Return the library, None where there is none or no driver runs."""
    try:
        library = load(_LIBRARY)
        return Nvml(library) if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
