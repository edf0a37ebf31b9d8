"""What the containers of a job ask for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rallypoint.backends.kubernetes.manifests.volumes import shm_size
from rallypoint.job import Role
from rallypoint.job.quantity import quantity, write_bytes

__all__ = ["COORDINATOR_RESOURCES", "GPU", "device_resource", "trainer_resources"]

#: What devices are called where nobody says otherwise: the names of NVIDIA's device plugin, and of Ascend's for its 910s.
GPU, NPU = "nvidia.com/gpu", "huawei.com/Ascend910"
_OF_ACCELERATORS = {"ascend-npu": NPU}

#: A coordinator waits for most of its life; a thousand nodes that report to it fit into this.
COORDINATOR_RESOURCES: Mapping[str, Any] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"cpu": "1", "memory": "1Gi"},
}


def device_resource(role: Role) -> str:
    """Return what a device of the role's is called in the cluster."""
    return role.resources.gpu_resource or _OF_ACCELERATORS.get(role.accelerator, GPU)


def trainer_resources(role: Role, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node asks for and is limited to; `template` is what the role's template says of it.

    Memory that /dev/shm holds is memory of the pod: it is added to what the processes get, in the request and in the limit.
    """
    asked, shm = role.resources, shm_size(role)
    given = template.get("resources") or {}
    memory = asked.memory or str((given.get("requests") or {}).get("memory", ""))
    most = asked.memory_limit or asked.memory or str((given.get("limits") or {}).get("memory", ""))
    same = {**dict(asked.extended), **({device_resource(role): str(asked.gpus)} if asked.gpus else {})}
    requests = {"cpu": asked.cpu, "memory": write_bytes(_bytes(memory) + shm), **same}
    limits = {"cpu": asked.cpu_limit or asked.cpu, "memory": write_bytes(_bytes(most) + shm) if most else "", **same}
    return {
        kind: {name: quantity for name, quantity in quantities.items() if quantity}
        for kind, quantities in (("requests", requests), ("limits", limits))
        if any(quantities.values())
    }


def _bytes(text: str) -> Fraction:
    return quantity(text) if text else Fraction(0)
