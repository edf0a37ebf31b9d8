"""The shell script of a pod, and the Secret of an elastic job that is applied by hand (`rallypoint render --secret`). Pure.

The pods of the job refer to the Secret by name and wait for it, so it can be created after the AppWrapper and be owned by it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from typing import Any

from rallypoint.backends.kubernetes.names import RUN_SECRET_SUFFIX
from rallypoint.compat.pytorchjob_generator.settings import Settings
from rallypoint.wire import env

__all__ = ["KEY", "MASTER_PORT", "POD_NAME", "program", "script", "secret_name", "secret_object", "secret_variable"]

#: Variable with the pod's name, from which an elastic job's script knows its rank where nobody tells it.
POD_NAME = "RALLYPOINT_POD_NAME"

#: Port of a PyTorchJob's master where its spec names none.
MASTER_PORT = 23456

#: Restarts of workers within one pod's life; the default of `recovery.max_restarts`.
_RESTARTS = 3

_HEAD = """\
echo "Environment variables set by the kubeflow training operator:"
echo ${MASTER_ADDR}:${MASTER_PORT}
echo "PYTHONUNBUFFERED:"${PYTHONUNBUFFERED}
echo My global rank is ${RANK} / ${WORLD_SIZE}
echo "Other injected environment variables:"
echo "NVME_MOUNT_PATH: "${NVME_MOUNT_PATH}
#
# User commands
#"""

_SAKKARA = """\
echo "Sakkara is enabled: using Sakkara-assigned rank instead of the default PyTorchJob rank"
export RANK=$SAKKARA_RANK"""

#: Kept as they are where a training operator has set them.
_EXPORTS = """\
set -e
case "${{{pod_name}}}" in *-worker-*) slot=$((${{{pod_name}##*-}} + 1)) ;; *) slot=0 ;; esac
export WORLD_SIZE="${{WORLD_SIZE:-{world_size}}}" RANK="${{RANK:-$slot}}"
export MASTER_ADDR="${{MASTER_ADDR:-{job}-master-0}}" MASTER_PORT="${{MASTER_PORT:-{port}}}\""""


def script(settings: Settings) -> str:
    """Return the script; it ends with a line break.

    Without `elastic` it is the chart's: no error of a setup command stops it, and the exit code is that of the last command.
    """
    return "".join(f"{part}\n" for part in _parts(settings))


def program(settings: Settings) -> str:
    """Return the program with its arguments as a shell reads them; "" where there is none."""
    return (settings.main_program or "").strip()


def _parts(settings: Settings) -> Iterator[str]:
    if settings.elastic:
        yield _EXPORTS.format(pod_name=POD_NAME, world_size=settings.num_pods, job=settings.job_name, port=MASTER_PORT)
    yield _HEAD
    if settings.scheduler == "sakkara":
        yield _SAKKARA
    yield from (command.rstrip("\n") for command in settings.setup_commands)
    if program(settings):
        launch = f"{_agent(settings) if settings.elastic else _torchrun(settings)} {program(settings)}"
        yield f"echo executing: {launch}"
        # The shell makes room for the agent, which so gets the signal that ends the pod.
        yield f"exec {launch}" if settings.elastic else launch


def _torchrun(settings: Settings) -> str:
    workers = f" --nproc_per_node={settings.num_gpus}" if settings.num_gpus else ""
    nodes = f"--nnodes=${{WORLD_SIZE}} --node_rank=${{RANK}}{workers}"
    return f'torchrun {nodes} --rdzv_id=101 --rdzv_endpoint="${{MASTER_ADDR}}:${{MASTER_PORT}}"'


def _agent(settings: Settings) -> str:
    nodes = f"--nnodes={settings.least_pods}:{settings.num_pods} --nproc_per_node={settings.workers_per_pod}"
    restarts = _RESTARTS if settings.max_restarts is None else settings.max_restarts
    meeting = f'--rdzv_backend=c10d --rdzv_id={settings.job_name} --rdzv_endpoint="${{MASTER_ADDR}}:${{MASTER_PORT}}"'
    insecure = " --insecure_token" if settings.insecure_token else ""
    return f"rallypoint-agent run {nodes} --max_restarts={restarts}{insecure} {meeting}"


#: Key of the Secret, as in the Secrets of the kubernetes backend.
KEY = "secret"

_BYTES = 32


def secret_name(settings: Settings) -> str:
    """Return the name of the Secret of an elastic job."""
    return f"{settings.job_name}{RUN_SECRET_SUFFIX}"


def secret_variable(settings: Settings) -> dict[str, Any]:
    """Return the variable by which the pods refer to it."""
    return {"name": env.SECRET, "valueFrom": {"secretKeyRef": {"name": secret_name(settings), "key": KEY}}}


def secret_object(settings: Settings, *, owner: str = "") -> dict[str, Any]:
    """Return the Secret, with a new secret in it; `owner` is the uid of the AppWrapper with which it is deleted."""
    reference = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "name": settings.job_name,
        "uid": owner,
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(settings),
            **({"namespace": settings.namespace} if settings.namespace else {}),
            **({"ownerReferences": [reference]} if owner else {}),
        },
        "type": "Opaque",
        "immutable": True,
        "data": {KEY: base64.b64encode(secrets.token_hex(_BYTES).encode()).decode()},
    }
