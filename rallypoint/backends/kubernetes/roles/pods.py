"""The pods of simple roles: one container for each instance of a group. Pure.

A pod with one instance is one life of it and never starts again. In a pod with several instances the kubelet restarts a
container that failed, which is the next life of that instance; the container counts its lives in a file of the pod.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import LIVES, PLACE, Part, labels
from rallypoint.backends.kubernetes.manifests.hosts import ANYWHERE, Exclusion
from rallypoint.backends.kubernetes.manifests.literal import literals, variables
from rallypoint.backends.kubernetes.manifests.objects import metadata
from rallypoint.backends.kubernetes.manifests.parts import (
    CONTAINER_SECURITY,
    POD_IP,
    TRAINER,
    built,
    container_fields,
    container_of,
    filled,
    grace_seconds,
    merge_all,
    pod_defaults,
    spec_fields,
    template_of,
)
from rallypoint.backends.kubernetes.manifests.volumes import OURS, RUN, SHM, TLS, TLS_VOLUME, TMP, job_volumes, shm_size
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.gang import Gang, unit_admission
from rallypoint.backends.kubernetes.roles.layout import Group, Instance
from rallypoint.backends.kubernetes.roles.lives import Life, write_lives
from rallypoint.backends.kubernetes.roles.resources import CLAIM, resources
from rallypoint.job import ElasticJob, Role
from rallypoint.wire import env
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.python import run_entrypoint
from rallypoint.wire.result import TERMINATION_LOG
from rallypoint.wire.role_plans import RolePlan, place_env, role_plan, roles_env
from rallypoint.wire.tls import AUTO, OFF, PEER_FILES

__all__ = ["ROLES_FOLDER", "ROLES_SECRET", "roles_files", "roles_mount", "roles_volume", "unit_pod"]

#: Where the containers find the token of calls between instances, and its key in the Secret of the job.
ROLES_FOLDER, ROLES_SECRET = "/etc/rallypoint-roles", "token"

_ROLES = f"{OURS}roles"

#: Bytes of the termination message of a container, and of those of all containers of a pod, which share them equally.
_MESSAGE, _MESSAGES = 4096, 12 * 1024

#: Counts the lives of a container in a file of its pod, then becomes the command.
_COUNT = 'n=$(($(cat "$1" 2>/dev/null || echo "$2") + 1)); echo "$n" > "$1"; export {name}="$n"; shift 2'


def unit_pod(
    job: JobRef,
    *,
    spec: ElasticJob,
    plan: Plan,
    group: Group,
    attempt: int,
    number: int,
    lives: Mapping[Instance, Life],
    url: str = "",
    gang: Gang | None = None,
    off: Exclusion = ANYWHERE,
) -> dict[str, Any]:
    """Return the pod with the instances of a group that have a life in `lives`; `number` is that of this life of the pod.

    `url` is where instances find each other.

    It keeps off the machines of `off`, and off those of the lists of its roles.
    """
    roles = _roles(spec, group)
    first = next(iter(lives)).container
    tmp = all(mount.get("mountPath") != TMP for role in roles for mount in _mounts(role))
    needed = {
        "metadata": _metadata(job, group, attempt, number, lives, gang),
        "spec": {
            "restartPolicy": "OnFailure" if len(group.instances) > 1 else "Never",
            "hostname": names.unit_hostname(group.place, group.number),
            "terminationGracePeriodSeconds": max(grace_seconds(role, role_plan(plan, role.name).read()) for role in roles),
            "containers": [_container(spec, plan, group, one, lives[one], attempt=attempt, url=url, tmp=tmp) for one in lives],
            "volumes": _volumes(job, roles, attempt, tmp=tmp, tls=plan.tls),
            **({"resourceClaims": [_claim(job, group)]} if group.shared else {}),
        },
    }
    layers = (pod_defaults(roles[0], plan, first), *(layer for role in roles for layer in _layers(role)), needed)
    avoided = dataclasses.replace(off, required=off.required.union(*(role.host_ignore_list for role in roles)))
    together = f"{names.together(job, group.place)}-{group.number}" if group.beside else ""
    unreachable = spec.health.node_unreachable
    pod = built(job, roles[0], layers, first=first, unreachable=unreachable, off=avoided, together=together)
    _add_results(pod["spec"], {one.container for one in lives})
    return pod


def _add_results(spec: dict[str, Any], ours: Collection[str]) -> None:
    """Let our containers leave their results as termination messages; the pod is changed in place."""
    every = [*spec["containers"], *(spec.get("initContainers") or ())]
    limit = min(_MESSAGE, _MESSAGES // len(every))
    for container in spec["containers"]:
        if container["name"] in ours:
            # The end of the log of an instance that failed names the exception.
            container |= {"terminationMessagePath": TERMINATION_LOG, "terminationMessagePolicy": "FallbackToLogsOnError"}
            told = {env.RESULT_FILE: TERMINATION_LOG, env.RESULT_LIMIT: str(limit)}
            container["env"] = [*container["env"], *variables(told)]


def _metadata(
    job: JobRef, group: Group, attempt: int, number: int, lives: Mapping[Instance, Life], gang: Gang | None
) -> dict[str, Any]:
    said = unit_admission(gang, shape=group.place)
    its = labels(job, Part.UNIT, attempt=attempt, node=group.number, incarnation=number)
    told = {**said.annotations, LIVES: write_lives({one.container: life for one, life in lives.items()})}
    name = names.unit_pod(job, attempt, group.place, group.number, number)
    return metadata(job, name, {**its, PLACE: group.place, **said.labels}, told)


def roles_files(tls: str) -> dict[str, str]:
    """Return the variables that say where an instance finds what its calls authenticate with; `tls` is as in `Plan.tls`."""
    folder = ROLES_FOLDER if tls == AUTO else TLS if tls else ""
    token = {env.ROLES_SECRET_FILE: f"{ROLES_FOLDER}/{ROLES_SECRET}"}
    return {**token, env.ROLES_TLS: folder} if folder else token


def roles_volume(job: JobRef, *, tls: str = OFF) -> dict[str, Any]:
    """Return the volume with the token of calls between instances, and with the job's own certificates."""
    # Named one by one: the key of the authority stays out of the pod.
    items = [{"key": name, "path": name} for name in (ROLES_SECRET, *(PEER_FILES if tls == AUTO else ()))]
    return {"name": _ROLES, "secret": {"secretName": names.roles_secret(job), "defaultMode": 0o444, "items": items}}


