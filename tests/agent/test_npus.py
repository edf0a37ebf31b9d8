"""How busy NPUs are, by a library that stands in for Ascend's; and whose library `xpu_type` asks."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from rallypoint.agent.node.health.gpus import Gpus
from rallypoint.agent.node.health.npus import Npus, meter
from rallypoint.job import compile_plan, load_job


class Library:
    """Two cards of two devices each; the device 3 is at work."""

    def __init__(self, begins: int = 0, answers: int = 0) -> None:
        self.begins, self.answers = begins, answers

    def dcmi_init(self) -> int:
        return self.begins

    def dcmi_get_card_id_device_id_from_logicid(self, card: Any, device: Any, number: ctypes.c_uint) -> int:
        card._obj.value, device._obj.value = divmod(number.value, 2)
        return 0 if number.value < 4 else -8001

    def dcmi_get_device_utilization_rate(self, card: int, device: int, kind: int, rate: Any) -> int:
        rate._obj.value = 85 if (card, device, kind) == (1, 1, 2) else 0
        return self.answers


@pytest.mark.parametrize(
    ("library", "visible", "expected"),
    [
        pytest.param(Library(), "", (0.0, 0.0), id="by their numbers"),
        pytest.param(Library(), "2,3", (0.0, 0.85), id="as they are visible"),
        pytest.param(Library(), "9,3", (0.0, 0.85), id="a number that is none"),
        pytest.param(Library(begins=-8005), "2,3", (0.0, 0.0), id="a driver that does not run"),
        pytest.param(Library(answers=-8005), "2,3", (0.0, 0.0), id="an NPU that cannot tell"),
        pytest.param(object(), "2,3", (0.0, 0.0), id="another library"),
    ],
)
def test_how_busy_npus_are(library: object, visible: str, expected: tuple[float, float]) -> None:
    """Whatever goes wrong, nobody can tell."""
    npus = Npus(load=lambda _: library, environment={"ASCEND_RT_VISIBLE_DEVICES": visible})

    assert (npus.busy(0), npus.busy(1)) == expected


@pytest.mark.argument("xpu_type")
def test_whose_library_is_asked() -> None:
    """NVIDIA's by default; where there is none of it, nobody can tell."""
    document = {"name": "digits", "entrypoint": "train.py"}
    kinds = [
        type(meter(compile_plan(load_job({**document, **said}, base="/"))[0].devices.xpu_type))
        for said in ({}, {"xpu_type": "nvidia"}, {"annotations": {"xpu_type": "ascend"}})
    ]

    assert kinds == [Gpus, Gpus, Npus]
