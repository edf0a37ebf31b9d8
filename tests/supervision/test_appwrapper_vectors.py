"""AppWrapper's machine, vector by vector: what is seen at which second, and where the job stands then.

The numbers in the ids are those of the reference. Where the controller departs from its own documentation ours follows the
documentation: the retry pause counts from when everything is gone, the success TTL from success, the failure grace covers
admission and warm-up, the debugging delay is one delay and never disables forced deletion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from rallypoint.simulation.simulator import Frame, simulate
from rallypoint.supervision.policy import Policy
from rallypoint.wire.plan import Profile

DAY = 86400.0


def policy(pods: int = 2, **fields: Any) -> Policy:
    """AppWrapper's defaults for a job of so many pods in one wrapped component."""
    return Policy(min_nodes=pods, max_nodes=pods, profile=Profile.APPWRAPPER, wrapped=True, node_replacements=0, **fields)


@dataclass(frozen=True, kw_only=True)
class At:
    """What a trace tells at a second, and what must be so then: phase, retries, conditions (`Name=reason@since`, `!Name`)."""

    t: float
    tell: dict[str, Any]
    phase: str
    n: int = 0
    so: str = ""


def at(t: float, phase: str, n: int = 0, so: str = "", **tell: Any) -> At:
    """Return one line of a vector."""
    return At(t=t, tell=tell, phase=phase, n=n, so=so)


NO_GRACE = {"failure_grace": 0.0}
FAILED_AT_100 = (at(0, "Running"), at(10, "Running", pods="RR"))

