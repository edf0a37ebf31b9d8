"""A job file as a PyTorchJob: each pod runs an agent that meets the others at the master, as under torchrun. Pure.

There is no coordinator pod and no supervisor that the agents know: the pods that are counted are the job's own, and the
master's agent is the coordinator of its attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.labels import DOMAIN
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER, in_the_image
from rallypoint.backends.kubernetes.manifests.kueue import QUEUE, queue_of
from rallypoint.backends.kubernetes.manifests.literal import literal, literals, variables
from rallypoint.backends.kubernetes.manifests.parts import POD_IP, role_of
from rallypoint.backends.kubernetes.manifests.pods import node_pod
from rallypoint.backends.kubernetes.manifests.validation import check
from rallypoint.backends.kubernetes.manifests.volumes import OURS, TLS
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.wrapped.kinds import WRAPPING
from rallypoint.job import ElasticJob, Role, compile_plan
from rallypoint.job.annotations import write_annotations
from rallypoint.job.compile_roles import has_roles
from rallypoint.wire.env import CHECKPOINT_DIR
from rallypoint.wire.plan import Entry, Kind, Plan, WorkerSettings
from rallypoint.wire.python import run_module

__all__ = ["MASTER_PORT", "pod_template", "pytorchjob_of"]

#: The training operator finds the container of a replica, and the port of its master, by these names alone.
_CONTAINER, _PORT = "pytorch", "pytorchjob-port"

#: Where the master's agent listens: the operator's own default.
MASTER_PORT = 23456

_SECRET = f"{OURS}secret"
_KUEUE = "kueue.x-k8s.io/"


def pytorchjob_of(job: ElasticJob) -> dict[str, Any]:
    """Return the PyTorchJob that runs a job, with AppWrapper's annotations of its policies.

    Raises `SubmitError` for a job of several roles, and for one that cannot run as pods.
    """
    if has_roles(job):
        names = ", ".join(role.name for role in job.roles)
        raise SubmitError(
            f"kind: pytorchjob runs one elastic role, and job {job.name} has the roles {names}; use kind pods or appwrapper"
        )
    (plan,) = compile_plan(job)
    role = role_of(job, plan)
    plan = in_the_image(plan, role)
    check(job, plan, role)
    template = pod_template(job, plan, role)
    replicas = {"Master": 1, "Worker": plan.max_nodes - 1}
    queue = queue_of(role)
    return {
        "apiVersion": WRAPPING[Kind.PYTORCHJOB].version,
        "kind": WRAPPING[Kind.PYTORCHJOB].kind,
        "metadata": {
            "name": job.name,
            "labels": {**job.labels, **({QUEUE: queue} if queue else {})},
            "annotations": {**job.annotations, **write_annotations(job)},
        },
        "spec": {
            "pytorchReplicaSpecs": {
                name: {"replicas": number, "restartPolicy": "Never", "template": template}
                for name, number in replicas.items()
                if number
            }
        },
    }


def pod_template(job: ElasticJob, plan: Plan, role: Role) -> dict[str, Any]:
    """Return the pod of a node as it is of any job, without what only our own supervisor could give it."""
    ref = JobRef(name=job.name, uid=PLACEHOLDER, namespace="")
    pod = node_pod(ref, spec=job, plan=plan, attempt=1, node=0, incarnation=1)
    spec = {key: value for key, value in pod["spec"].items() if key not in ("hostname", "restartPolicy", "subdomain")}
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != _SECRET]
    trainer, *others = spec["containers"]
    trainer["name"] = _CONTAINER
    trainer["ports"] = [{"name": _PORT, "containerPort": plan.rendezvous.coordinator_port or MASTER_PORT, "protocol": "TCP"}]
    trainer["volumeMounts"] = [mount for mount in trainer["volumeMounts"] if mount["name"] != _SECRET]
    trainer["env"] = [*trainer.get("env", ()), *_environment(plan)]
    trainer["command"] = _command(plan, role)
    if plan.workdir:
        trainer["workingDir"] = plan.workdir
    metadata = {key: _given(pod["metadata"].get(key) or {}) for key in ("labels", "annotations")}
    return {
        "metadata": {key: words for key, words in metadata.items() if words},
        "spec": _with_own_users({**spec, "containers": [trainer, *others]}),
    }


def _with_own_users(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec in which each container says for itself that it must not run as root.

    The training operator adds an init container to each worker, whose image runs as root and which says nothing of users. Where
    the pod as a whole said `runAsNonRoot` that container could never start, unless the pod names a user.
    """
    shared = dict(spec["securityContext"])
    if not shared.get("runAsNonRoot") or shared.get("runAsUser") is not None:
        return dict(spec)
    del shared["runAsNonRoot"]
    containers = {
        field: [{**one, "securityContext": {"runAsNonRoot": True, **(one.get("securityContext") or {})}} for one in spec[field]]
        for field in ("initContainers", "containers")
        if field in spec
    }
    return {**spec, **containers, "securityContext": shared}


def _given(words: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations without ours, and without those by which a queue would take each pod for a job."""
    return {key: text for key, text in words.items() if not key.startswith((DOMAIN, _KUEUE))}


def _environment(plan: Plan) -> Iterator[dict[str, Any]]:
    values = {**plan.env, **({CHECKPOINT_DIR: plan.checkpoint_dir} if plan.checkpoint_dir else {})}
    yield from variables(values)


def _command(plan: Plan, role: Role) -> list[str]:
    python = literals(role.python or ("python",))
    words = literals([*_flags(plan), *_entry(plan), *plan.args])
    tls = ["--tls", TLS] if plan.tls else []
    # Kubernetes replaces these references, and no others.
    meeting = [*tls, "--rdzv-endpoint", "$(MASTER_ADDR):$(MASTER_PORT)", "--local-addr", f"$({POD_IP})"]
    agent = [*run_module("rallypoint.agent", "run", *meeting, *words, python=python)]
    if not plan.setup:
        return agent
    # One shell, as agents of other kinds have it: it stops at the first error, and what it exports the workers have.
    return ["sh", "-e", "-c", literal("\n".join((*plan.setup, 'exec "$@"'))), "setup", *agent]


def _flags(plan: Plan) -> Iterator[str]:
    flags = {
        "--nnodes": f"{plan.min_nodes}:{plan.max_nodes}",
        "--nproc-per-node": plan.nproc_per_node,
        "--max-restarts": plan.budgets.max_restarts,
        "--rdzv-backend": "c10d",
        "--rdzv-id": plan.name,
        "--shutdown-timeout": f"{plan.workers.stop_grace:g}",
        **({"--rdzv-conf": "insecure_token=true"} if plan.insecure_token else {}),
        **({} if plan.workers.exit_grace == WorkerSettings.exit_grace else {"--exit-grace": f"{plan.workers.exit_grace:g}"}),
    }
    for flag, value in flags.items():
        yield from (flag, str(value))


def _entry(plan: Plan) -> Iterator[str]:
    if plan.entry is Entry.MODULE:
        yield "--module"
    if plan.entry is Entry.COMMAND:
        yield "--no-python"
    yield plan.entrypoint
