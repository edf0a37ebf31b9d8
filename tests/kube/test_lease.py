"""What one reading of a supervisor's Lease says."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.backends.kubernetes.lease import PROCESS, SILENT, ProcessMark, assess, parse_time, write_time

NOW = 1_900_000_000.25
MARK = ProcessMark(boot_id="b-1", namespace=4026531836, pid=77, start_ticks=1234)


def lease(renewed: str, process: str = str(MARK)) -> dict[str, Any]:
    return {"metadata": {"annotations": {PROCESS: process}}, "spec": {"renewTime": renewed}}


@pytest.mark.parametrize(
    ("found", "gone", "age"),
    [
        pytest.param(lease(write_time(NOW)), False, 0.0, id="renewed now"),
        pytest.param(lease(write_time(NOW - SILENT + 1)), False, SILENT - 1, id="renewed lately"),
        pytest.param(lease(write_time(NOW - SILENT)), True, SILENT, id="silent for too long"),
        pytest.param(lease(write_time(NOW + 3600)), False, 0.0, id="renewed in the future"),
        pytest.param(lease(write_time(NOW - 3600), process=""), False, None, id="of an older version"),
        pytest.param(lease(write_time(NOW - 3600), process="b/1/2"), False, None, id="a mark that cannot be read"),
        pytest.param(lease("yesterday"), False, None, id="a time that cannot be read"),
        pytest.param({"metadata": {}}, False, None, id="an empty one"),
    ],
)
def test_a_lease_is_compared_with_the_servers_time(found: dict[str, Any], gone: bool, age: float | None) -> None:
    """Only a renewal that is older than the limit, by one clock, says that the supervisor is gone."""
    health = assess(found, server_time=NOW)

    assert (health.gone, health.age) == (gone, pytest.approx(age) if age is not None else None)


def test_a_process_is_known_by_its_mark() -> None:
    """It is read back, and seen only from the same PID namespace of the same boot."""
    assert ProcessMark.parse(str(MARK)) == MARK
    assert MARK.is_visible_from(ProcessMark(boot_id="b-1", namespace=4026531836, pid=1, start_ticks=1))
    assert not MARK.is_visible_from(ProcessMark(boot_id="b-1", namespace=1, pid=77, start_ticks=1234))
    assert not MARK.is_visible_from(ProcessMark(boot_id="b-2", namespace=4026531836, pid=77, start_ticks=1234))


def test_times_are_read_as_they_are_written() -> None:
    """With microseconds."""
    assert parse_time(write_time(NOW)) == pytest.approx(NOW, abs=1e-6)
    assert parse_time("") == 0.0
