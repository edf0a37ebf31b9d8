"""The roles of a job as its plan holds them, and the variables that say in each process which role it has."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

from rallypoint.wire import codec, env
from rallypoint.wire.node_range import MAX_NODES
from rallypoint.wire.plan import Plan

__all__ = ["DEVICES", "NODES", "UNITS", "RolePlan", "place_env", "role_plan", "role_plans", "roles_env", "write_share"]

#: Instances of the simple roles of a job, nodes of its elastic roles, and devices of all instances: a script can write its own
#: plan.
UNITS, NODES, DEVICES = MAX_NODES, MAX_NODES, 1 << 17

#: The name of a role or of a place.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?", re.ASCII)

#: A number of devices, whole or a fraction.
_SHARE = re.compile(r"[0-9]{1,6}(/[1-9][0-9]{0,5})?")


@dataclass(frozen=True, kw_only=True)
class RolePlan:
    """One role of a job with several.

    Attributes:
        name: of the role.
        elastic: it is one world of workers, and a unit of its own; else each instance is a unit.
        total: instances in the job; of an elastic role its workers.
        per_group: instances in one group, which is on one node.
        place: name of the group of roles that it shares its nodes with; "" where it has nodes of its own.
        driver: the job waits for it.
        on_failure: where a failure begins to climb: `instance`, `role`, `job` or `none`.
        devices: of one instance, as a fraction (`1/2`); "" is none.
        grace: seconds from a graceful end to one by force.
        plan: what it runs, as JSON of a `Plan`; that of an elastic role is a job of its own, named `<job>-<role>`.
    """

    limits: ClassVar = {"total": (0, 999_999), "per_group": (1, 999_999), "devices": (0, 13)}

    name: str
    elastic: bool
    total: int
    per_group: int = 1
    place: str = ""
    driver: bool = True
    on_failure: str = "instance"
    devices: str = ""
    grace: float = 15.0
    plan: dict[str, Any] = field(default_factory=dict, hash=False)

    def read(self) -> Plan:
        """Return what it runs."""
        return codec.from_json(Plan, self.plan)

    @property
    def share(self) -> Fraction:
        """The devices of one instance as a number."""
        return Fraction(self.devices) if self.devices else Fraction(0)

    @property
    def units(self) -> int:
        """How many parts of it are started and ended one by one: an elastic role is one."""
        return int(self.total > 0) if self.elastic else self.total

    @property
    def nodes(self) -> int:
        """Most nodes of an elastic role, by its size and by its own plan, which is not read here."""
        most = self.plan.get("max_nodes")
        return max(self.groups, most if isinstance(most, int) else 0)

    @property
    def groups(self) -> int:
        """How many groups its instances form."""
        return -(-self.total // self.per_group)


def role_plans(plan: Plan) -> tuple[RolePlan, ...]:
    """Return the roles of a job; none of a job that is one elastic role."""
    return _checked(tuple(_read(item) for item in plan.roles))


def _checked(roles: tuple[RolePlan, ...]) -> tuple[RolePlan, ...]:
    units = sum(role.units for role in roles)
    if units > UNITS:
        raise codec.WireError("roles", f"{units} instances", f"at most {UNITS} instances in all simple roles together")
    nodes = sum(role.nodes for role in roles if role.elastic)
    if nodes > NODES:
        raise codec.WireError("roles", f"{nodes} nodes", f"at most {NODES} nodes in all elastic roles together")
    devices = sum(role.total * math.ceil(role.share) for role in roles)
    if devices > DEVICES:
        raise codec.WireError("roles", f"{devices} devices", f"at most {DEVICES} devices in all roles together")
    return roles


def write_share(share: Fraction) -> str:
    """Return the devices of one instance as the text that `RolePlan.devices` holds."""
    return str(share.limit_denominator(999_999))


def _read(item: Any) -> RolePlan:
    role = codec.from_json(RolePlan, item)
    for field_name, name in (("name", role.name), ("place", role.place)):
        # A script can write its own plan, and these are parts of paths.
        if not _NAME.fullmatch(name) and (name or field_name == "name"):
            raise codec.WireError(field_name, name, "letters, digits, '-', '_' and '.'")
    if role.devices and not _SHARE.fullmatch(role.devices):
        raise codec.WireError("devices", role.devices, "a number of devices such as 2 or 1/2")
    return role


def role_plan(plan: Plan, name: str) -> RolePlan:
    """Return one role of a job; raises `KeyError`."""
    for item in plan.roles:
        if item.get("name") == name:
            return _checked((_read(item),))[0]
    raise KeyError(name)


def roles_env(plan: Plan, role: RolePlan) -> dict[str, str]:
    """Return what every process of a role knows of the job, wherever it runs."""
    told = {
        one.name: {"launch": "elastic" if one.elastic else "simple", "total": one.total, "driver": one.driver}
        for one in role_plans(plan)
    }
    found = {env.JOB_NAME: plan.name, env.ROLE: role.name, env.ROLES: json.dumps(told), "JOB": plan.name, "ROLE": role.name}
    return {**found, env.ROLES_PICKLE: "1"} if plan.rpc_pickle else found


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Numbers of one instance in its role."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    group: int
    groups: int


def place_env(role: RolePlan, index: int, *, attempt: int, reset: int, incarnation: int) -> Mapping[str, str]:
    """Return what one life of an instance of a simple role knows of its place."""
    place = _Place(
        rank=index,
        size=role.total,
        local_rank=index % role.per_group,
        local_size=role.per_group,
        group=index // role.per_group,
        groups=role.groups,
    )
    numbers = dataclasses.asdict(place)
    names = {
        "rank": ("RANK", "ROLE_RANK", env.ROLE_RANK),
        "size": ("WORLD_SIZE", "ROLE_WORLD_SIZE", env.ROLE_SIZE),
        "local_rank": ("LOCAL_RANK", env.LOCAL_RANK),
        "local_size": ("LOCAL_WORLD_SIZE",),
        "group": ("GROUP_RANK", "NODE_RANK", env.GROUP),
        "groups": ("GROUP_WORLD_SIZE",),
    }
    life = {env.ATTEMPT: attempt, env.RESET: reset, env.INCARNATION: incarnation}
    return {
        **{name: str(numbers[key]) for key, every in names.items() for name in every},
        **{name: str(number) for name, number in life.items()},
        "ROLE_NAME": role.name,
        "NAME": f"{role.name}-{index}",
    }
