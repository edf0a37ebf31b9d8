"""Which instances of simple roles share a pod, and which devices of the pod each of them uses. Pure.

The instances of one group run in one pod, each in a container of its own: group I of every role that is collocated, or group
I of one role with `per_group` above 1. Every other instance has a pod of its own. An elastic role has one pod per node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from rallypoint.job import ElasticJob, Role
from rallypoint.job.placement import counts
from rallypoint.job.role import SIMPLE

__all__ = ["Group", "Instance", "elastic_roles", "groups", "places", "simple_roles"]


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
        devices: devices of the pod.
        shared: whether its containers share the devices.
    """

    place: str
    number: int
    instances: tuple[Instance, ...]
    devices: int = 0

    @property
    def shared(self) -> bool:
        """Whether several containers use the devices of the pod."""
        return self.devices > 0 and len(self.instances) > 1


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
    for index, group in enumerate(job.groups):
        members = tuple(simple[name] for name in group.roles if name in simple)
        if members:
            found[_free(group.name or f"group-{index}", simple)] = members
    return found


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name for a group of roles that no role has."""
    known = set(taken)
    while name in known:
        name = f"{name}-g"
    return name


def groups(job: ElasticJob) -> Iterator[Group]:
    """Yield the pods of all simple roles, in the order of their creation."""
    for place, roles in places(job).items():
        total, per_group = counts(roles[0])
        for number in range(total // per_group):
            yield _group(place, number, roles)


def _group(place: str, number: int, roles: Iterable[Role]) -> Group:
    named: list[tuple[Role, int]] = []
    for role in roles:
        _, per_group = counts(role)
        named += [(role, index) for index in range(number * per_group, (number + 1) * per_group)]
    used = list(_devices([role.instance_resources.gpus or Fraction(0) for role, _ in named]))
    instances = tuple(
        Instance(role=role.name, index=index, devices=devices) for (role, index), devices in zip(named, used, strict=True)
    )
    return Group(place=place, number=number, instances=instances, devices=len({one for devices in used for one in devices}))


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
