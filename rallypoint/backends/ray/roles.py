"""What a job with several roles asks of a Ray cluster: one placement group for the MIN nodes of all its roles. Pure.

A node of an elastic role has a bundle. So has a group of instances of simple roles, whose actor runs them all. Roles that share
their nodes (`groups`) have one bundle for each group, which is exactly the sum of what its actors need.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rallypoint.backends.contract import Blueprint, SubmitError, role_job
from rallypoint.backends.local.devices import assigned
from rallypoint.backends.ray.placement import (
    CREATE_TIMEOUT,
    FILE,
    Bundle,
    Placement,
    Spot,
    actor_name,
    asked,
    check,
    group_name,
    ignored,
    master_bundles,
    objects_of_base,
    objects_of_nodes,
)
from rallypoint.backends.roles import orphan_notes, refuse_node_groups
from rallypoint.job import ElasticJob, Role
from rallypoint.job.compile_roles import compile_roles, one_role
from rallypoint.job.profiles import warnings_of
from rallypoint.wire import codec
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.role_plans import RolePlan, role_plans, roles_env

__all__ = ["Shape", "child", "draw_roles", "host_devices", "place_of", "shapes_of"]

#: Ray counts devices in ten-thousandths.
_PARTS = 10_000


def draw_roles(
    job: ElasticJob,
    *,
    namespace: str,
    runtime_env: Mapping[str, Any],
    orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE,
) -> Blueprint:
    """Return the blueprint of a job with several roles; raises `SubmitError` for one that cannot run on Ray."""
    plan = compile_roles(job, orphan_policy=orphan_policy)
    check(plan)
    roles = role_plans(plan)
    _check(job, roles)
    placement = _placement(job, roles, runtime_env)
    return Blueprint(
        job=job,
        plan=plan,
        objects=tuple(_objects(job, plan, roles, placement, namespace)),
        notes=tuple(dict.fromkeys((*_notes(job), *orphan_notes(plan)))),
        warnings=warnings_of(plan),
        attached={FILE: codec.dumps(placement)},
    )


def child(
    job: ElasticJob, plan: Plan, role: RolePlan, placement: Placement, *, base: str
) -> tuple[ElasticJob, Plan, Placement]:
    """Return an elastic role as a job of its own; its MIN nodes have their bundles in the group of the job with uid `base`."""
    spot, own = placement.elastic[role.name], role.read()
    spec = _spec(job, role.name)
    its = dataclasses.replace(
        placement,
        bundle=spot.ask,
        nodes=own.min_nodes,
        exclude=tuple(spec.host_ignore_list),
        role=role.name,
        first=spot.first,
        base=base,
        elastic={},
        hosts={},
    )
    own = dataclasses.replace(own, env={**own.env, **roles_env(plan, role)})
    return one_role(job, role.name, job_name=role_job(job.name, role.name)), own, its


def place_of(role: RolePlan) -> str:
    """Return the name of the place of a simple role: of its group, or its own."""
    return role.place or role.name


def host_devices(roles: Sequence[RolePlan], place: str, group: int) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the devices of the instances of one host, counted from the first that the host has."""
    every = assigned(roles)
    keys = [
        (role.name, index)
        for role in roles
        if not role.elastic and place_of(role) == place
        for index in range(group * role.per_group, min((group + 1) * role.per_group, role.total))
    ]
    first = min((number for key in keys for number in every.get(key, ())), default=0)
    return {key: tuple(number - first for number in every[key]) for key in keys if key in every}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Equal machines of a Ray cluster that runs nothing but one job: each holds one bundle.

    Attributes:
        place: name of the role, or of the group of roles, that these machines run; `roles` are the names of its roles.
        ask: resources of one bundle.
        least, most: number of machines without and with the nodes above MIN of an elastic role.
    """

    place: str
    roles: tuple[str, ...]
    ask: Mapping[str, float]
    least: int
    most: int


def shapes_of(plan: Plan, placement: Placement) -> Iterator[Shape]:
    """Yield the machines on which a job fits exactly. The elastic roles of a group have a fixed number of nodes."""
    if not plan.roles:
        name = placement.role
        yield Shape(place=name, roles=(name,), ask=placement.bundle, least=plan.min_nodes, most=plan.max_nodes)
    for place, members in _places(role_plans(plan)).items():
        spot = placement.hosts.get(place) or placement.elastic[members[0].name]
        yield Shape(
            place=place,
            roles=tuple(role.name for role in members),
            ask=placement.bundles[spot.first].ask,
            least=max(role.groups for role in members),
            most=max(role.nodes if role.elastic else role.groups for role in members),
        )


# --- requested resources ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Actors:
    """Equal actors of one role or place: so many, each of which asks for this."""

    count: int
    ask: Mapping[str, float]
    exclude: tuple[str, ...]


def _placement(job: ElasticJob, roles: Sequence[RolePlan], runtime_env: Mapping[str, Any]) -> Placement:
    bundles: list[Bundle] = []
    elastic: dict[str, Spot] = {}
    hosts: dict[str, Spot] = {}
    for place, members in _places(roles).items():
        nodes = {role.name: _nodes(job, role) for role in members if role.elastic}
        simple = [role for role in members if not role.elastic]
        host = _host(job, place, simple, roles) if simple else None
        first, every = len(bundles), [*nodes.values(), *([host] if host else [])]
        groups = range(max(actors.count for actors in every))
        bundles += [_sum([actors for actors in every if index < actors.count]) for index in groups]
        elastic |= {name: Spot(first=first, ask=actors.ask) for name, actors in nodes.items()}
        if host:
            hosts[place] = Spot(first=first, ask=host.ask)
    return Placement(
        bundle={},
        nodes=0,
        create_timeout=job.master.create_timeout or CREATE_TIMEOUT,
        runtime_env=runtime_env,
        bundles=(*bundles, *master_bundles(job)),
        elastic=elastic,
        hosts=hosts,
    )


def _places(roles: Sequence[RolePlan]) -> dict[str, list[RolePlan]]:
    """Return the roles that have an instance by what they share: a group, or nothing."""
    found: dict[str, list[RolePlan]] = {}
    for role in roles:
        if role.total:
            found.setdefault(place_of(role), []).append(role)
    return found


def _nodes(job: ElasticJob, role: RolePlan) -> _Actors:
    spec, plan = _spec(job, role.name), role.read()
    gpus = None if spec.resources.gpus or not role.share else _gpus([role.share] * role.per_group)
    ask = asked(spec, plan.nproc_per_node, isolation=job.worker_isolation, gpus=gpus)
    return _Actors(plan.min_nodes, ask, tuple(spec.host_ignore_list))


def _host(job: ElasticJob, place: str, simple: Sequence[RolePlan], roles: Sequence[RolePlan]) -> _Actors:
    """Return the actors that run the instances of a place, each those of one group."""
    used = {number for numbers in host_devices(roles, place, 0).values() for number in numbers}
    shares = [role.share for role in simple for _ in range(role.per_group)]
    whole: dict[str, float] = {}
    for role in simple:
        one = asked(_spec(job, role.name), role.per_group, isolation=job.worker_isolation, gpus=float(role.share > 0))
        _add(whole, {name: amount for name, amount in one.items() if name != "GPU"})
    if used:
        whole["GPU"] = _floor(sum(shares)) if len(used) == 1 else float(len(used))
    excluded = dict.fromkeys(name for role in simple for name in _spec(job, role.name).host_ignore_list)
    return _Actors(max(role.groups for role in simple), whole, tuple(excluded))


def _gpus(shares: Sequence[Fraction]) -> float:
    """Return the devices on which workers fit that need these shares: Ray divides one device, but not several."""
    total, one = sum(shares), shares[0]
    if one >= 1:
        return float(total)
    return _floor(total) if total <= 1 else float(math.ceil(len(shares) / (1 // one)))


def _floor(share: Fraction | int) -> float:
    """Return a share that Ray adds up to no more than one device."""
    return math.floor(share * _PARTS) / _PARTS


def _sum(every: Sequence[_Actors]) -> Bundle:
    whole: dict[str, float] = {}
    for actors in every:
        _add(whole, actors.ask)
    return Bundle(ask=whole, exclude=tuple(dict.fromkeys(name for actors in every for name in actors.exclude)))


def _add(whole: dict[str, float], more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        whole[name] = whole.get(name, 0.0) + amount


def _spec(job: ElasticJob, name: str) -> Role:
    return next(role for role in job.roles if role.name == name)


# --- what cannot run, and what is created ----------------------------------------------------------------------------------


def _check(job: ElasticJob, roles: Sequence[RolePlan]) -> None:
    refuse_node_groups(job, backend="ray")
    every = assigned(roles)
    for place, members in _places(roles).items():
        elastic = [role for role in members if role.elastic]
        devices = {
            number for role in members for index in range(role.per_group) for number in every.get((role.name, index), ())
        }
        if elastic and len(members) > 1 and len(devices) > 1:
            raise SubmitError(
                f"groups: the roles of group {place} use {len(devices)} devices on each node; with backend ray, a group that "
                f"contains an elastic role ({elastic[0].name}) may use at most 1 device per node; set per_group to 1"
            )


def _objects(
    job: ElasticJob, plan: Plan, roles: Sequence[RolePlan], placement: Placement, namespace: str
) -> Iterator[dict[str, Any]]:
    yield {"kind": "Ledger", "namespace": namespace, "job": plan.name}
    yield objects_of_base(placement, namespace)
    for place, members in _places(roles).items():
        for role in (role for role in members if role.elastic):
            _, own, its = child(job, plan, role, placement, base="UID")
            yield from objects_of_nodes(own, its, namespace, uid=f"UID-{role.name}")
        if place in placement.hosts:
            for group in range(max(role.groups for role in members if not role.elastic)):
                yield {
                    "kind": "Actor",
                    "name": actor_name("UID", place, attempt=0, node=group, incarnation=1),
                    "namespace": namespace,
                    "lifetime": "detached",
                    "max_restarts": 0,
                    "placement_group": group_name("UID"),
                    "resources": dict(placement.hosts[place].ask),
                    "runtime_env": dict(placement.runtime_env),
                }


def _notes(job: ElasticJob) -> Iterator[str]:
    for spec in job.roles:
        for name in ignored(job, spec):
            yield f"{name if name.startswith('master.') else f'roles.{spec.name}.{name}'}: ignored by the ray backend"
