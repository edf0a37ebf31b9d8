"""The worker groups of the Ray cluster of one job: one for each role, or group of roles, with its pods. Pure.

A pod holds exactly one node of an elastic role, or one group of instances. So that Ray places each of them in a pod that has
its image and resources, and no second one beside it, the pods of each worker group have a resource of Ray of their own, the
marker, which one node or group uses up.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.labels import DOMAIN
from rallypoint.backends.kubernetes.manifests.blueprint import in_the_image
from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.parts import POD_IP, grace_seconds
from rallypoint.backends.kubernetes.manifests.validation import role_problems
from rallypoint.backends.kubernetes.roles.gang import gang_problems
from rallypoint.backends.kubernetes.roles.validation import ranges_in_groups
from rallypoint.backends.kubernetes.wrapped.shared_pods import disagreements, joined, unlimited
from rallypoint.backends.kubernetes.wrapped.template import pod_template
from rallypoint.backends.ray.roles import Shape
from rallypoint.job import ElasticJob, Role, compile_plan
from rallypoint.job.placement import place_names
from rallypoint.job.role import DEFAULT_ROLE
from rallypoint.wire import env

__all__ = ["WorkerGroup", "check", "ray_pod", "worker_groups"]

#: Worker groups of one cluster: Kueue counts eight pod sets, and the head is one of them.
_MOST = 7

#: Kueue's name of the pod set of the head.
_HEAD = "head"

#: Name of Ray's container in the other pods.
_WORKER = "ray-worker"

#: Variables by which an agent in a pod knows its place; on Ray, it has them from the actor of its node.
_OURS = (POD_IP, env.MACHINE)


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """Equal pods.

    Attributes:
        roles: names of the roles that run in these pods; `each` of them that share one pod.
        template: of a pod of Ray.
        ask: the resources of a pod by their names in Ray, without the marker.
        least, most: pods without and with the nodes above MIN of elastic roles.
    """

    name: str
    roles: tuple[str, ...]
    each: int
    template: dict[str, Any]
    ask: Mapping[str, float]
    least: int
    most: int

    @property
    def marker(self) -> str:
        """The resource of Ray of which each role in a pod uses one."""
        return f"{DOMAIN}{self.name}"

    @property
    def start_params(self) -> dict[str, str]:
        """Resources of the pod that Ray sees."""
        found = dict(self.ask)
        params = {"num-cpus": str(_whole(found.pop("CPU", 0))), "num-gpus": str(_whole(found.pop("GPU", 0)))}
        memory = found.pop("memory", 0)
        custom = json.dumps({**found, self.marker: self.each})
        # KubeRay writes it into a command line of a shell.
        return {**params, **({"memory": str(math.ceil(memory))} if memory else {}), "resources": json.dumps(custom)}


def _whole(amount: float) -> int:
    """Return an amount rounded up; Ray counts in ten-thousandths."""
    return math.ceil(round(amount, 4))


def check(job: ElasticJob, shapes: Iterable[Shape]) -> None:
    """Raise `SubmitError` with everything that keeps a job from running in the pods of a Ray cluster, one line for each."""
    wrong = dict.fromkeys([*_problems(job, shapes), *gang_problems(job, coordinators=False)])
    if wrong:
        lines = "\n".join(f"{problem.path}: {problem.text}" for problem in wrong)
        raise SubmitError(f"job {job.name} cannot run on Kubernetes:\n{lines}")


def _problems(job: ElasticJob, shapes: Iterable[Shape]) -> Iterator[Wrong]:
    short = len(job.roles) == 1 and job.roles[0].name == DEFAULT_ROLE
    for role, plan in zip(job.roles, compile_plan(job), strict=True):
        place = Place() if short else Place(path=f"roles.{role.name}")
        yield from role_problems(place, in_the_image(plan, role), role)
    yield from ranges_in_groups(job)
    for shape in shapes:
        yield from disagreements(_roles(job, shape))


def worker_groups(job: ElasticJob, shapes: Iterable[Shape]) -> tuple[WorkerGroup, ...]:
    """Return the worker groups of a job that was checked; raises `SubmitError` where there are too many.

    Roles with equal pods have one worker group.
    """
    plans = {role.name: plan for role, plan in zip(job.roles, compile_plan(job), strict=True)}
    found: dict[str, WorkerGroup] = {}
    for shape in shapes:
        roles = _roles(job, shape)
        group = _group(job, shape, roles, grace=max(grace_seconds(role, plans[role.name]) for role in roles))
        key = json.dumps([group.template, dict(group.ask), group.each], sort_keys=True)
        found[key] = _added(found[key], group) if key in found else group
    if len(found) > _MOST:
        names = [group.name for group in found.values()]
        shown = ", ".join(names[: _MOST + 1]) + (", ..." if len(names) > _MOST + 1 else "")
        raise SubmitError(
            f"roles: {len(found)} worker groups of a Ray cluster ({shown}) are not allowed; expected at most {_MOST}. Roles "
            "with equal images, environments and resources share a worker group, and so do the roles of one of the job's groups"
        )
    free = place_names([_HEAD], [_HEAD, *(group.name for group in found.values())])[0]
    return tuple(dataclasses.replace(group, name=free) if group.name == _HEAD else group for group in found.values())


def _added(one: WorkerGroup, other: WorkerGroup) -> WorkerGroup:
    least, most = one.least + other.least, one.most + other.most
    return dataclasses.replace(one, roles=(*one.roles, *other.roles), least=least, most=most)


def _group(job: ElasticJob, shape: Shape, roles: Sequence[Role], *, grace: int) -> WorkerGroup:
    role = joined(shape.place, roles, devices=_whole(shape.ask.get("GPU", 0)), grace=grace)
    whole = job.model_copy(update={"roles": (role,), "groups": ()})
    (plan,) = compile_plan(whole)
    # Certificates of the job are made by the ledger.
    plan = dataclasses.replace(in_the_image(plan, role), tls="")
    template = pod_template(whole, plan, role)
    limits = template["spec"]["containers"][0]["resources"].get("limits", {})
    for name in unlimited(roles):
        limits.pop(name, None)
    return WorkerGroup(
        name=shape.place,
        roles=shape.roles,
        each=len(roles),
        template=ray_pod(template, _WORKER, {}),
        ask=shape.ask,
        least=shape.least,
        most=shape.most,
    )


def _roles(job: ElasticJob, shape: Shape) -> Sequence[Role]:
    return [role for role in job.roles if role.name in shape.roles]


def ray_pod(template: Mapping[str, Any], name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod of a node as a pod of Ray: KubeRay gives the first container its command. `own` wins over what it has."""
    spec = {**template["spec"]}
    trainer, *others = spec["containers"]
    kept = {key: value for key, value in trainer.items() if key not in ("command", "args", "ports", "env")}
    variables = [one for one in trainer["env"] if one["name"] not in (*_OURS, *_names(own))]
    ray = {**kept, "name": name, **own, "env": [*variables, *own.get("env", ())]}
    return {**template, "spec": {**spec, "containers": [ray, *others]}}


def _names(own: Mapping[str, Any]) -> set[str]:
    return {str(one["name"]) for one in own.get("env", ())}
