"""Which devices of this machine each instance of a job with roles has: those of a group share devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from rallypoint.wire.role_plans import RolePlan

__all__ = ["DEVICES", "assigned", "visible"]

#: Variable that shows a process its devices.
DEVICES = "CUDA_VISIBLE_DEVICES"


def assigned(roles: Iterable[RolePlan]) -> Mapping[tuple[str, int], tuple[int, ...]]:
    """Return the devices of each instance by role and index; an instance that asks for none is not in it.

    Groups follow each other, and no two share a device. Within a group instance k of each role comes before instance k + 1
    of any, so instances with the same place share where they ask for fractions.
    """
    places: dict[str, list[RolePlan]] = {}
    for role in roles:
        if role.share > 0 and role.total:
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
    searched: dict[Fraction, int] = {}
    present = [
        (index - group * role.per_group, place, index)
        for place, role in enumerate(members)
        for index in range(group * role.per_group, min((group + 1) * role.per_group, role.total))
    ]
    for _, place, index in sorted(present):
        role = members[place]
        share = role.share
        if share >= 1:
            chosen = list(range(len(left), len(left) + int(share)))
            left += [Fraction(0)] * int(share)
        else:
            # Room only shrinks: the search goes on where the last one for an equal share ended.
            at_device = next((n for n in range(searched.get(share, 0), len(left)) if left[n] >= share), len(left))
            if at_device == len(left):
                left.append(Fraction(1))
            left[at_device] -= share
            searched[share] = at_device
            chosen = [at_device]
        found[role.name, index] = tuple(first + number for number in chosen)
    return len(left)


def visible(devices: Sequence[int], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows a process its devices; those that this process may see are counted from the first."""
    known = [name.strip() for name in environ.get(DEVICES, "").split(",") if name.strip()]
    names = dict.fromkeys(known[number % len(known)] if known else str(number) for number in devices)
    return {DEVICES: ",".join(names)}