VECTORS = [
    pytest.param(
        policy(),
        (
            at(0, "Running", so="QuotaReserved ResourcesDeployed !PodsReady !Unhealthy"),
            at(2, "Running", pods="PP"),
            at(10, "Running", so="PodsReady=SufficientPodsReady@10", pods="RR"),
            at(70, "Running", so="PodsReady", pods="RS"),
            at(130, "Succeeded", so="!QuotaReserved ResourcesDeployed", pods="SS"),
        ),
        id="1 happy path",
    ),
    pytest.param(
        policy(),
        (
            at(10, "Running", pods="RR"),
            at(100, "Running", so="Unhealthy=FoundFailedPods@100", pods="R F(1)"),
            at(159, "Running", so="!Unhealthy=FoundNoFailedPods", pods="RR"),
            at(160, "Running"),
        ),
        id="2 recovered inside the grace",
    ),
    pytest.param(
        policy(),
        (
            at(10, "Running", pods="RR"),
            at(100, "Running", pods="R F(1)"),
            at(159, "Running"),
            at(160, "Resetting", 1, so="DeletingResources QuotaReserved"),
            at(165, "Resetting", 1, so="!ResourcesDeployed QuotaReserved", gone=True),
            at(254, "Resetting", 1),
            at(255, "Running", 1, so="ResourcesDeployed@255 !Unhealthy QuotaReserved"),
        ),
        id="3 one retry with default timers: the pause counts from when all is gone",
    ),
    pytest.param(
        policy(),
        (
            at(10, "Running", pods="RR"),
            at(100, "Running", pods="R F(1)"),
            at(160, "Resetting", 1),
            at(300, "Resetting", 1, gone=True),
            at(389, "Resetting", 1),
            at(390, "Running", 1, so="ResourcesDeployed@390"),
        ),
        id="4 a slow deletion does not swallow the pause",
    ),
    pytest.param(
        policy(pods=1, retry_limit=2, retry_pause=5.0, **NO_GRACE),
        (
            at(10, "Resetting", 1, pods="F(1)"),
            at(12, "Resetting", 1, gone=True),
            at(16, "Resetting", 1),
            at(17, "Running", 1),
            at(22, "Resetting", 2, pods="F(1)"),
            at(28, "Resetting", 2, gone=True),
            at(33, "Running", 2),
            at(37, "Failed", 2, so="QuotaReserved", pods="F(1)"),
            at(47, "Failed", 2, so="!QuotaReserved !ResourcesDeployed", gone=True),
        ),
        id="5 a budget of two",
    ),
    pytest.param(
        policy(4),
        (
            at(5, "Running", pods="PPR"),
            at(59, "Running", so="!Unhealthy"),
            at(60, "Running", so="Unhealthy=InsufficientPodsReady@60"),
            at(119, "Running"),
            at(120, "Resetting", 1),
        ),
        id="7 admission, and the failure grace after it",
    ),
    pytest.param(
        policy(4),
        (
            at(5, "Running", pods="PPRR"),
            at(60, "Running", so="!Unhealthy"),
            at(299, "Running", so="!Unhealthy"),
            at(300, "Running", so="Unhealthy=InsufficientPodsReady@300"),
            at(359, "Running"),
            at(360, "Resetting", 1),
        ),
        id="8 warm-up, and the failure grace after it",
    ),
    pytest.param(
        policy(),
        (at(10, "Running", pods="R P*"), at(60, "Running", so="!Unhealthy"), at(359, "Running"), at(360, "Resetting", 1)),
        id="11 a pending pod that is being deleted counts",
    ),
    pytest.param(
        policy(),
        (at(10, "Running", pods="RU"), at(60, "Running", so="Unhealthy"), at(119, "Running"), at(120, "Resetting", 1)),
        id="11 an unknown pod does not count",
    ),
    pytest.param(
        policy(warmup_grace=10.0, admission_grace=60.0),
        (
            at(5, "Running", pods="P"),
            at(30, "Running", so="!Unhealthy"),
            at(31, "Running", so="Unhealthy@31", pods="PP"),
            at(90, "Running"),
            at(91, "Resetting", 1),
        ),
        id="12 a warm-up shorter than admission",
    ),
    pytest.param(
        policy(),
        (
            at(
                0,
                "Failed",
                so="Unhealthy=CreateFailed QuotaReserved ResourcesDeployed",
                create_error={"reason": "Invalid", "fatal": True},
                components={"deployed": 0, "deleting": 1},
            ),
            at(5, "Failed", so="!QuotaReserved !ResourcesDeployed", gone=True),
        ),
        id="13 a fatal create error",
    ),
    pytest.param(
        policy(),
        (
            *FAILED_AT_100,
            at(100, "Resetting", 1, so="Unhealthy=FailedComponent@100", pods="R F(1)", component="failed"),
        ),
        id="15 a failed component has no grace",
    ),
    pytest.param(
        policy(terminal_exit_codes=(3,)),
        (*FAILED_AT_100, at(100, "Failed", so="Unhealthy=FailedComponent", pods="R F(3)", component="failed")),
        id="15 a failed component with a terminal exit code",
    ),
    pytest.param(
        policy(),
        (*FAILED_AT_100, at(100, "Failed", so="Unhealthy=MissingComponent", component="missing")),
        id="17 a missing component",
    ),
    pytest.param(
        policy(),
        (*FAILED_AT_100, at(100, "Failed", so="Unhealthy=MissingComponent", component="deleting")),
        id="17 a component that is being deleted",
    ),
    pytest.param(
        policy(),
        (at(0, "Running"), at(10, "Failed", so="Unhealthy=MissingComponent", pods="SS", component="missing")),
        id="17 before success",
    ),
    pytest.param(
        policy(),
        (
            *FAILED_AT_100,
            at(100, "Resetting", 0, so="Unhealthy=AutopilotNoExecute", pods="R R!"),
            at(105, "Resetting", 0, gone=True),
            at(194, "Resetting", 0),
            at(195, "Running", 0),
        ),
        id="19 evacuation costs nothing",
    ),
    pytest.param(
        policy(retry_limit=0),
        (*FAILED_AT_100, at(100, "Failed", pods="R R!")),
        id="19 evacuation with no retry left",
    ),
    pytest.param(
        policy(),
        (
            *FAILED_AT_100,
            at(100, "Running", so="Unhealthy=FoundFailedPods", pods="R! F(1)"),
            at(159, "Running"),
            at(160, "Resetting", 1),
        ),
        id="19 evacuation behind a failed pod",
    ),
    pytest.param(
        policy(),
        (
            *FAILED_AT_100,
            at(100, "Suspending", so="QuotaReserved ResourcesDeployed", suspend=True),
            at(105, "Suspended", so="!QuotaReserved !ResourcesDeployed !PodsReady !Unhealthy", gone=True),
            at(200, "Running", so="ResourcesDeployed@200", suspend=False),
        ),
        id="20 preemption",
    ),
    pytest.param(
        policy(),
        (
            *FAILED_AT_100,
            at(100, "Suspending", suspend=True),
            at(102, "Suspending", suspend=False),
            at(105, "Running", so="ResourcesDeployed@105", gone=True),
        ),
        id="20 a suspension that is taken back is finished first",
    ),
    pytest.param(
        policy(pods=1, retry_limit=0, deletion_on_failure_grace=3600.0, **NO_GRACE),
        (
            at(10, "Failed", so="!DeletingResources=DeletionPaused@10 QuotaReserved ResourcesDeployed", pods="F(1)"),
            at(3609, "Failed", so="!DeletingResources QuotaReserved"),
            at(3610, "Failed", so="DeletingResources QuotaReserved"),
            at(3615, "Failed", so="!QuotaReserved !ResourcesDeployed", gone=True),
        ),
        id="22 the debugging delay is one delay",
    ),
    pytest.param(
        policy(pods=1, retry_limit=0, deletion_on_failure_grace=3600.0, **NO_GRACE),
        (
            at(10, "Failed", pods="F(1)"),
            at(100, "Failed", so="DeletingResources", suspend=True),
            at(101, "Failed", so="DeletingResources", suspend=False),
            at(105, "Failed", so="!QuotaReserved !ResourcesDeployed", gone=True),
        ),
        id="22 suspending ends the debugging delay",
    ),
    pytest.param(
        policy(success_ttl=600.0),
        (
            at(10, "Running", pods="RR"),
            at(130, "Succeeded", pods="SS"),
            at(729, "Succeeded", so="ResourcesDeployed !DeletingResources"),
            at(730, "Succeeded", so="DeletingResources"),
            at(735, "Succeeded", so="!ResourcesDeployed", gone=True),
        ),
        id="25 the TTL counts from success",
    ),
    pytest.param(
        policy(),
        (
            at(10, "Running", pods="RR"),
            at(130, "Succeeded", pods="SS"),
            at(140, "Succeeded", so="!QuotaReserved", suspend=True),
        ),
        id="25 a job that has succeeded is not suspended",
    ),
    pytest.param(
        policy(),
        (
            at(10, "Running", pods="RR"),
            at(20, "Terminating", so="QuotaReserved", delete=True),
            at(25, "Terminating", so="!ResourcesDeployed !QuotaReserved", gone=True),
        ),
        id="31 deletion",
    ),
]


