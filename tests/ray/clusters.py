"""A real Ray cluster on this machine: a head without CPUs, and nodes with logical resources."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.wire.env import HOME

__all__ = ["RayCluster", "can_lower_niceness", "ray_cluster"]

#: Variables with which Ray starts: no reports to anywhere, and no warnings about a small machine.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass
class RayCluster:
    """One cluster; `nodes` are its worker nodes in the order in which they joined."""

    inner: Any
    url: str
    folder: Path
    nodes: list[Any] = field(default_factory=list)

    def add(self, **given: Any) -> Any:
        """Add a worker node."""
        own = os.environ.pop(HOME, None)  # a node outlives the test that adds it
        try:
            node = self.inner.add_node(**{"num_cpus": 8, "object_store_memory": 80_000_000, **given})
        finally:
            if own is not None:
                os.environ[HOME] = own
        self.nodes.append(node)
        return node

    def lose(self, node: Any) -> None:
        """Kill a node without a word."""
        self.nodes.remove(node)
        self.inner.remove_node(node, allow_graceful=False)


@contextlib.contextmanager
def ray_cluster(
    folder: Path,
    *,
    nodes: int = 2,
    variables: dict[str, str] | None = None,
    head: dict[str, Any] | None = None,
    **given: Any,
) -> Iterator[RayCluster]:
    """Have a cluster while the context lasts; `head` are further options of its head, `given` those of its worker nodes."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    home = folder / "ray-home"
    home.mkdir()
    # Ray takes the newest cluster of a folder for the one that a process is in. The paths of its sockets are short.
    sessions = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    os.environ.update({**_QUIET, **(variables or {}), "HOME": str(home), "RAY_TMPDIR": sessions})
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        port = _free_port()
        options = {
            "num_cpus": 0,
            "include_dashboard": True,
            "dashboard_port": port,
            "dashboard_agent_listen_port": 0,  # by default one port, which the cluster of another test may have
            "object_store_memory": 80_000_000,
            **(head or {}),
        }
        cluster = Cluster(initialize_head=True, head_node_args=options)
        try:
            made = RayCluster(inner=cluster, url=f"http://127.0.0.1:{port}", folder=folder)
            for _ in range(nodes):
                made.add(**given)
            cluster.wait_for_nodes(timeout=60)
            yield made
        finally:
            agents = _agents(cluster)
            cluster.shutdown()
            _end(agents)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(sessions, ignore_errors=True)


def _agents(cluster: Any) -> dict[int, str]:
    """Return the children of all raylets by their number, with what tells them from later processes of that number."""
    nodes = [node for node in (cluster.head_node, *cluster.worker_nodes) if node is not None]
    raylets = {one.process.pid for node in nodes for one in node.all_processes.get("raylet", [])}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) in raylets:
                    found[int(entry.name)] = fields[19]
    return found


def _end(agents: dict[int, str]) -> None:
    """Kill the agents that outlived their raylet: after a restart of GCS they may, and hold the port of the next cluster's."""
    for pid, started in agents.items():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19] == started:
                os.kill(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def can_lower_niceness() -> bool:
    """Return whether processes of this user may lower their niceness."""
    script = "import os; os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)"
    return subprocess.run((sys.executable, "-c", script), capture_output=True, check=False).returncode == 0
