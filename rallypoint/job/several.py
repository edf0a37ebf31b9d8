"""Complete a job with several roles: counts, shares of devices, and consistency between roles. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from rallypoint.job.cluster import CPU, Cluster, Group
from rallypoint.job.errors import Problem, Step, dotted
from rallypoint.job.placement import Capacity, Members, counts, fit, group_problems, members, solved
from rallypoint.job.profiles import Place
from rallypoint.job.quantity import quantity, write_bytes
from rallypoint.job.role import ELASTIC, SIMPLE, InstanceResources, Resources, Role
from rallypoint.wire.plan import ROLES
from rallypoint.wire.role_plans import DEVICES, NODES, UNITS

if TYPE_CHECKING:
    from rallypoint.job.fields import JobFields

__all__ = ["problems_beside", "settle"]

_DISK = "ephemeral-storage"


def settle(job: JobFields, place: Place) -> tuple[JobFields, list[Problem]]:
    """Return the job with every role in its normal form, and all problems of its roles together."""
    roles = {role.name: role for role in job.roles}
    found, wrong = _settled(roles, job.groups, job.cluster, lambda name, *rest: _path(job.roles, place, name, rest))
    whole = len(found) == len(roles)
    if whole and not any(role.driver is not False and counts(role)[0] for role in found.values()):
        wrong.append(_nothing_to_wait_for(found))
    if wrong:
        return job, wrong
    return job.model_copy(update={"roles": tuple(found.values())}), []


def problems_beside(document: Mapping[str, Any], place: Place) -> list[Problem]:
    """Return the problems between roles of a document in normal form of which single fields are wrong.

    Roles that cannot be read take no part, so nothing follows from a value that is itself an error.
    """
    listed = document.get("roles")
    if not isinstance(listed, (list, tuple)):
        return []
    read = {str(role.get("name", index)): _read(Role, role) for index, role in enumerate(listed) if isinstance(role, Mapping)}
    cluster = _read(Cluster, document.get("cluster", {}))
    given = document.get("groups", ())
    groups = [_read(Group, group) for group in given] if isinstance(given, (list, tuple)) else []
    names = list(read)

    def path(name: str, *rest: Step) -> str:
        return dotted(place(("roles", names.index(name), *rest)))

    whole = [group for group in groups if group is not None]
    if len(whole) != len(groups) or len(read) != len(listed):
        return []
    _, wrong = _settled(read, whole, cluster, path)
    return wrong


def _read(model: type[BaseModel], value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _path(roles: Iterable[Role], place: Place, name: str, rest: tuple[Step, ...]) -> str:
    index = next(index for index, role in enumerate(roles) if role.name == name)
    return dotted(place(("roles", index, *rest)))


def _nothing_to_wait_for(roles: Mapping[str, Role]) -> Problem:
    if not any(counts(role)[0] for role in roles.values()):
        return Problem(path="roles", text="no role has an instance; expected at least one role with a total of 1 or more")
    return Problem(
        path="roles",
        text="no driver role has an instance; expected driver: true in at least one role with a total of 1 or more, because "
        "the job ends when all its driver roles have ended",
    )


def _settled(
    roles: Mapping[str, Role | None], groups: Iterable[Group], cluster: Cluster | None, path: Callable[..., str]
) -> tuple[dict[str, Role], list[Problem]]:
    wrong: list[Problem] = []
    named = [group.roles for group in groups]
    shares = {name: Fraction(1, len(set(names))) for names in named for name in names}
    found: dict[str, Role] = {}
    known: dict[str, Members | None] = {}
    for name, given in roles.items():
        known[name] = None
        if given is None:
            continue
        role, told = solved(given)
        told += _function_only(role)
        wrong += [Problem(path=path(name, *field.split(".")), text=text) for field, text in told]
        if not told:
            found[name] = _sharing(role, shares.get(name))
            known[name] = members(found[name])
    wrong += group_problems(named, known)
    wrong += _above_limits(found)
    if cluster is not None and not wrong and len(found) == len(roles):
        wrong += _too_many({name: role for name, role in known.items() if role is not None}, named, cluster)
        found = {name: _cores(role) for name, role in found.items()} if cluster.device_type == CPU else found
    for name in found.keys() - shares.keys():
        found[name], told = _per_node(found[name])
        wrong += [Problem(path=path(name, *field.split(".")), text=text) for field, text in told]
    return found, wrong


def _above_limits(roles: Mapping[str, Role]) -> Iterator[Problem]:
    """Yield what is more than any plan may hold (wire/role_plans.py)."""
    if len(roles) > ROLES:
        yield Problem(path="roles", text=f"{len(roles)} roles are not allowed; expected at most {ROLES}")
    simple = {name: counts(role)[0] for name, role in roles.items() if role.launch == SIMPLE}
    if sum(simple.values()) > UNITS:
        told = f"the simple roles have {sum(simple.values())} instances in total; at most {UNITS} are allowed"
        yield Problem(path="roles", text=told)
    nodes = sum(role.nodes.max for role in roles.values() if role.launch == ELASTIC)
    if nodes > NODES:
        yield Problem(path="roles", text=f"the elastic roles have {nodes} nodes in total; at most {NODES} are allowed")
    shares = {name: roles[name].instance_resources.gpus or Fraction(0) for name in simple}
    devices = sum(total * math.ceil(shares[name]) for name, total in simple.items())
    if devices > DEVICES:
        yield Problem(path="roles", text=f"the simple roles need {devices} devices in total; at most {DEVICES} are allowed")


def _function_only(role: Role) -> list[tuple[str, str]]:
    if role.process_group is None or role.entrypoint.function or role.launch != ELASTIC:
        return []
    return [("process_group", "has no effect on a script or command; expected an entrypoint module:function")]


def _sharing(role: Role, share: Fraction | None) -> Role:
    """Return a role of a group with the share of a device that it has when it names none."""
    if share is None or role.instance_resources.gpus is not None:
        return role
    return role.model_copy(update={"instance_resources": role.instance_resources.model_copy(update={"gpus": share})})


def _too_many(roles: Mapping[str, Members], groups: list[tuple[str, ...]], cluster: Cluster) -> Iterator[Problem]:
    if cluster.nodes is None or cluster.devices_per_node is None:
        return
    cores = cluster.device_type == CPU
    if cores:
        roles = {name: _in_cores(role) for name, role in roles.items()}
    capacity = Capacity(nodes=cluster.nodes, devices_per_node=cluster.devices_per_node, cores=cores)
    yield from fit(groups, roles, capacity)


def _in_cores(role: Members) -> Members:
    cpu = max(role.cpu, role.gpus or Fraction(0))
    return Members(total=role.total, per_group=role.per_group, gpus=role.gpus, cpu=cpu)


def _cores(role: Role) -> Role:
    """Return a role of a cluster without accelerators: each of its devices is a core."""
    needs = role.instance_resources
    if needs.gpus is None:
        return role
    cores = max(needs.gpus, quantity(needs.cpu) if needs.cpu else Fraction(0))
    text = str(cores) if cores.denominator == 1 else f"{int(cores * 1000)}m"
    update = {"gpus": None, "cpu": text if cores else ""}
    return role.model_copy(update={"instance_resources": needs.model_copy(update=update)})


def _per_node(role: Role) -> tuple[Role, list[tuple[str, str]]]:
    """Return an elastic role whose workers' needs are those of its nodes, where a node can ask for them."""
    needs, node = role.instance_resources, role.resources
    whole = needs.gpus is None or needs.gpus.denominator == 1
    if role.launch != ELASTIC or needs == InstanceResources() or not whole or needs.user_defined:
        return role, []
    workers = role.nproc_per_node
    asked: dict[str, Any] = {}
    if needs.cpu:
        cores = quantity(needs.cpu) * workers
        asked["cpu"] = str(cores) if cores.denominator == 1 else f"{-(-cores * 1000 // 1)}m"
    if needs.memory:
        asked["memory"] = write_bytes(quantity(needs.memory) * workers)
    if needs.gpus:
        asked["gpus"] = int(needs.gpus) * workers
    told = "conflicts with resources.{0}, which is that of a whole node; set one of them"
    wrong = [(f"instance_resources.{name}", told.format(name)) for name in asked if getattr(node, name)]
    if needs.disk:
        asked["extended"] = {**node.extended, _DISK: write_bytes(quantity(needs.disk) * workers)}
    resources = Resources.model_construct(_fields_set=node.model_fields_set | asked.keys(), **{**dict(node), **asked})
    return role.model_copy(update={"resources": resources, "instance_resources": InstanceResources()}), wrong
