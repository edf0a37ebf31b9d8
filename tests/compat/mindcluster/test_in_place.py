"""Which pods may stay and restart their broken process alone."""

from __future__ import annotations

import pytest

from rallypoint.compat.mindcluster.in_place import CHECK_INTERVAL, CHECKS, Level, PodFaults, SubHealthy, judge


def software(node, age=0.0):
    return PodFaults(node=node, software=True, age=age)


def device(node, *levels, age=0.0, checks=0, ended=False):
    return PodFaults(node=node, software=ended, levels=frozenset(levels), age=age, checks=checks)


REQUEST, BUSINESS, IGNORE, SICK = Level.RESTART_REQUEST, Level.RESTART_BUSINESS, Level.IGNORE, Level.SUB_HEALTH


@pytest.mark.parametrize(
    ("pods", "restart", "migrate"),
    [
        pytest.param([], (), (), id="no-fault"),
        pytest.param([software(2)], (2,), (), id="a-process-ended"),
        pytest.param([software(2, age=59.9)], (2,), (), id="just-young-enough"),
        pytest.param([software(2, age=60.0)], (), (2,), id="too-old"),
        pytest.param([device(2, REQUEST)], (2,), (), id="restart-request"),
        pytest.param([device(2, BUSINESS, IGNORE)], (2,), (), id="restart-business-and-noise"),
        pytest.param([device(2, IGNORE)], (), (), id="noise-alone-is-no-fault"),
        pytest.param([device(2, IGNORE, ended=True)], (2,), (), id="a-process-ended-beside-noise"),
        pytest.param([device(2, REQUEST, Level.SEPARATE)], (), (2,), id="a-worse-level-beside-it"),
        pytest.param([device(2, Level.RESTART_DEVICE)], (), (2,), id="a-device-reset-is-needed"),
        pytest.param([device(2, REQUEST, checks=4)], (2,), (), id="may-vanish-yet"),
        pytest.param([device(2, REQUEST, checks=5)], (), (2,), id="does-not-vanish"),
        pytest.param([software(1), software(2)], (), (1, 2), id="software-in-two-pods"),
        pytest.param([software(1), device(2, REQUEST)], (1, 2), (), id="software-in-one-of-two"),
        pytest.param([device(1, Level.SEPARATE), device(2, REQUEST)], (2,), (1,), id="mixed"),
        pytest.param([device(0, Level.SEPARATE), device(2, REQUEST)], (), (0, 2), id="rank-0-cannot-stay"),
        pytest.param([device(0, REQUEST), device(2, Level.SEPARATE)], (0,), (2,), id="rank-0-stays"),
        pytest.param([software(0)], (0,), (), id="rank-0-alone"),
    ],
)
def test_pods_stay_whose_fault_a_restart_mends(pods, restart, migrate):
    """A pod stays when its fault is young, mended by a restart of the process, and rank 0 can stay, too."""
    verdict = judge(pods)

    assert (verdict.restart, verdict.migrate) == (restart, migrate)
    assert verdict.eligible is bool(restart)
    assert bool(verdict.reason) is bool(migrate)


@pytest.mark.parametrize(
    ("strategy", "restart", "migrate"),
    [
        pytest.param(SubHealthy.IGNORE, (2,), (), id="ignored"),
        pytest.param(SubHealthy.GRACE_EXIT, (), (2,), id="graceExit"),
        pytest.param(SubHealthy.FORCE_EXIT, (), (2,), id="forceExit"),
        pytest.param(SubHealthy.HOT_SWITCH, (), (2,), id="hotSwitch"),
    ],
)
def test_sub_health_counts_as_the_job_wants_it(strategy, restart, migrate):
    """A sub-healthy device keeps no pod from staying where the job ignores sub-health, and every pod elsewhere."""
    verdict = judge([device(2, REQUEST, SICK)], strategy)

    assert (verdict.restart, verdict.migrate) == (restart, migrate)


def test_a_device_fault_has_fifteen_seconds_to_vanish():
    """Five checks, three seconds apart."""
    assert CHECKS * CHECK_INTERVAL == 15.0
