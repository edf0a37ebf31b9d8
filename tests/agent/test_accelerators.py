"""Devices of other kinds than NVIDIA's: how many there are, how one is hidden, and what the node check is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.agent.accelerators import accelerator, count_npus
from rallypoint.agent.devices import visible_device, visible_numbers, workers_per_node
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.workers.affinity import worker_cpus
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build, replaced

PLAN = build(Plan, name="a", role="b", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="c", accelerator="ascend-npu")


def test_npus_are_counted_by_their_nodes_in_dev(tmp_path: Path) -> None:
    """The managers beside them are none; a list of visible ones comes first."""
    for name in ("davinci0", "davinci1", "davinci11", "davinci_manager", "null"):
        (tmp_path / name).touch()

    assert count_npus({}, tmp_path) == 3
    assert count_npus({"ASCEND_RT_VISIBLE_DEVICES": "1, 3"}, tmp_path) == 2
    assert count_npus({"ASCEND_RT_VISIBLE_DEVICES": ""}, tmp_path) == 0


def test_workers_are_as_many_as_devices() -> None:
    """One for each, of whatever kind."""
    env = {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6"}
    assert workers_per_node("auto", env, accelerator("ascend-npu").count(env)) == 3
    with pytest.raises(ConfigError, match="--nproc-per-node gpu"):
        workers_per_node("gpu", {}, accelerator("cpu").count({}))


def test_each_kind_has_its_own_variable() -> None:
    """A worker that is to see its own device alone is told so in the words of its vendor."""
    npu = accelerator("ascend-npu")
    assert visible_device({}, 2, npu.visible) == "2"
    assert visible_device({npu.visible: "4,5"}, 1, npu.visible) == "5"
    assert (npu.backend, npu.device, accelerator("nvidia.com/gpu").backend, accelerator("cpu").backend) == (
        *("hccl", "npu", "nccl"),
        "gloo",
    )
    with pytest.raises(ConfigError, match=r"accelerator 'tpu': not allowed; expected one of nvidia\.com/gpu, ascend-npu, cpu"):
        accelerator("tpu")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, [0, 1, 2], id="all"),
        pytest.param("2,0", [2, 0], id="another order"),
        pytest.param("1,7,2", [1], id="it ends at one that is not there"),
        pytest.param("GPU-bb,GPU-a", [2, 0], id="by UUID, as far as it is needed"),
        pytest.param("GPU-x,1", [], id="a UUID that is not there"),
        pytest.param("-1", [], id="none, as people write it"),
        pytest.param("", [], id="none"),
    ],
)
def test_the_numbers_of_visible_gpus(visible: str | None, expected: list[int]) -> None:
    """In the worker's order."""
    assert (
        visible_numbers({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, ("GPU-aa", "GPU-ba", "GPU-bb"))
        == expected
    )


def test_workers_of_npus_are_dealt_out_over_the_numa_nodes() -> None:
    """Where each device is the kernel does not say by a name that is known here; nobody is left without a CPU."""
    near = worker_cpus(replaced(PLAN, numa_binding="node", nproc_per_node=2), {"CUDA_VISIBLE_DEVICES": "5"})
    assert set(near) == {0, 1}
    assert all(near.values())
