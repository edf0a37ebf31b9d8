"""The number of instances of each role, which instances share a node, and whether all fit onto the machines. Pure.

Every rule yields problems instead of raising, so that one error names them all. A role whose own fields are wrong is None here;
rules about it are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rallypoint.job.errors import Problem, dotted, show
from rallypoint.job.quantity import quantity
from rallypoint.job.role import SIMPLE, Role

__all__ = ["Capacity", "Members", "counts", "fit", "group_problems", "members", "place_names", "solved"]


@dataclass(frozen=True, kw_only=True)
class Members:
    """One role as placement sees it.

    Attributes:
        total, per_group: instances of the job, and of one group.
        gpus: devices of one instance; None where the role names none.
        cpu: cores of one instance.
    """

    total: int
    per_group: int
    gpus: Fraction | None
    cpu: Fraction

    @property
    def groups(self) -> int:
        """Number of groups, each of which is on one node."""
        return self.total // self.per_group

    def devices(self, *, cores: bool) -> Fraction:
        """Return the devices of the role's instances in one group."""
        one = self.cpu if cores else self.gpus or Fraction(0)
        return self.per_group * one


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The machines: `cores` says that a device is a core."""

    nodes: int
    devices_per_node: int
    cores: bool = False


def solved(role: Role) -> tuple[Role, list[tuple[str, str]]]:
    """Return the role with its counts in their normal form, and problems as (field, text).

    An elastic role has `nodes` and `nproc_per_node`, a simple one `total` and `per_group`.
    """
    return _simple(role) if role.launch == SIMPLE else _elastic(role)


def _simple(role: Role) -> tuple[Role, list[tuple[str, str]]]:
    told = "has no effect with launch simple; set total and per_group"
    wrong = [(name, told) for name in ("nodes", "node_unit", "nproc_per_node", "process_group") if _given(role, name)]
    told = "has no effect with launch simple; set instance_resources"
    wrong += [(f"resources.{name}", told) for name in ("cpu", "memory", "gpus") if getattr(role.resources, name)]
    total, per_group = 1 if role.total is None else role.total, role.per_group or 1
    if total % per_group:
        wrong.append(("total", f"{total} is not allowed; expected a number divisible by per_group ({per_group})"))
    return role.model_copy(update={"total": total, "per_group": per_group}), wrong


def _elastic(role: Role) -> tuple[Role, list[tuple[str, str]]]:
    per_node = role.per_group or role.nproc_per_node
    if role.per_group and _given(role, "nproc_per_node") and role.nproc_per_node != per_node:
        told = f"{role.per_group} is not allowed; expected the value of nproc_per_node ({role.nproc_per_node}), or no value"
        return role, [("per_group", told)]
    update: dict[str, object] = {"per_group": None, "nproc_per_node": per_node}
    if role.total is not None and role.total % per_node:
        return role, [("total", f"{role.total} is not allowed; expected a number divisible by per_group ({per_node})")]
    if role.total:
        nodes = role.total // per_node
        if _given(role, "nodes") and (role.nodes.min, role.nodes.max) != (nodes, nodes):
            told = f"expected {role.nodes} nodes x {per_node} workers, or no value"
            return role, [("total", f"{role.total} is not allowed; {told}")]
        update |= {"nodes": type(role.nodes)(min=nodes, max=nodes), "total": None}
        if nodes % role.node_unit:
            told = f"expected a number of nodes ({nodes}) that is a multiple of node_unit ({role.node_unit})"
            return role, [("total", f"{role.total} is not allowed; {told}")]
    return role.model_copy(update=update), []


def _given(role: Role, name: str) -> bool:
    field = type(role).model_fields[name]
    return name in role.model_fields_set and getattr(role, name) != field.get_default(call_default_factory=True)


def counts(role: Role) -> tuple[int, int]:
    """Return the instances of a solved role (an elastic one with MIN nodes), and those of one group."""
    if role.launch == SIMPLE:
        return role.total or 0, role.per_group or 1
    return (role.nodes.min * role.nproc_per_node if role.total is None else role.total), role.nproc_per_node


def members(role: Role) -> Members:
    """Return a solved role as placement sees it; what one node of an elastic role asks for is shared by its workers."""
    total, per_group = counts(role)
    needs, node = role.instance_resources, role.resources
    gpus = needs.gpus
    if gpus is None and node.gpus:
        gpus = Fraction(node.gpus, per_group)
    cpu = quantity(needs.cpu) if needs.cpu else quantity(node.cpu) / per_group if node.cpu else Fraction(0)
    return Members(total=total, per_group=per_group, gpus=gpus, cpu=cpu)


# --- groups ----------------------------------------------------------------------------------------------------------------


def place_names(groups: Sequence[str], roles: Iterable[str]) -> tuple[str, ...]:
    """Return a name for each group, by its name in the document ("" for none), which no role and no other group has."""
    taken, found = set(roles), []
    for index, given in enumerate(groups):
        name = given or f"group-{index}"
        while name in taken:
            name = f"{name}-g"
        taken.add(name)
        found.append(name)
    return tuple(found)


def group_problems(groups: Sequence[Sequence[str]], roles: Mapping[str, Members | None]) -> Iterator[Problem]:
    """Yield what is wrong with groups of role names: too few roles, unknown ones, one in two groups, unequal numbers."""
    first: dict[str, int] = {}
    for index, names in enumerate(groups):
        path = dotted(("groups", index, "roles"))
        if len(set(names)) < 2:
            yield Problem(path=path, text=f"{show(list(names))} is not allowed; expected at least two different roles")
        for name in dict.fromkeys(names):
            if name not in roles:
                known = ", ".join(roles) or "none"
                yield Problem(path=path, text=f"role {name!r} is not defined; expected names of roles of the job ({known})")
            elif name in first:
                told = f"role {name!r} has already been assigned to groups[{first[name]}]; expected one group for each role"
                yield Problem(path=path, text=told)
            else:
                first[name] = index
        known_roles = {name: role for name in names if (role := roles.get(name)) is not None}
        yield from _unequal(path, known_roles)
        yield from _whole_devices(known_roles)


def _unequal(path: str, roles: Mapping[str, Members]) -> Iterator[Problem]:
    numbers = {name: role.groups for name, role in roles.items()}
    if len(set(numbers.values())) > 1:
        told = " and ".join(f"{name} ({number})" for name, number in numbers.items())
        yield Problem(
            path=path,
            text=f"roles {told} have different numbers of groups (total divided by per_group); expected the same "
            "number in each role",
        )


def _whole_devices(roles: Mapping[str, Members]) -> Iterator[Problem]:
    for name, role in roles.items():
        if role.gpus is not None and role.gpus >= 1:
            told = f"{role.gpus} is not allowed in a group; expected a fraction of one device, since its roles share devices"
            yield Problem(path=f"roles.{name}.instance_resources.gpus", text=told)
    shares = {name: role.gpus for name, role in roles.items() if role.gpus is not None}
    if sum(shares.values()) > 1 and all(share < 1 for share in shares.values()):
        told = " + ".join(f"{share} ({name})" for name, share in shares.items())
        yield Problem(path="groups", text=f"the GPU shares {told} exceed one GPU; expected a sum of at most 1")


# --- capacity --------------------------------------------------------------------------------------------------------------


def fit(groups: Sequence[Sequence[str]], roles: Mapping[str, Members], capacity: Capacity) -> Iterator[Problem]:
    """Yield what does not fit: a group onto one node, or all groups onto all nodes (a group never spans nodes)."""
    cores, most = capacity.cores, capacity.devices_per_node
    grouped = {name for names in groups for name in names}
    together = [tuple(names) for names in groups] + [(name,) for name in roles if name not in grouped]
    sizes: Counter[Fraction] = Counter()
    too_large = False
    unit = "cores" if cores else "devices"
    for names in together:
        size = sum((roles[name].devices(cores=cores) for name in names), Fraction(0))
        sizes[size] += min(roles[name].groups for name in names)
        if size > most and any(roles[name].total for name in names):
            too_large = True
            needs = " and ".join(f"{name} {_number(roles[name].devices(cores=cores))}" for name in names)
            told = f"a group needs {_number(size)} {unit} on one node ({needs}); expected at most {most}"
            yield Problem(path="cluster.devices_per_node", text=told)
    if too_large:
        return
    whole = sum(size * count for size, count in sizes.items())
    if whole > capacity.nodes * most:
        told = f"{capacity.nodes} x {most} {unit} are not enough; the roles need {_number(Fraction(whole))}"
        yield Problem(path="cluster.nodes", text=told)
    elif not _packs(sizes, capacity.nodes, most):
        told = f"{capacity.nodes} nodes of {most} {unit} cannot hold all groups, because a group never spans nodes"
        yield Problem(path="cluster.nodes", text=told)


def _number(value: Fraction) -> str:
    return f"{float(value):g}"


def _packs(sizes: Mapping[Fraction, int], nodes: int, most: int) -> bool:
    """Return whether groups fit onto equal nodes, largest first, each onto the fullest node that has room for it."""
    free: Counter[Fraction] = Counter({Fraction(most): nodes})
    for size in sorted((size for size in sizes if size), reverse=True):
        left = sizes[size]
        for level in sorted(level for level in free if level >= size):
            if not left:
                break
            per_node = level // size
            used = min(free[level], -(-left // per_node))
            placed = min(left, used * per_node)
            full, rest = divmod(placed, per_node)
            free[level] -= used
            free[level - per_node * size] += full
            if rest:
                free[level - rest * size] += 1
            left -= placed
        if left:
            return False
    return True
