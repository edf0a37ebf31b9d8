"""Which CPUs are near a GPU, on machines that are folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.workers.affinity import Binding, bind, cpus_for, gpu_addresses, parse_cpus
from tests.waiting import eventually

#: Two sockets of two NUMA nodes with four cores of two threads each: CPU n and n + 16 are one core.
ALL = range(32)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two GPUs at node 0, one at node 3; a last-level cache for each two cores."""

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    for node in range(4):
        write(f"devices/system/node/node{node}/cpulist", f"{node * 4}-{node * 4 + 3},{node * 4 + 16}-{node * 4 + 19}")
    for cpu in ALL:
        core = cpu % 16
        base, pair = f"devices/system/cpu/cpu{cpu}", core // 2 * 2
        write(f"{base}/topology/physical_package_id", str(core // 8))
        write(f"{base}/topology/thread_siblings_list", f"{core},{core + 16}")
        write(f"{base}/cache/index0/level", "1")
        write(f"{base}/cache/index0/type", "Data")
        write(f"{base}/cache/index0/shared_cpu_list", f"{core},{core + 16}")
        write(f"{base}/cache/index9/level", "9")
        write(f"{base}/cache/index9/type", "Instruction")
        write(f"{base}/cache/index9/shared_cpu_list", "0-31")
        write(f"{base}/cache/index3/level", "3")
        write(f"{base}/cache/index3/type", "Unified")
        write(f"{base}/cache/index3/shared_cpu_list", f"{pair}-{pair + 1},{pair + 16}-{pair + 17}")
    for address, node in (("a", 0), ("b", 0), ("c", 3), ("alone", -1), ("lost", 7)):
        write(f"bus/pci/devices/{address}/numa_node", str(node))
    return tmp_path


@pytest.mark.parametrize(
    ("binding", "worker", "expected"),
    [
        pytest.param("node", 0, "0-3,16-19", id="node"),
        pytest.param("node", 2, "12-15,28-31", id="node of another"),
        pytest.param("socket", 1, "0-7,16-23", id="socket"),
        pytest.param("socket", 2, "8-15,24-31", id="socket of another"),
        pytest.param("exclusive", 0, "0-1,16-17", id="half of the cores"),
        pytest.param("exclusive", 1, "2-3,18-19", id="the other half"),
        pytest.param("exclusive", 2, "12-15,28-31", id="alone at its node"),
        pytest.param("core-complex", 0, "0-1,16-17", id="a cache"),
        pytest.param("core-complex", 1, "2-3,18-19", id="another cache"),
        pytest.param("core-complex", 2, "12-13,28-29", id="one of two"),
    ],
)
def test_cpus_near_a_gpu(machine: Path, binding: str, worker: int, expected: str) -> None:
    """As torchrun's modes say."""
    assert cpus_for(Binding(binding), worker, ["a", "b", "c"], ALL, root=machine) == parse_cpus(expected)


def test_cores_that_cannot_be_shared_equally(machine: Path) -> None:
    """The first workers have one more, and no core is in two shares."""
    shares = [cpus_for(Binding.EXCLUSIVE, worker, ["a", "b", "a"], ALL, root=machine) for worker in range(3)]

    assert [len(share) for share in shares] == [4, 2, 2]
    assert frozenset().union(*shares) == parse_cpus("0-3,16-19")


def test_what_may_not_be_used_is_left_out(machine: Path) -> None:
    """A container's own limits hold."""
    assert cpus_for(Binding.NODE, 0, ["a"], range(2, 9), root=machine) == {2, 3}
    assert cpus_for(Binding.SOCKET, 0, ["a"], range(2, 9), root=machine) == set(range(2, 8))


@pytest.mark.parametrize(
    ("gpus", "worker", "allowed", "text"),
    [
        pytest.param(["a"], 1, ALL, "local rank 1 has no GPU; number of visible GPUs: 1", id="no GPU"),
        pytest.param(["lost"], 0, ALL, "this process may not use any CPU of NUMA node 7, where GPU lost", id="no such node"),
        pytest.param(["c"], 0, [0], "this process may not use any CPU of NUMA node 3, where GPU c", id="not allowed"),
        pytest.param(["a"] * 5, 4, [0, 1, 2, 3], "NUMA node 0 has no free CPU for local rank 4", id="more workers than cores"),
    ],
)
def test_what_cannot_be_bound_is_told(machine: Path, gpus: list[str], worker: int, allowed: list[int], text: str) -> None:
    """The flag, the rank and why."""
    with pytest.raises(ConfigError, match=f"--numa-binding.*{text}"):
        cpus_for(Binding.EXCLUSIVE, worker, gpus, allowed, root=machine)


def test_without_gpus_workers_are_dealt_out(machine: Path) -> None:
    """Over the nodes in turn, and by halves where two share one."""
    nodes = [cpus_for(Binding.NODE, worker, [], ALL, workers=5, root=machine) for worker in range(5)]

    assert [min(cpus) for cpus in nodes] == [0, 4, 8, 12, 0]
    assert cpus_for(Binding.EXCLUSIVE, 4, [], ALL, workers=5, root=machine) == parse_cpus("2-3,18-19")


def test_a_gpu_whose_place_nobody_knows_is_no_obstacle(machine: Path, caplog) -> None:
    """-1, as in virtual machines, and no file at all: those workers are dealt out, and the others stay where they belong."""
    gpus = ["alone", "alone", "c", "d"]

    near = [cpus_for(Binding.NODE, worker, gpus, ALL, workers=4, root=machine) for worker in range(4)]

    assert [min(cpus) for cpus in near] == [0, 4, 12, 12]
    assert "cannot read the NUMA node of GPU d" in caplog.text


def test_one_node_or_none(machine: Path, tmp_path: Path) -> None:
    """The kernel says -1 where there is one node, and has no folder where it knows of none."""
    assert cpus_for(Binding.NODE, 0, ["alone"], ALL, root=machine) == parse_cpus("0-3,16-19")
    assert cpus_for(Binding.NODE, 1, [], [5, 6], workers=2, root=tmp_path / "bare") == {5, 6}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param(None, ["0000:01:00.0", "0000:dc:00.0"], id="all"),
        pytest.param("1,0", ["0000:dc:00.0", "0000:01:00.0"], id="another order"),
        pytest.param("GPU-b", ["0000:dc:00.0"], id="by UUID"),
        pytest.param("0,-1,1", ["0000:01:00.0"], id="the list ends at -1"),
        pytest.param("", [], id="none"),
    ],
)
def test_gpus_are_found_as_cuda_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    """By what nvidia-smi lists."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '00000000:01:00.0, GPU-a1'\necho '00000000:DC:00.0, GPU-b2'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert gpu_addresses({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_gpus_are_found_by_the_drivers_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no nvidia-smi."""
    monkeypatch.setenv("PATH", "")
    (tmp_path / "0000:01:00.0").mkdir()

    assert gpu_addresses({}, tmp_path) == ["0000:01:00.0"]


def test_every_thread_of_a_process_is_bound() -> None:
    """Also those that it starts later."""
    script = "import threading, sys; e = threading.Event(); threading.Thread(target=e.wait).start(); sys.stdin.read(); e.set()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    try:
        tasks = Path(f"/proc/{process.pid}/task")
        threads = eventually(lambda: found if len(found := [int(p.name) for p in tasks.iterdir()]) == 2 else None)
        cpu = min(os.sched_getaffinity(0))

        bind(process.pid, {cpu})

        assert [os.sched_getaffinity(thread) for thread in threads] == [{cpu}] * 2
    finally:
        process.communicate()
    bind(process.pid, {cpu})  # it has ended
