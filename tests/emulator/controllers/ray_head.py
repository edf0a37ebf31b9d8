"""What the head pod of an emulated RayCluster runs: `python -m tests.emulator.controllers.ray_head GCS DASHBOARD NODES`.

NODES are the `rayStartParams` of each worker node, as JSON. All of Ray ends with this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main(gcs: int, dashboard: int, nodes: list[dict[str, str]]) -> None:
    """Have a cluster until SIGTERM."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"}
    os.environ |= {"RAY_TMPDIR": "/tmp", "TMPDIR": "/tmp"}  # paths of sockets are short, and those of a pod are not
    os.environ.pop("RAY_ADDRESS", None)
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80_000_000}
    head = {"num_cpus": 0, "gcs_server_port": gcs, "include_dashboard": True, "dashboard_port": dashboard, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for node in nodes:
            cluster.add_node(**_options(node), **memory)
        signal.pause()
    finally:
        cluster.shutdown()


def _options(params: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"num_cpus": int(params["num-cpus"]), "num_gpus": int(params["num-gpus"])}
    if "memory" in params:
        found["memory"] = int(params["memory"])
    if "resources" in params:
        found["resources"] = json.loads(json.loads(params["resources"]))
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
