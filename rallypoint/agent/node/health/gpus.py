"""The GPUs of a node as NVIDIA's management library (NVML) reports them: how busy they are, and their errors (XID, ECC).

A thread of its own waits for errors and reads the rest: a call on a sick GPU may not return for a long time, and the agent must
go on reporting meanwhile.

The library is called by `ctypes`. It comes with the driver; there is nothing to install. Where it is missing, or the driver is
not loaded, `open_library` returns None. The names, numbers and structures are those of NVIDIA's nvml.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rallypoint.agent.node.health.driver import DeviceFault

__all__ = ["Gpus", "NvmlError", "open_library"]

log = logging.getLogger("rallypoint.gpu")

#: Seconds for which the thread waits for an XID before it reads the other values.
_PACE = 1.0

#: Passes between two readings of the ECC counters, and after the last question how long the use of GPUs is read.
_ECC_EVERY, _READ_FOR = 10, 10

#: Different errors of a round that are kept.
_KEPT = 16

#: What the number of an XID means, by NVIDIA's list of XID errors.
_XIDS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup",
    48: "double-bit ECC error",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}

_OTHER_XID = "see NVIDIA's list of XID errors"

#: Those after which the GPU must be reset or replaced. The others come from the program, or leave the GPU usable.
_HARDWARE = frozenset({48, 64, 74, 79, 95, 119, 120, 140})

_LIBRARY = "libnvidia-ml.so.1"

_TIMEOUT = 10

#: Return codes that say that a device must be reset or replaced: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED.
_GONE = frozenset({15, 16})

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


class Gpus:
    """The GPUs that the workers of this node see. `load` loads a library by its file name.

    Workers share the GPUs in turn where there are fewer GPUs than workers. Numbers in CUDA_VISIBLE_DEVICES are taken in the
    order of the PCI bus, which is CUDA's own on a machine whose GPUs are all alike.
    """

    def __init__(
        self,
        load: Callable[[str], Any] = ctypes.CDLL,
        environment: Mapping[str, str] = os.environ,
        *,
        pace: float = _PACE,
    ) -> None:
        self._load, self._environment, self._pace = load, environment, pace
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._devices: tuple[tuple[str, int], ...] = ()
        self._percent: dict[int, int] = {}
        self._errors: dict[int, int] = {}
        self._gone: set[int] = set()
        self._faults: tuple[DeviceFault, ...] = ()
        self._lock = threading.Lock()
        self._read_until = 0
        self._passes = 0

    def begin(self) -> None:
        """Start to watch; does nothing the second time."""
        if self._thread is None:
            # Not waited for at the end of the agent: a call on a sick GPU may never return.
            self._thread = threading.Thread(target=self._watch, name="rallypoint-gpus", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop to watch."""
        self._closing.set()

    def busy(self, local_rank: int) -> float:
        """Return how busy the GPU of a worker was of late, 0.0 to 1.0; 0.0 also where that is not known yet, or not at all."""
        self._read_until = self._passes + _READ_FOR
        device = self._device(local_rank)
        return 0.0 if device is None else self._percent.get(device[1], 0) / 100

    def faults(self, local_rank: int) -> tuple[DeviceFault, ...]:
        """Return the errors of a worker's GPU since `renew` was called last, oldest first."""
        device = self._device(local_rank)
        return () if device is None else tuple(fault for fault in self._faults if fault.device == _shown(device[0]))

    def renew(self) -> None:
        """Forget the errors so far."""
        with self._lock:
            self._faults = ()

    def _device(self, local_rank: int) -> tuple[str, int] | None:
        devices = self._devices
        return devices[local_rank % len(devices)] if devices else None

    # --- In the thread -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        nvml = open_library(self._load)
        if nvml is None:
            return
        try:
            devices = self._found(nvml)
            waits = self._register(nvml, devices)
            self._read_errors(nvml, devices)
            self._devices = devices
            while not self._closing.is_set():
                self._pass(nvml, devices, waits=waits)
        except NvmlError as error:
            log.info("the agent does not monitor the GPUs of this node: %s", error)
        finally:
            with contextlib.suppress(AttributeError):
                nvml.close()

    def _found(self, nvml: _Nvml) -> tuple[tuple[str, int], ...]:
        """Return name and handle of each GPU that the workers see; as in CUDA, the list ends at the first that is not there."""
        visible = self._environment.get("CUDA_VISIBLE_DEVICES")
        names = map(str, range(nvml.count())) if visible is None else (name.strip() for name in visible.split(","))
        found: list[tuple[str, int]] = []
        for name in names:
            try:
                found.append((name, nvml.device(name)))
            except NvmlError as error:
                if name not in ("", "-1"):
                    log.info("the agent does not monitor GPU %s: %s", name, error)
                break
        return tuple(found)

    def _register(self, nvml: _Nvml, devices: tuple[tuple[str, int], ...]) -> bool:
        """Return whether there is anything to wait for: an old GPU, or a container, may not report XIDs."""
        waits = False
        for device, name in {device: name for name, device in devices}.items():
            try:
                nvml.watch_xids(device)
                waits = True
            except NvmlError as error:
                log.info(
                    "the agent cannot detect XID errors of GPU %s, because the driver does not report them: %s", name, error
                )
        return waits

    def _pass(self, nvml: _Nvml, devices: tuple[tuple[str, int], ...], *, waits: bool) -> None:
        found = None
        if waits:
            try:
                found = nvml.next_xid(self._pace)
            except NvmlError as error:  # one GPU that is lost ends every wait; which one it is the readings below say
                log.debug("%s", error)
                self._closing.wait(self._pace)
        else:
            self._closing.wait(self._pace)
        if found is not None:
            self._note_xid(devices, *found)
        self._passes += 1
        if found is not None or self._passes % _ECC_EVERY == 0:
            self._read_errors(nvml, devices)
        if self._passes <= self._read_until:
            self._percent = {device: self._value(nvml.utilization, name, device) or 0 for name, device in devices}

    def _note_xid(self, devices: tuple[tuple[str, int], ...], device: int, xid: int) -> None:
        text = f"XID {xid} ({_XIDS.get(xid, _OTHER_XID)})"
        for name, known in devices:
            if known == device:
                self._note(name, text, hardware=xid in _HARDWARE)

    def _read_errors(self, nvml: _Nvml, devices: tuple[tuple[str, int], ...]) -> None:
        for name, device in devices:
            count = self._value(nvml.uncorrected_errors, name, device)
            if count is None:
                continue
            before = self._errors.setdefault(device, count)
            if count > before:
                # Which of them leave the GPU usable the XIDs say.
                self._note(name, f"{count - before} uncorrectable ECC errors", hardware=False)
                self._errors[device] = count

    def _value(self, read: Callable[[int], int], name: str, device: int) -> int | None:
        """Return what a GPU says, None where it cannot; that it is gone is an error of its own."""
        try:
            return read(device)
        except NvmlError as error:
            if error.code in _GONE and device not in self._gone:
                self._gone.add(device)
                self._note(name, str(error), hardware=True)
            return None

    def _note(self, name: str, text: str, *, hardware: bool) -> None:
        fault = DeviceFault(device=_shown(name), text=text, hardware=hardware)
        with self._lock:
            known = fault in self._faults
            # A broken program may cause one XID a thousand times a second.
            self._faults = self._faults if known else (*self._faults, fault)[-_KEPT:]
        if not known:
            log.warning("%s", fault)


def _shown(name: str) -> str:
    return f"GPU {name}" if name.isdecimal() else name


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


class _Nvml:
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


def open_library(load: Callable[[str], Any] = ctypes.CDLL) -> _Nvml | None:
    """Return the library, None where there is none or no driver runs."""
    try:
        library = load(_LIBRARY)
        return _Nvml(library) if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
