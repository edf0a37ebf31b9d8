"""Which CPUs a worker may use so that it stays near its GPU, from what the kernel tells below /sys, and binding it to them.

The worker of local rank *n* uses the *n*-th GPU that is visible. Where there is none, or the kernel does not say where it is,
workers are dealt out to the NUMA nodes in turn. Neither torch nor numactl is needed.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rallypoint.agent.accelerators import NVIDIA
from rallypoint.agent.devices import DRIVER
from rallypoint.agent.errors import ConfigError
from rallypoint.wire.plan import Plan

__all__ = ["Binding", "bind", "cpus_for", "gpu_addresses", "parse_cpus", "worker_cpus"]

log = logging.getLogger("rallypoint.affinity")

_SYS = Path("/sys")

#: A thread may be born while the threads are bound; it has its parent's CPUs, so a few looks are enough.
_LOOKS = 8


class Binding(str, enum.Enum):
    """How near, as torchrun's --numa-binding says it."""

    NODE = "node"  #: all CPUs of the GPU's NUMA node
    SOCKET = "socket"  #: all CPUs of that node's socket
    EXCLUSIVE = "exclusive"  #: a share of the node's cores, which no other of its GPUs' workers has
    CORE_COMPLEX = "core-complex"  #: one group of cores with a last-level cache in common


def worker_cpus(plan: Plan, env: Mapping[str, str]) -> dict[int, frozenset[int]]:
    """Return the CPUs for each worker of a node by its local rank, none where the plan binds none; raises `ConfigError`."""
    if not plan.workers.numa_binding:
        return {}
    binding, count = Binding(plan.workers.numa_binding), plan.nproc_per_node
    # Where Ascend's NPUs are the kernel does not say by a name that is known here: their workers are dealt out.
    gpus = gpu_addresses(env) if plan.devices.accelerator == NVIDIA else []
    allowed = os.sched_getaffinity(0)
    return {worker: cpus_for(binding, worker, gpus, allowed, workers=count) for worker in range(count)}


def cpus_for(
    binding: Binding, worker: int, gpus: Sequence[str], allowed: Iterable[int], *, workers: int = 1, root: Path = _SYS
) -> frozenset[int]:
    """Return the CPUs for the worker of a local rank.

    Args:
        binding: how near.
        worker: its local rank, out of `workers`.
        gpus: addresses on the PCI bus of the GPUs that are visible; none deals the workers out over the NUMA nodes.
        allowed: the CPUs that this process may use.
        root: of the kernel's files.

    Raises:
        ConfigError: there is no GPU for this rank, or no CPU is left for it.

    """
    if gpus and worker >= len(gpus):
        raise ConfigError(
            f"--numa-binding {binding.value}: local rank {worker} has no GPU; number of visible GPUs: {len(gpus)}"
        )
    usable = frozenset(allowed)
    nodes = _nodes(root, usable)
    dealt = sorted(nodes)
    homes = [_home(root, gpu, nodes, dealt[rank % len(dealt)]) for rank, gpu in enumerate(gpus)]
    homes = homes or [dealt[rank % len(dealt)] for rank in range(workers)]
    home = homes[worker]
    near = nodes[home]
    if binding is Binding.SOCKET:
        near = _socket_of(root, near, nodes)
    elif binding is not Binding.NODE:
        peers = [rank for rank, other in enumerate(homes) if other == home]
        share = _core_share if binding is Binding.EXCLUSIVE else _complex
        near = share(root, near, peers.index(worker), len(peers))
    if not near:
        raise ConfigError(f"--numa-binding {binding.value}: NUMA node {home} has no free CPU for local rank {worker}")
    return near


def _nodes(root: Path, usable: frozenset[int]) -> dict[int, frozenset[int]]:
    """Return the usable CPUs of each NUMA node that has any; a kernel without NUMA has one node with all."""
    folders = (root / "devices/system/node").glob("node[0-9]*")
    found = {int(folder.name[4:]): usable & parse_cpus((folder / "cpulist").read_text()) for folder in folders}
    return {node: cpus for node, cpus in found.items() if cpus} or {0: usable}