def roles_mount() -> dict[str, Any]:
    """Return where that is mounted."""
    return {"name": _ROLES, "mountPath": ROLES_FOLDER, "readOnly": True}


# --- parts of a pod --------------------------------------------------------------------------------------------------------


def _roles(spec: ElasticJob, group: Group) -> tuple[Role, ...]:
    wanted = dict.fromkeys(one.role for one in group.instances)
    return tuple(role for name in wanted for role in spec.roles if role.name == name)


def _layers(role: Role) -> Iterator[dict[str, Any]]:
    """Yield what one role says of its pod: its template without the container of its instances, then its own fields."""
    template = template_of(role, without=TRAINER)
    yield template
    sidecars = [{**sidecar, "restartPolicy": "Always"} for sidecar in role.sidecars]
    more = {
        "serviceAccountName": role.service_account,
        "automountServiceAccountToken": bool(role.service_account),
        "volumes": list(role.volumes),
        "initContainers": [*role.init_containers, *sidecars],
    }
    yield {
        "metadata": {"labels": dict(role.labels), "annotations": dict(role.annotations)},
        "spec": {**spec_fields(role), **filled(more)},
    }


def _container(
    spec: ElasticJob, plan: Plan, group: Group, one: Instance, life: Life, *, attempt: int, url: str, tmp: bool
) -> dict[str, Any]:
    """Return the container of one instance."""
    role, its = next(role for role in spec.roles if role.name == one.role), role_plan(plan, one.role)
    child = its.read()
    template = container_of(template_of(role)["spec"], TRAINER)
    bare = {key: value for key, value in template.items() if key not in ("args", "command", "name", "resources")}
    needed: dict[str, Any] = {
        "name": one.container,
        "command": _command(role, child, one, life, shared=len(group.instances) > 1),
        "env": [*_environment(its, child, plan, one, life, attempt=attempt, url=url)],
        "resources": merge_all(template.get("resources") or {}, resources(role, group, isolation=spec.worker_isolation)),
        "volumeMounts": [*_our_mounts(tmp=tmp, tls=plan.tls)],
    }
    if PurePosixPath(child.workdir).is_absolute():
        needed["workingDir"] = child.workdir
    fields = {**container_fields(role, one.container), **filled({"volumeMounts": list(role.volume_mounts)})}
    return merge_all({"securityContext": dict(CONTAINER_SECURITY)}, bare, fields, needed)


