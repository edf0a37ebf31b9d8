"""When the Lease of a machine's kubelet says that the machine is lost."""

from __future__ import annotations

import pytest

from rallypoint.backends.kubernetes.machines import OVERDUE, MachineLease

#: This process's clock and the API server's have nothing to do with each other.
NOW, SERVER = 100.0, 1_900_000_000.0


@pytest.mark.parametrize(
    ("lease", "overdue"),
    [
        pytest.param(MachineLease(version="1", since=NOW - 5, renewed_at=SERVER - 13), 13.0, id="renewed too long ago"),
        pytest.param(MachineLease(version="1", since=NOW - 5, renewed_at=SERVER - 11), 0.0, id="renewed lately"),
        pytest.param(MachineLease(version="1", since=NOW - 1, renewed_at=SERVER - 60), 0.0, id="read once, by a slow clock"),
        pytest.param(MachineLease(version="1", since=NOW - 13, renewed_at=SERVER + 60), 13.0, id="still, by a fast clock"),
        pytest.param(MachineLease(version="1", since=NOW - 13, renewed_at=0.0), 13.0, id="a time that cannot be read"),
        pytest.param(MachineLease(version="1", since=NOW - OVERDUE + 1, renewed_at=0.0), 0.0, id="not for long enough"),
    ],
)
def test_a_renewal_is_overdue(lease: MachineLease, overdue: float) -> None:
    """By the kubelet's time or by this process's own clock, and never after a single reading."""
    assert lease.overdue(now=NOW, server_time=SERVER) == overdue


def test_another_version_is_a_renewal() -> None:
    """The same one is none, whatever its time says."""
    first = MachineLease(version="1", since=NOW, renewed_at=SERVER)

    assert first.read("1", SERVER + 9, NOW + 9) == first
    assert first.read("2", SERVER + 9, NOW + 9) == MachineLease(version="2", since=NOW + 9, renewed_at=SERVER + 9)