def _home(root: Path, gpu: str, nodes: Mapping[int, frozenset[int]], otherwise: int) -> int:
    """Return the NUMA node of a GPU; `otherwise` where the kernel does not know it, as in virtual machines."""
    try:
        node = int((root / "bus/pci/devices" / gpu / "numa_node").read_text())
    except (OSError, ValueError) as error:
        log.warning(
            "the agent cannot read the NUMA node of GPU %s (%s); it binds the worker of this GPU to the next NUMA node in turn",
            gpu,
            error,
        )
        return otherwise
    if node < 0:  # what the kernel says where there is one node only, or where nobody told it
        return otherwise
    if node not in nodes:
        raise ConfigError(f"--numa-binding: this process may not use any CPU of NUMA node {node}, where GPU {gpu} is attached")
    return node


def _socket_of(root: Path, near: frozenset[int], nodes: Mapping[int, frozenset[int]]) -> frozenset[int]:
    socket = _package(root, min(near))
    return frozenset().union(*(cpus for cpus in nodes.values() if _package(root, min(cpus)) == socket))


def _package(root: Path, cpu: int) -> int:
    return int((root / f"devices/system/cpu/cpu{cpu}/topology/physical_package_id").read_text())


def _core_share(root: Path, near: frozenset[int], index: int, count: int) -> frozenset[int]:
    """Return a share of the cores; the first shares have one core more where they cannot be equal."""
    cores = _grouped(near, lambda cpu: parse_cpus((_cpu(root, cpu) / "topology/thread_siblings_list").read_text()))
    each, more = divmod(len(cores), count)
    start = index * each + min(index, more)
    return frozenset().union(*cores[start : start + each + (index < more)])


def _complex(root: Path, near: frozenset[int], index: int, _count: int) -> frozenset[int]:
    groups = sorted(_grouped(near, lambda cpu: _last_level(root, cpu)), key=lambda group: (-len(group), min(group)))
    return groups[index % len(groups)]


def _grouped(cpus: frozenset[int], together: Callable[[int], frozenset[int]]) -> list[frozenset[int]]:
    """Return the CPUs in groups of those that belong together, ordered by their lowest."""
    groups: list[frozenset[int]] = []
    for cpu in sorted(cpus):
        if not any(cpu in group for group in groups):
            groups.append((together(cpu) | {cpu}) & cpus)
    return groups


def _last_level(root: Path, cpu: int) -> frozenset[int]:
    best, shared = -1, frozenset({cpu})
    for index in (_cpu(root, cpu) / "cache").glob("index[0-9]*"):
        level = int((index / "level").read_text())
        if level > best and (index / "type").read_text().strip() in ("Unified", "Data"):
            best, shared = level, parse_cpus((index / "shared_cpu_list").read_text())
    return shared


def _cpu(root: Path, cpu: int) -> Path:
    return root / f"devices/system/cpu/cpu{cpu}"


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers in the kernel's form for a list: `0-2,4`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def gpu_addresses(env: Mapping[str, str], driver: Path = DRIVER) -> list[str]:
    """Return the addresses on the PCI bus, as /sys spells them, of the GPUs that a worker would see, in its order.

    CUDA_VISIBLE_DEVICES chooses among them by number or by UUID, and ends at the first entry that is none of them, as in CUDA.
    """
    known = _listed() or [(path.name, "") for path in sorted(driver.glob("*:*"))]
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [address for address, _ in known]
    chosen: list[str] = []
    for entry in visible.split(","):
        found = _chosen(entry.strip(), known)
        if found is None:
            break
        chosen.append(found)
    return chosen


def _chosen(entry: str, known: Sequence[tuple[str, str]]) -> str | None:
    if entry.isdecimal():
        return known[int(entry)][0] if int(entry) < len(known) else None
    return next((address for address, uuid in known if entry and uuid.startswith(entry)), None)


def _listed() -> list[tuple[str, str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(",") for line in told.splitlines() if "," in line)
    return [(_address(bus.strip()), uuid.strip()) for bus, uuid in rows]


def _address(bus: str) -> str:
    """Return nvidia-smi's `00000000:DC:00.0` as the kernel spells it: `0000:dc:00.0`."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def bind(pid: int, cpus: Iterable[int], proc: Path = Path("/proc")) -> None:
    """Bind all threads of a process to `cpus`; those that it starts later inherit it. One that has ended is no error."""
    wanted, bound = set(cpus), set[int]()
    for _ in range(_LOOKS):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            threads = {int(path.name) for path in (proc / str(pid) / "task").iterdir()} - bound
            if not threads:
                return
            for thread in threads:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, wanted)
            bound |= threads