def _command(role: Role, plan: Plan, one: Instance, life: Life, *, shared: bool) -> list[str]:
    """Return the command of an instance; no word has references for Kubernetes."""
    python = [*(role.python or ("python",)), "-u"]
    command = [*(python if plan.entry is Entry.SCRIPT else ()), plan.entrypoint, *plan.args]
    if plan.entry is Entry.MODULE:
        command = [*run_entrypoint(plan.entrypoint, *plan.args, python=python)]
    steps = [_COUNT.format(name=env.INCARNATION)] if shared else []
    if plan.workdir and not PurePosixPath(plan.workdir).is_absolute():
        steps.append(f"cd {_quoted(plan.workdir)}")
    steps += plan.setup
    if not steps:
        return literals(command)
    counted = [f"{RUN}/{one.container}.life", str(life.incarnation - 1)] if shared else []
    return literals(["sh", "-e", "-c", "\n".join((*steps, 'exec "$@"')), "start", *counted, *command])


def _quoted(text: str) -> str:
    inner = text.replace("'", "'\\''")
    return f"'{inner}'"


def _environment(
    its: RolePlan, child: Plan, plan: Plan, one: Instance, life: Life, *, attempt: int, url: str
) -> Iterator[dict[str, Any]]:
    """Yield the variables of one instance; those of its place win over the user's."""
    yield {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    yield {"name": env.MACHINE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    values = {
        **child.env,
        **({env.CHECKPOINT_DIR: child.checkpoint_dir} if child.checkpoint_dir else {}),
        **({"CUDA_VISIBLE_DEVICES": ",".join(map(str, one.devices))} if one.devices else {}),
        "PYTHONUNBUFFERED": "1",
        **roles_env(plan, its),
        **place_env(its, one.index, attempt=attempt, reset=life.reset, incarnation=life.incarnation),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        **roles_files(plan.tls),
        env.ROLES_URL: url,
    }
    yield from variables(values)
    yield {"name": env.HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _mounts(role: Role) -> list[Mapping[str, Any]]:
    return [*role.volume_mounts, *(container_of(template_of(role)["spec"], TRAINER).get("volumeMounts") or ())]


def _our_mounts(*, tmp: bool, tls: str) -> Iterator[dict[str, Any]]:
    yield roles_mount()
    if _is_own(tls):
        yield {"name": TLS_VOLUME, "mountPath": TLS, "readOnly": True}
    yield {"name": f"{OURS}run", "mountPath": RUN}
    if tmp:
        yield {"name": f"{OURS}tmp", "mountPath": TMP}
    yield {"name": f"{OURS}shm", "mountPath": SHM}


def _is_own(tls: str) -> bool:
    """Return whether the certificates are those of a Secret of the user."""
    return tls not in (OFF, AUTO)


def _volumes(job: JobRef, roles: Iterable[Role], attempt: int, *, tmp: bool, tls: str) -> list[dict[str, Any]]:
    # No container mounts the Secret of the attempt: the pod cannot start without it, which ends what is created too late.
    shm = sum((shm_size(role) * (role.per_group or 1) for role in roles), start=type(shm_size(next(iter(roles))))(0))
    volumes = job_volumes(job, attempt=attempt, shm=shm, tmp=tmp, tls=tls)
    needed = [volume for volume in volumes if volume["name"] != TLS_VOLUME or _is_own(tls)]
    return [*needed, roles_volume(job, tls=tls)]


def _claim(job: JobRef, group: Group) -> dict[str, Any]:
    if group.beside:
        return {"name": CLAIM, "resourceClaimName": f"{names.claim(job, group.place)}-{group.number}"}
    return {"name": CLAIM, "resourceClaimTemplateName": names.claim_template(job, group.place)}
