"""Which devices of this machine each instance of a job with roles has: those of a group share devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from rallypoint.wire.role_plans import RolePlan

__all__ = ["assigned", "visible"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def assigned(roles: Iterable[RolePlan]) -> Mapping[tuple[str, int], tuple[int, ...]]:
    """Return the devices of each instance by role and index; an instance that asks for none is not in it.

    Groups follow each other, and no two share a device. Within a group instance k of each role comes before instance k + 1
    of any, so instances with the same place share where they ask for fractions.
    """
    places: dict[str, list[RolePlan]] = {}
    for role in roles:
        if role.devices and Fraction(role.devices) > 0 and role.total:
            places.setdefault(role.place or f"role {role.name}", []).append(role)
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    first = 0
    for members in places.values():
        for group in range(max(role.groups for role in members)):
            first += _fill(members, group, first, found)
    return found


def _fill(members: Sequence[RolePlan], group: int, first: int, found: dict[tuple[str, int], tuple[int, ...]]) -> int:
    """Place one group from device `first` on; return how many devices it has."""
    left: list[Fraction] = []
    for at in range(max(role.per_group for role in members)):
        for role in members:
            index = group * role.per_group + at
            if at >= role.per_group or index >= role.total:
                continue
            share = Fraction(role.devices)
            if share >= 1:
                chosen = list(range(len(left), len(left) + int(share)))
                left += [Fraction(0)] * int(share)
            else:
                chosen = [next((number for number, room in enumerate(left) if room >= share), len(left))]
                if chosen[0] == len(left):
                    left.append(Fraction(1))
                left[chosen[0]] -= share
            found[role.name, index] = tuple(first + number for number in chosen)
    return len(left)


def visible(devices: Sequence[int], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows a process its devices; those that this process may see are counted from the first."""
    known = [name.strip() for name in environ.get(_VARIABLE, "").split(",") if name.strip()]
    names = dict.fromkeys(known[number % len(known)] if known else str(number) for number in devices)
    return {_VARIABLE: ",".join(names)}
