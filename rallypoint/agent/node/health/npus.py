"""How busy the NPUs of a node are, as Ascend's library tells it; and whose library is asked, by the job's `xpu_type`.

As with `gpus.py` the library is the driver's own (`libdcmi.so`), loaded when somebody asks for the first time; whatever goes
wrong in it means that nobody can tell. No NPU was at hand to try it on: the calls are those of the interface's header.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rallypoint.agent.node.health.gpus import Gpus

__all__ = ["Meter", "Npus", "meter"]

_LIBRARY = "libdcmi.so"

#: `input_type` of dcmi_get_device_utilization_rate for the cores that compute.
_AI_CORE = 2


class Meter(Protocol):
    """Tells how busy devices are."""

    def busy(self, local_rank: int) -> float:
        """Return how busy the device of a worker was of late, 0.0 to 1.0; 0.0 also where nobody can tell."""


class Npus:
    """The NPUs that the workers of this node see, by local rank."""

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL, environment: Mapping[str, str] = os.environ) -> None:
        self._load, self._environment = load, environment
        self._library: Any = None
        self._tried = False
        self._places: dict[int, tuple[int, int]] = {}

    def busy(self, local_rank: int) -> float:
        """Return how busy the NPU of a worker was of late, 0.0 to 1.0; 0.0 also where nobody can tell."""
        if not self._tried:
            self._tried = True
            self._library = self._begin()
        if self._library is None:
            return 0.0
        with contextlib.suppress(Exception):
            card, device = self._place(local_rank)
            rate = ctypes.c_uint()
            if self._library.dcmi_get_device_utilization_rate(card, device, _AI_CORE, ctypes.byref(rate)) == 0:
                return int(rate.value) / 100
        return 0.0

    def _begin(self) -> Any:
        try:
            library = self._load(_LIBRARY)
            return library if library.dcmi_init() == 0 else None
        except (OSError, AttributeError):
            return None

    def _place(self, local_rank: int) -> tuple[int, int]:
        """Return card and device of a worker's NPU: that of ASCEND_RT_VISIBLE_DEVICES, or else the one of its number."""
        if local_rank not in self._places:
            names = [name.strip() for name in self._environment.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",") if name.strip()]
            number = int(names[local_rank]) if local_rank < len(names) else local_rank
            card, device = ctypes.c_int(), ctypes.c_int()
            code = self._library.dcmi_get_card_id_device_id_from_logicid(
                ctypes.byref(card), ctypes.byref(device), ctypes.c_uint(number)
            )
            if code != 0:
                raise OSError(f"NPU {number}: the library answers {code}")
            self._places[local_rank] = (card.value, device.value)
        return self._places[local_rank]


def meter(xpu_type: str) -> Meter:
    """Return who tells how busy the devices of a job's `xpu_type` are."""
    return Npus() if xpu_type == "ascend" else Gpus()
