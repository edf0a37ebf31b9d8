"""What an agent reads of its GPUs, with a library that is as strict as NVIDIA's: use, errors, and what follows from errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu.fake_nvml import FakeNvml
from rallypoint.agent.node.health.driver import DeviceFault
from rallypoint.agent.node.health.gpus import Gpus
from rallypoint.agent.node.judging import Judge
from rallypoint.wire.incident import Culprit, FaultKind
from rallypoint.wire.plan import Entry, Plan
from tests.waiting import eventually


class Machine:
    """Two GPUs, the second of which is busy, and whoever watches them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nvml.json"
        self.state: dict[str, Any] = {
            "gpus": [{"uuid": "GPU-a", "uncorrected": 5}, {"uuid": "GPU-b", "utilization": 85, "uncorrected": 0}],
            "xids": [],
        }
        self.watches: list[Gpus] = []
        self.write()

    def write(self) -> None:
        self.path.with_suffix(".new").write_text(json.dumps(self.state))
        self.path.with_suffix(".new").rename(self.path)

    def watched(self, visible: str | None = None) -> Gpus:
        library = FakeNvml(self.path)
        gpus = Gpus(lambda _: library, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, pace=0.01)
        self.watches.append(gpus)
        gpus.begin()
        return gpus


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    for gpus in machine.watches:
        gpus.close()
        if gpus._thread is not None:
            gpus._thread.join()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, (0.0, 0.85), id="by their numbers"),
        pytest.param("1,0", (0.85, 0.0), id="as they are visible"),
        pytest.param("GPU-b", (0.85, 0.85), id="two workers share one"),
        pytest.param("1,7,0", (0.85, 0.85), id="the list ends at one that is not there"),
    ],
)
def test_how_busy_gpus_are(machine: Machine, visible: str | None, expected: tuple[float, float]) -> None:
    """Each worker has the GPU of its place."""
    gpus = machine.watched(visible)

    assert eventually(lambda: (gpus.busy(0), gpus.busy(1)) == expected)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"driver": False}, id="no driver"),
        pytest.param({"gpus": []}, id="no GPU"),
        pytest.param({"gpus": [{"uuid": "GPU-a", "divided": True}]}, id="a GPU that is divided"),
    ],
)
def test_what_cannot_be_known_is_nothing(machine: Machine, change: dict[str, Any]) -> None:
    """No use and no error."""
    machine.state.update(change)
    machine.write()
    gpus = machine.watched()
    eventually(lambda: gpus._passes > 3 or not gpus._thread or not gpus._thread.is_alive())

    assert (gpus.busy(0), gpus.faults(0)) == (0.0, ())


def test_without_the_library_nothing_runs() -> None:
    """It is looked for once."""
    tried: list[str] = []

    def load(name: str) -> object:
        tried.append(name)
        raise OSError("no such file")

    gpus = Gpus(load, {})
    gpus.begin()
    gpus.begin()
    eventually(lambda: gpus._thread is not None and not gpus._thread.is_alive())

    assert (gpus.busy(0), tried) == (0.0, ["libnvidia-ml.so.1"])


def test_errors_are_noted_by_gpu(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """XIDs and new memory errors, in order; what was counted before the watch began, or in an earlier round, is none."""
    gpus = machine.watched()
    eventually(lambda: gpus._devices)
    with caplog.at_level(logging.WARNING):
        machine.state["xids"] += [[1, 31], [1, 79], [0, 250]]
        machine.state["gpus"][1]["uncorrected"] = 3
        machine.write()
        eventually(lambda: len(gpus.faults(1)) == 3 and len(gpus.faults(0)) == 1)

    assert sorted(map(str, gpus.faults(1))) == [
        "GPU 1: 3 uncorrectable ECC errors",
        "GPU 1: XID 31 (GPU memory page fault)",
        "GPU 1: XID 79 (GPU has fallen off the bus)",
    ]
    assert {fault.text.split()[1] for fault in gpus.faults(1) if fault.hardware} == {"79"}
    assert [str(fault) for fault in gpus.faults(0)] == ["GPU 0: XID 250 (see NVIDIA's list of XID errors)"]
    assert "GPU 1: XID 79 (GPU has fallen off the bus)" in caplog.text
    gpus.renew()
    assert gpus.faults(1) == ()


def test_an_error_that_repeats_is_noted_once_a_round(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """A broken program may cause one XID very often; reports stay small, and so does the log."""
    gpus = machine.watched()
    eventually(lambda: gpus._devices)
    with caplog.at_level(logging.WARNING):
        machine.state["xids"] += [[0, 31]] * 200 + [[0, number] for number in range(200, 240)]
        machine.write()
        eventually(lambda: any("XID 239" in fault.text for fault in gpus.faults(0)))

    assert caplog.text.count("XID 31 ") == 1
    assert len(gpus.faults(0)) == 16


def test_a_gpu_that_is_lost_is_told_once(machine: Machine) -> None:
    """Every call to it fails from then on; the other one is read as before."""
    gpus = machine.watched()
    eventually(lambda: gpus.busy(1) == 0.85)
    machine.state["gpus"][0]["lost"] = True
    machine.write()

    eventually(lambda: gpus.busy(1) == 0.85 and gpus.faults(0))
    passes = gpus._passes
    eventually(lambda: gpus._passes > passes + 25)

    [fault] = gpus.faults(0)
    assert (fault.hardware, fault.text) == (True, "nvmlDeviceGetUtilizationRates: GPU is lost")


class Devices:
    def __init__(self, *faults: DeviceFault) -> None:
        self._faults = faults

    def faults(self, local_rank: int) -> tuple[DeviceFault, ...]:
        return self._faults if local_rank == 1 else ()


PLAN = Plan(name="a", role="b", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="c")
BROKEN = DeviceFault(device="GPU 1", text="XID 79 (GPU has fallen off the bus)", hardware=True)
PROGRAM = DeviceFault(device="GPU 1", text="XID 31 (GPU memory page fault)", hardware=False)


@pytest.mark.parametrize(
    ("faults", "local_rank", "error", "expected"),
    [
        pytest.param(
            (BROKEN, PROGRAM), 1, "CUDA error", ("CUDA error; GPU 1: XID 79 (", FaultKind.HARDWARE), id="its GPU is broken"
        ),
        pytest.param(
            (PROGRAM,), 1, "CUDA error", ("CUDA error; GPU 1: XID 31 (", FaultKind.EXIT_CODE), id="its program was wrong"
        ),
        pytest.param((BROKEN,), 0, "CUDA error", ("CUDA error", FaultKind.EXIT_CODE), id="another's GPU"),
        pytest.param((BROKEN,), 1, "NCCL communicator was aborted", ("NCCL", FaultKind.EXIT_CODE), id="it lost a peer"),
    ],
)
def test_an_end_is_told_with_what_the_gpu_said(
    faults: tuple[DeviceFault, ...], local_rank: int, error: str, expected: tuple[str, FaultKind]
) -> None:
    """A GPU that must be replaced makes it a fault of the hardware, which another node must heal."""
    judge = Judge(SimpleNamespace(plan=PLAN), now=lambda: 0.0, devices=Devices(*faults), profile=None)  # type: ignore[arg-type]
    end = Culprit(
        node=0, incarnation=0, host="a", rank=local_rank, local_rank=local_rank, pid=7, error=error, at=0.0,
        kind=FaultKind.EXIT_CODE,
    )  # fmt: skip

    told = judge._with_device(end)

    assert (told.error.startswith(expected[0]), told.kind) == (True, expected[1])
    assert ("XID" in told.error) == ("XID" in expected[0])
