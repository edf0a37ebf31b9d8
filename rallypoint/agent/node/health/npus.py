"""How busy the NPUs of a node are, as Ascend's library tells it; and whose library is asked, by the job's `xpu_type`.

No NPU was at hand to try it on: the calls are those of the interface's header.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Protocol

from rallypoint.agent.node.health.driver import DeviceFault, Driver
from rallypoint.agent.node.health.gpus import Gpus

__all__ = ["Meter", "Npus", "meter"]

#: `input_type` of dcmi_get_device_utilization_rate for the cores that compute.
_AI_CORE = 2


class Meter(Protocol):
    """Reads how busy devices are, and which errors they have reported."""

    def begin(self) -> None:
        """Start to watch for errors."""

    def renew(self) -> None:
        """Forget the errors so far: a round begins."""

    def close(self) -> None:
        """Stop to watch."""

    def faults(self, local_rank: int) -> tuple[DeviceFault, ...]:
        """Return the errors of a worker's device since this round began, oldest first."""

    def busy(self, local_rank: int) -> float:
        """Return how busy the device of a worker was of late, 0.0 to 1.0; 0.0 also where nobody can tell."""


class Npus(Driver):
    """The NPUs that the workers of this node see."""

    LIBRARY, BEGIN, VISIBLE = "libdcmi.so", "dcmi_init", "ASCEND_RT_VISIBLE_DEVICES"

    def _percent(self, local_rank: int) -> int:
        rate = ctypes.c_uint()
        code = self._library.dcmi_get_device_utilization_rate(*self._place(local_rank), _AI_CORE, ctypes.byref(rate))
        return int(rate.value) if code == 0 else 0

    def _place(self, local_rank: int) -> tuple[int, int]:
        """Return card and device of a worker's NPU."""
        number = int(self._named(local_rank))
        card, device = ctypes.c_int(), ctypes.c_int()
        code = self._library.dcmi_get_card_id_device_id_from_logicid(
            ctypes.byref(card), ctypes.byref(device), ctypes.c_uint(number)
        )
        if code != 0:
            raise OSError(f"cannot find the card of NPU {number}: the Ascend library DCMI returned code {code}")
        return card.value, device.value


def meter(xpu_type: str, environment: Mapping[str, str] = os.environ) -> Meter:
    """Return the reader of the devices of a job's `xpu_type`; `environment` is that of the workers."""
    return Npus(environment=environment) if xpu_type == "ascend" else Gpus(environment=environment)
