"""The roles that share the pods of one worker group of a Ray cluster, as a single role. Pure.

All processes of such a pod run in Ray's container, so the roles must agree about it. Resources are those of all roles together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from rallypoint.backends.kubernetes.manifests.checks.place import Place, Wrong
from rallypoint.backends.kubernetes.manifests.resources import device_resource
from rallypoint.backends.kubernetes.manifests.volumes import shm_size
from rallypoint.job import Role
from rallypoint.job.placement import counts, members
from rallypoint.job.quantity import quantity, write_bytes
from rallypoint.job.role import ELASTIC, SIMPLE, InstanceResources, Resources

__all__ = ["disagreements", "joined", "unlimited"]

#: Fields of a role of which a pod has one value.
_SINGLE = ("image", "image_pull_policy", "pod_template", "priority_class", "scheduler_name", "service_account")

#: Fields that are mappings: roles must agree about each key.
_MAPS = ("affinity", "annotations", "labels", "node_selector", "pod_security_context", "security_context")

#: Fields that are lists, by the key that names an item: roles must agree about items of one name.
_NAMED = {"init_containers": "name", "pod_env": "name", "sidecars": "name", "volume_mounts": "mountPath", "volumes": "name"}

#: Lists of which a pod has the items of all roles.
_LISTS = ("env_from", "host_ignore_list", "image_pull_secrets", "tolerations")

_DISK = "ephemeral-storage"


def disagreements(roles: Sequence[Role]) -> Iterator[Wrong]:
    """Yield each value of a role that contradicts another role of the same pods."""
    for field in (*_SINGLE, *_MAPS, *_NAMED):
        yield from _differences(field, [(role.name, dict(_items(field, role))) for role in roles])
    devices = [(role.name, {"": device_resource(role)}) for role in roles if members(role).gpus]
    yield from _differences("resources.gpu_resource", devices)


def _differences(field: str, roles: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Wrong]:
    first: dict[str, tuple[str, Any]] = {}
    for name, items in roles:
        for key, value in items.items():
            owner, known = first.setdefault(key, (name, value))
            if value == known:
                continue
            place = Place(path=f"roles.{name}.{field}")
            what = f"{field}.{key}" if field in _MAPS else f"{field} {key!r}" if key else field
            allowed = f"the same as {what} of role {owner}, with which it shares pods"
            if field in _NAMED:
                yield place.wrong(f"{key!r} is not allowed; expected {allowed}")
            else:
                yield place.at(*filter(None, [key])).refused(value, allowed)


def _items(field: str, role: Role) -> Iterator[tuple[str, Any]]:
    """Yield the values of a field of a role that must be equal in all roles of a pod."""
    value = getattr(role, field)
    if field in _SINGLE:
        yield from [("", value)] if value else []
    elif field in _MAPS:
        yield from value.items()
    elif field in _NAMED:
        yield from ((str(item.get(_NAMED[field])), item) for item in value)
    else:
        yield from ((json.dumps(item, sort_keys=True), item) for item in value)


def joined(name: str, roles: Sequence[Role], *, devices: int, grace: int) -> Role:
    """Return the role `name` whose nodes are the pods that `roles` share.

    Args:
        devices: that one pod needs. Ray divides them.
        grace: seconds between SIGTERM and SIGKILL.
    """
    first = roles[0]
    fields = {field: _joined(field, roles) for field in (*_SINGLE, *_MAPS, *_NAMED, *_LISTS)}
    shared = {
        # The job inside the cluster sets all variables again, each for its own role.
        "env": {key: value for key, value in first.env.items() if all(role.env.get(key) == value for role in roles)},
        "checkpoint_dir": first.checkpoint_dir if len({role.checkpoint_dir for role in roles}) == 1 else "",
    }
    alone = {"launch": ELASTIC, "total": None, "per_group": None, "workdir": "", "setup_commands": ()}
    own = {"name": name, "instance_resources": InstanceResources(), "termination_grace_period": float(grace)}
    needs = {"resources": _resources(roles, devices)}
    return first.model_copy(update={**fields, **shared, **alone, **own, **needs})


def _joined(field: str, roles: Sequence[Role]) -> Any:
    found: dict[str, Any] = {}
    for role in roles:
        found |= {key: value for key, value in _items(field, role) if key not in found}
    if field in _SINGLE:
        return found.get("", getattr(roles[0], field))
    return found if field in _MAPS else tuple(found.values())


def unlimited(roles: Sequence[Role]) -> tuple[str, ...]:
    """Return the resources of which a pod has no limit, because one of its roles has none, and another has."""
    limits = {field: [_limit(role, field) for role in roles] for field in ("cpu", "memory")}
    return tuple(field for field, amounts in limits.items() if any(amounts) and not all(amounts))


def _resources(roles: Sequence[Role], devices: int) -> Resources:
    """Return what one pod requests, and its limits where each role has one."""
    with_devices = next((role for role in roles if members(role).gpus), roles[0])
    return Resources.model_construct(
        cpu=_cores(sum((_of_node(role, "cpu") for role in roles), Fraction(0))),
        memory=_bytes(sum((_of_node(role, "memory") for role in roles), Fraction(0))),
        cpu_limit=_cores(sum((_limit(role, "cpu") for role in roles), Fraction(0))),
        memory_limit=_bytes(sum((_limit(role, "memory") for role in roles), Fraction(0))),
        shm=write_bytes(sum((shm_size(role) * _instances(role) for role in roles), Fraction(0))),
        gpus=devices,
        gpu_resource=device_resource(with_devices),
        extended=_extended(roles),
    )


def _instances(role: Role) -> int:
    """Return how many times a pod has what a field of `resources` says of one container, as pods of other kinds do."""
    return counts(role)[1] if role.launch == SIMPLE else 1


def _of_node(role: Role, field: str) -> Fraction:
    """Return the cores or bytes that a role needs in one pod; 0 where it does not say."""
    node, one = getattr(role.resources, field), getattr(role.instance_resources, field)
    return quantity(node) if node else quantity(one) * counts(role)[1] if one else Fraction(0)


def _limit(role: Role, field: str) -> Fraction:
    """Return how much of it a role may use in one pod: its limit, or what it requests; 0 where it says neither."""
    text = getattr(role.resources, f"{field}_limit")
    return quantity(text) * _instances(role) if text else _of_node(role, field)


def _extended(roles: Sequence[Role]) -> dict[str, str]:
    """Return the amounts of other resources. Without a domain, a resource of an instance exists only in Ray."""
    found: dict[str, Fraction] = {}
    for role in roles:
        one, number = role.instance_resources, counts(role)[1]
        amounts = [(name, quantity(text)) for name, text in role.resources.extended.items()]
        amounts += [(name, Fraction(str(amount)) * number) for name, amount in one.user_defined.items() if "/" in name]
        amounts += [(_DISK, quantity(one.disk) * number)] if one.disk else []
        for name, amount in amounts:
            found[name] = found.get(name, Fraction(0)) + amount
    # Only storage and huge pages have no domain: they are counted in bytes.
    return {name: str(math.ceil(amount)) if "/" in name else _bytes(amount) for name, amount in found.items() if amount}


def _cores(amount: Fraction) -> str:
    if amount.denominator == 1:
        return str(amount) if amount else ""
    return f"{math.ceil(amount * 1000)}m"


def _bytes(amount: Fraction) -> str:
    return write_bytes(amount) if amount else ""
