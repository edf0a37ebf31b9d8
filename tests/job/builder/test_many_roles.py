"""Jobs with many roles are built quickly: a DAG file builds its jobs each time it is parsed."""

from __future__ import annotations

from benchmarks.roles import build


def test_a_hundred_roles_are_built_in_a_fifth_of_a_second():
    """The fastest of several, since the machine may be busy; 0.01 s is usual."""
    assert min(build(100) for _ in range(5)) <= 0.2
