"""Which instances of simple roles share a pod, and which devices of the pod each of them uses. Pure.

The instances of one group run in one pod, each in a container of its own: group I of every role that is collocated, or group
I of one role with `per_group` above 1. Every other instance has a pod of its own. An elastic role has one pod per node, which
runs on the machine of the other pods of its group and shares their devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rallypoint.job import ElasticJob, Role
from rallypoint.job.placement import counts, place_names
from rallypoint.job.role import SIMPLE

__all__ = ["Group", "Instance", "Shared", "elastic_roles", "group_of", "groups", "places", "shared_places", "simple_roles"]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance of a simple role: `index` counts from 0 within the role.

    Attributes:
        devices: indexes of the devices of its pod that it uses.
    """

    role: str
    index: int
    devices: tuple[int, ...] = ()

    @property
    def container(self) -> str:
        """Name of its container."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The instances of one pod.

    Attributes:
        place: name of the group of roles, or of the role that has its own pods.
        number: of the pod among those of its place, from 0.
        devices: devices of the group.
        shared: whether its containers share the devices.
        beside: an elastic role is in the group, too: its node is another pod.
    """

    place: str
    number: int
    instances: tuple[Instance, ...]
    devices: int = 0
    beside: bool = False

    @property
    def shared(self) -> bool:
        """Whether several containers use the devices of the pod."""
        return self.devices > 0 and (len(self.instances) > 1 or self.beside)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A group of roles of which one at least is elastic.

    Attributes:
        place: its name.
        number: how many groups of pods there are.
        devices: of each; `workers` are those of the workers of one node, by elastic role.
    """

    place: str
    number: int
    devices: int
    workers: Mapping[str, tuple[int, ...]]


def elastic_roles(job: ElasticJob) -> tuple[Role, ...]:
    """Return the elastic roles that have a node."""
    return tuple(role for role in job.roles if role.launch != SIMPLE and role.total != 0)


def simple_roles(job: ElasticJob) -> tuple[Role, ...]:
    """Return the simple roles that have an instance."""
    return tuple(role for role in job.roles if role.launch == SIMPLE and counts(role)[0])


def places(job: ElasticJob) -> dict[str, tuple[Role, ...]]:
    """Return the simple roles by the place whose pods they share, in the job's order; a role may have a place for itself."""
    simple = {role.name: role for role in simple_roles(job)}
    taken = {name for group in job.groups for name in group.roles}
    found: dict[str, tuple[Role, ...]] = {name: (role,) for name, role in simple.items() if name not in taken}
    for place, group in zip(_place_names(job), job.groups, strict=True):
        members = tuple(simple[name] for name in group.roles if name in simple)
        if members:
            found[place] = members
    return found


def shared_places(job: ElasticJob) -> Iterator[Shared]:
    """Yield the groups of roles with an elastic role."""
    for index, place in enumerate(_place_names(job)):
        roles = _grouped(job, index)
        elastic = [role for role in roles if role.launch != SIMPLE]
        if not elastic:
            continue
        total, per_group = counts(roles[0])
        used = _used(roles, 0)
        workers = {
            role.name: tuple(dict.fromkeys(n for number in range(counts(role)[1]) for n in used[role.name, number]))
            for role in elastic
        }
        devices = len({one for devices in used.values() for one in devices})
        yield Shared(place=place, number=total // per_group, devices=devices, workers=workers)


def _grouped(job: ElasticJob, index: int) -> tuple[Role, ...]:
    """Return the roles of a group that have an instance."""
    return tuple(role for name in job.groups[index].roles for role in job.roles if role.name == name and counts(role)[0])


def _beside(job: ElasticJob, role: str) -> tuple[Role, ...]:
    """Return all roles of the group of a role, where one of them is elastic; else none."""
    index = next((index for index, group in enumerate(job.groups) if role in group.roles), None)
    roles = () if index is None else _grouped(job, index)
    return roles if any(one.launch != SIMPLE for one in roles) else ()


def _place_names(job: ElasticJob) -> tuple[str, ...]:
    return place_names([group.name for group in job.groups], [role.name for role in job.roles])


def groups(job: ElasticJob) -> Iterator[Group]:
    """Yield the pods of all simple roles, in the order of their creation."""
    for place, roles in places(job).items():
        total, per_group = counts(roles[0])
        for number in range(total // per_group):
            yield _group(place, number, roles, _beside(job, roles[0].name))


def group_of(job: ElasticJob, role: str, index: int) -> Group | None:
    """Return the pod of an instance of a simple role; None if the job has no such instance."""
    for place, roles in places(job).items():
        for total, per_group in (counts(one) for one in roles if one.name == role):
            if 0 <= index < total:
                return _group(place, index // per_group, roles, _beside(job, roles[0].name))
    return None


def _group(place: str, number: int, roles: Sequence[Role], beside: Sequence[Role]) -> Group:
    used = _used(beside or roles, number)
    names = {role.name: at for at, role in enumerate(roles)}
    named = sorted((names[name], index, name) for name, index in used if name in names)
    instances = tuple(Instance(role=name, index=index, devices=used[name, index]) for _, index, name in named)
    devices = len({one for devices in used.values() for one in devices})
    return Group(place=place, number=number, instances=instances, devices=devices, beside=bool(beside))


def _used(roles: Sequence[Role], number: int) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the devices of each instance of one group, by role and index.

    Instance K of each role comes before instance K + 1 of any, as on the local backend: instances with the same place share.
    """
    named = [
        (index - number * per_group, at, role, index)
        for at, role in enumerate(roles)
        for per_group in (counts(role)[1],)
        for index in range(number * per_group, (number + 1) * per_group)
    ]
    named.sort(key=lambda one: one[:2])
    used = _devices([role.instance_resources.gpus or Fraction(0) for _, _, role, _ in named])
    return {(role.name, index): devices for (_, _, role, index), devices in zip(named, used, strict=True)}


def _devices(shares: Iterable[Fraction]) -> Iterator[tuple[int, ...]]:
    """Yield the devices of each share: whole devices for itself, or the first device on which a fraction has room."""
    free: list[Fraction] = []
    searched: dict[Fraction, int] = {}
    for share in shares:
        if share.denominator == 1:
            first = len(free)
            free += [Fraction(0)] * math.floor(share)
            yield tuple(range(first, len(free)))
            continue
        # Room only shrinks: the search goes on where the last one for an equal share ended.
        at = next((index for index in range(searched.get(share, 0), len(free)) if free[index] >= share), len(free))
        if at == len(free):
            free.append(Fraction(1))
        free[at] -= share
        searched[share] = at
        yield (at,)
