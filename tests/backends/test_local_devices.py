"""Devices of instances on one machine: groups follow each other, and members of a group share."""

from __future__ import annotations

from rallypoint.backends.local.devices import assigned, visible
from rallypoint.wire.role_plans import RolePlan


def role(name: str, total: int, per_group: int, devices: str, place: str = "") -> RolePlan:
    return RolePlan(name=name, elastic=False, total=total, per_group=per_group, devices=devices, place=place)


def test_instances_of_a_group_share_devices() -> None:
    """Instance k of both roles has device k of the group; the next group has devices of its own."""
    found = assigned([role("actor", 4, 2, "1/2", "pair"), role("rollout", 4, 2, "1/2", "pair")])

    assert found == {(name, index): (index,) for name in ("actor", "rollout") for index in range(4)}


def test_whole_devices_and_roles_without_any() -> None:
    """A role that asks for none is not in the answer; groups of other roles begin behind those of the first."""
    found = assigned([role("a", 2, 1, "2"), role("none", 3, 1, ""), role("b", 3, 3, "1/3")])

    assert found == {("a", 0): (0, 1), ("a", 1): (2, 3), **{("b", index): (4,) for index in range(3)}}


def test_fractions_that_do_not_fit_take_the_next_device() -> None:
    """Sums are exact: three thirds are one device, and three times 2/5 are two."""
    assert set(assigned([role("a", 3, 3, "1/3")]).values()) == {(0,)}
    assert sorted(assigned([role("a", 3, 3, "2/5")]).values()) == [(0,), (0,), (1,)]


def test_a_machine_with_other_names_for_its_devices() -> None:
    """What this process may see is counted from the first, and begins again where it is not enough."""
    assert visible((0, 1), {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert visible((2,), {"CUDA_VISIBLE_DEVICES": "5, 7"}) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert visible((0, 0, 3), {}) == {"CUDA_VISIBLE_DEVICES": "0,3"}