@pytest.mark.parametrize(("limits", "lines"), VECTORS)
def test_a_vector(limits: Policy, lines: tuple[At, ...]) -> None:
    """Phase, retries and conditions are the reference's at each second."""
    frames = told(limits, lines)
    for line, frame in zip(lines, frames, strict=True):
        assert (frame.at, frame.phase.value, frame.retries) == (line.t, line.phase, line.n)
        for word in line.so.split():
            holds(frame, word)


@pytest.mark.parametrize(
    ("lists", "pods", "phase"),
    [
        pytest.param({"terminal_exit_codes": (3, 10)}, "R F(3)", "Failed", id="18a terminal"),
        pytest.param({"terminal_exit_codes": (3, 10)}, "R F(10)", "Failed", id="18b lists are trimmed"),
        pytest.param({"retryable_exit_codes": (137, 143)}, "R F(137)", "Resetting", id="18c retryable"),
        pytest.param({"retryable_exit_codes": (137, 143)}, "R F(1)", "Failed", id="18d not retryable"),
        pytest.param(
            {"terminal_exit_codes": (137,), "retryable_exit_codes": (137,)}, "R F(137)", "Failed", id="18e terminal wins"
        ),
        pytest.param({"retryable_exit_codes": (137,)}, "R F", "Resetting", id="18f no container status"),
        pytest.param({"retryable_exit_codes": (137,)}, "F(137) F(1)", "Failed", id="18g one of two"),
        pytest.param({"terminal_exit_codes": (0, 3)}, "R F(0 7)", "Resetting", id="18h zero is skipped"),
    ],
)
def test_exit_codes(lists: dict[str, Any], pods: str, phase: str) -> None:
    """They are looked at when the failure grace is over, and not before."""
    lines = (*FAILED_AT_100, at(100, "Running", pods=pods), at(159, "Running"), at(160, phase))
    frames = told(policy(**lists), lines)
    assert [f.phase.value for f in frames] == [line.phase for line in lines]


def test_23_forceful_deletion() -> None:
    """Strictly after its grace what lingers goes by force: first the pods, then the component."""
    lines = (
        at(10, "Resetting", 1, pods="F(1)"),
        at(40, "Resetting", 1),
        at(41, "Resetting", 1),
        at(46, "Resetting", 1, pods=""),
        at(51, "Resetting", 1, gone=True),
    )
    frames = told(policy(pods=1, forceful_deletion_grace=30.0, **NO_GRACE), lines)
    forced = [sorted(type(a).__name__ for a in f.actions if getattr(a, "force", False)) for f in frames]
    assert forced == [[], [], ["RemoveNode"], ["RemoveComponents"], []]
    holds(frames[-1], "!ResourcesDeployed")


def test_23_the_debugging_delay_does_not_disable_forced_deletion() -> None:
    """A stuck pod of a failed job goes by force, too: a deletion always makes progress."""
    limits = policy(pods=1, retry_limit=0, deletion_on_failure_grace=60.0, forceful_deletion_grace=30.0, **NO_GRACE)
    lines = (at(10, "Failed", pods="F(1)"), at(70, "Failed"), at(101, "Failed"), at(105, "Failed", gone=True))
    frames = told(limits, lines)
    assert any(getattr(a, "force", False) for a in frames[2].actions)
    holds(frames[3], "!QuotaReserved")


def test_a_pod_lost_after_warm_up_has_a_full_grace() -> None:
    """Its replacement may take as long as the first one could; nothing of an old clock is inherited."""
    lines = (
        at(10, "Running", pods="RR"),
        at(5000, "Running", so="!PodsReady !Unhealthy", pods="RP"),
        at(5299, "Running", so="!Unhealthy"),
        at(5300, "Running", so="Unhealthy=InsufficientPodsReady@5300"),
        at(5310, "Running", so="PodsReady !Unhealthy", pods="RR"),
    )
    frames = told(policy(), lines)
    for line, frame in zip(lines, frames, strict=True):
        assert frame.phase.value == line.phase
        for word in line.so.split():
            holds(frame, word)


def test_a_new_failure_does_not_inherit_an_expired_grace() -> None:
    """The attempt after a reset fails at its first sight: it has its own failure grace and its own pause."""
    lines = (
        at(10, "Running", pods="RR"),
        at(100, "Running", pods="R F(1)"),
        at(160, "Resetting", 1),
        at(165, "Resetting", 1, gone=True),
        at(255, "Running", 1, pods="R F(1)"),
        at(314, "Running", 1),
        at(315, "Resetting", 2),
        at(316, "Resetting", 2, gone=True),
        at(405, "Resetting", 2),
        at(406, "Running", 2),
    )
    assert [(f.phase.value, f.retries) for f in told(policy(), lines)] == [(line.phase, line.n) for line in lines]


def told(limits: Policy, lines: tuple[At, ...]) -> list[Frame]:
    """Run a vector through the core; return the frame of each of its lines."""
    steps = [{"at": line.t, **line.tell} for line in lines]
    frames = simulate(limits, {"makers": "components", "steps": steps})
    assert not [f.violations for f in frames if f.violations]
    return [next(f for f in frames if f.step == index) for index in range(len(lines))]


def holds(frame: Frame, word: str) -> None:
    """Check one condition: `Name`, `!Name`, with `=reason` and `@since` where they are given."""
    word, _, since = word.partition("@")
    name, _, reason = word.lstrip("!").partition("=")
    found = frame.conditions.get(name)
    assert (found is not None and found.value) is (not word.startswith("!")), f"{word} at {frame.at}: {found}"
    assert not reason or (found is not None and found.reason == reason), f"{word} at {frame.at}: {found}"
    assert not since or (found is not None and found.at == float(since)), f"{word} at {frame.at}: {found}"
