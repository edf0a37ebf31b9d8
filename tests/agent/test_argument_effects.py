"""What each argument of DLRover's document does: from its text in an annotation to what the job does. Nothing here waits.

The page docs/reference/arguments.md names these tests by their markers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.commands import _log_folder
from rallypoint.agent.flags import add_run_flags
from rallypoint.agent.node.adviser import extension_command
from rallypoint.agent.node.extension import load as load_extension
from rallypoint.agent.options import read_options
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.transport.choosing import speaks_grpc
from rallypoint.agent.workers.affinity import worker_cpus
from rallypoint.capabilities.snapshots.keeper import SnapshotKeeper
from rallypoint.job import JobError, compile_plan, load_job
from rallypoint.job.arguments import ARGUMENTS, field_default
from rallypoint.simulation.simulator import Frame, simulate
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import Phase
from rallypoint.wire import env
from rallypoint.wire.messages import AgentState
from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import JobState
from tests.agent.test_rendezvous import PATIENT, killed, report, say, start

BARE = {"name": "digits", "entrypoint": "train.py", "nproc_per_node": 2}


def plan(**arguments: object) -> Plan:
    """Return the plan of a job with these arguments as annotations, some by the bare name and some with our prefix."""
    notes = {f"{'rallypoint.dev/' if n % 2 else ''}{name}": str(value) for n, (name, value) in enumerate(arguments.items())}
    return compile_plan(load_job({**BARE, "annotations": notes}, base="/"))[0]


def settings(**arguments: object) -> Settings:
    """Return what the coordinator keeps of it; leases are so long that only tests about them meet one."""
    return replaced(Settings.from_plan(plan(**arguments)), node_lease=PATIENT)


def waiting(kept: Settings, nodes: int, now: float = 0.0) -> State:
    return say(start(kept), *(report(node) for node in range(nodes)), now=now)


def running(kept: Settings, nodes: int) -> State:
    """Return a job whose first round runs."""
    state = rendezvous.tick(waiting(kept, nodes), kept.last_call)
    return say(state, *(report(node, AgentState.RUNNING, 1) for node in range(nodes)), now=kept.last_call)


def supervised(steps: list[dict[str, Any]], until: float, **arguments: object) -> tuple[Frame, ...]:
    """Return what a supervisor does about the job's nodes, second by second."""
    trace = {"makers": "supervisor", "until": until, "steps": steps, "startup": 1.0}
    return simulate(Policy.from_plan(plan(**arguments)), trace)


def ended(frames: tuple[Frame, ...]) -> tuple[float, str] | None:
    """Return when and why a job failed."""
    frame = next((frame for frame in frames if frame.phase is Phase.FAILED), None)
    return None if frame is None or frame.verdict is None else (frame.at, frame.verdict.reason)


# --- Of the master ----------------------------------------------------------------------------------------------------------

#: One node runs, the other is pending from the tenth second on.
PENDING = [{"at": 10, "pods": "RN", "status": "auto"}]


@pytest.mark.argument("pending_timeout")
@pytest.mark.difference(1)
def test_a_node_may_stay_pending_for_so_long() -> None:
    """Exactly as long as it says, and for ever where it says 0."""
    assert ended(supervised(PENDING, 5000, nnodes=2, pending_timeout=70)) == (80.0, "PendingTimeout")
    assert ended(supervised(PENDING, 5000, nnodes=2, pending_timeout=0)) is None
    assert ended(supervised(PENDING, 5000, nnodes=2)) == (910.0, "PendingTimeout")


@pytest.mark.argument("pending_fail_strategy")
@pytest.mark.difference(4)
@pytest.mark.parametrize(
    ("strategy", "nnodes", "fails", "warns"),
    [
        pytest.param(-1, "2", False, False, id="-1 is disabled"),
        pytest.param(0, "2", False, True, id="0 skips the judgement and warns"),
        pytest.param(1, "2", True, False, id="1 fails below MIN"),
        pytest.param(1, "1:2", False, False, id="1 lets a job at MIN go on"),
        pytest.param(2, "1:2", True, False, id="2 wants all"),
    ],
)
def test_what_a_pending_node_does_then(strategy: int, nnodes: str, fails: bool, warns: bool) -> None:
    """Four answers that can be told apart."""
    frames = supervised(PENDING, 2000, nnodes=nnodes, pending_timeout=70, pending_fail_strategy=strategy)

    assert (ended(frames) is not None) == fails
    assert any(event.kind == "pending-timeout" for frame in frames for event in frame.events) == warns


@pytest.mark.argument("service_type")
@pytest.mark.may_block("it imports grpcio")
async def test_agents_speak_by_the_service_that_is_named() -> None:
    """Both ends read it in the plan; tests/agent/test_transports.py has the whole suite for each."""
    pytest.importorskip("grpc")

    assert [speaks_grpc(plan(service_type=service).rendezvous.service_type) for service in ("grpc", "http")] == [True, False]
    assert speaks_grpc(plan().rendezvous.service_type)


@pytest.mark.argument("training_elastic_mode")
def test_with_ucp_an_agent_waits_for_the_last_snapshot(tmp_path: Path) -> None:
    """Its keeper is made for it; tests/capabilities/snapshots/test_keeper.py and tests/live/test_resize.py wait with it."""
    keepers = [SnapshotKeeper(plan(training_elastic_mode=mode), tmp_path) for mode in ("base", "ucp")]

    assert [keeper.flushes for keeper in keepers] == [False, True]


@pytest.mark.argument("dynamic_failover_extension")
def test_the_named_class_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents load it in a process; one of DLRover's interface answers (tests/live/test_extension.py asks it for real)."""
    (tmp_path / "failover_by_argument.py").write_text(
        "class Mine:\n    def get_user_failover_strategy(self, failure_info):\n        return 'NODE_FAILOVER'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = plan(dynamic_failover_extension="failover_by_argument::Mine")

    assert extension_command(asked, {}).argv[-1] == "failover_by_argument::Mine"
    assert load_extension(asked.failures.failover_extension)(None) == "NODE_FAILOVER"  # type: ignore[arg-type]


# --- Of training ------------------------------------------------------------------------------------------------------------


@pytest.mark.argument("node_unit")
@pytest.mark.difference(10)
def test_a_world_is_a_multiple_of_the_unit() -> None:
    """Also where more nodes wait; what cannot be one is an error before anything starts."""
    kept = settings(nnodes="2:4", node_unit=2)

    assert len(rendezvous.tick(waiting(kept, 3), kept.last_call).world) == 2
    assert len(waiting(kept, 4).world) == 4
    for wrong, said in ((0, "a whole number from 1 to 16384"), (3, "MIN and MAX that are multiples of 3")):
        with pytest.raises(JobError, match=said):
            plan(nnodes="2:4", node_unit=wrong)


@pytest.mark.argument("nnodes")
@pytest.mark.difference(9)
def test_a_job_has_so_many_nodes() -> None:
    """`N` or `MIN:MAX`; 1 by default."""
    assert (plan().min_nodes, plan().max_nodes) == (1, 1)
    assert waiting(settings(nnodes=3), 2).state is JobState.FORMING
    assert len(waiting(settings(nnodes=3), 3).world) == 3
    elastic = settings(nnodes="2:3")
    assert len(rendezvous.tick(waiting(elastic, 2), elastic.last_call).world) == 2


@pytest.mark.argument("rdzv_conf")
@pytest.mark.difference(15)
def test_a_round_waits_for_the_join_timeout() -> None:
    """Then the attempt ends; nothing that is not more than 0 is one."""
    kept = settings(nnodes=2, rdzv_conf="join_timeout=7")
    state = waiting(kept, 1)

    assert rendezvous.tick(state, 6.9).verdict is None
    over = rendezvous.tick(state, 7.0).verdict
    assert over is not None
    assert over.reason == "RendezvousTimeout"
    for wrong in ("0", "-1", "soon"):
        with pytest.raises(JobError, match=rf"the value of the key join_timeout to be .*, not '{wrong}'"):
            plan(rdzv_conf=f"join_timeout={wrong}")


@pytest.mark.argument("max_restarts")
@pytest.mark.difference(7)
def test_workers_are_restarted_so_often() -> None:
    """3 times by default; 0 is not allowed."""
    state = running(settings(nnodes=2, max_restarts=1), 2)
    state = say(state, report(0, AgentState.FAILED, 1, failures=(killed(0),)), now=40.0)
    assert state.state is JobState.FORMING
    state = say(state, report(0, round_=1), report(1, round_=1), now=41.0)
    state = say(state, *(report(node, AgentState.RUNNING, 2) for node in (0, 1)), now=42.0)
    state = say(state, report(1, AgentState.FAILED, 2, failures=(killed(1),)), now=43.0)

    assert state.verdict is not None
    assert state.verdict.message.endswith("no restarts left (limit: 1)")
    assert plan().budgets.max_restarts == 3
    with pytest.raises(
        JobError,
        match="max_restarts: '0' is not allowed; expected a whole number of 1 or more",
    ):
        plan(max_restarts=0)


@pytest.mark.argument("relaunch_on_worker_failure")
@pytest.mark.difference(8)
def test_a_node_is_replaced_so_often() -> None:
    """3 times by default, and not five at the most."""
    losses = [{"at": 10, "pods": "RR"}, *({"at": 100.0 * n, "pods": "R" + "L"} for n in range(1, 12))]

    def made(**arguments: object) -> int:
        return supervised(losses, 2000, nnodes="1:2", **arguments)[-1].record.slots[1].incarnation

    assert made(relaunch_on_worker_failure=1) == 2
    assert made(relaunch_on_worker_failure=7) == 8
    assert made() == 4


@pytest.mark.argument("log_dir")
def test_logs_go_into_the_folder() -> None:
    """One for each attempt and node."""
    args = argparse.Namespace(attempt=2, node=1, incarnation=3, dir="/run")

    assert _log_folder(plan(log_dir="/logs"), args) == Path("/logs/digits/attempt-2/node-1.3")
    assert _log_folder(plan(), args) == Path("/run/logs")


@pytest.mark.argument("save_at_breakpoint")
def test_workers_leave_snapshots_for_a_breakpoint(tmp_path: Path) -> None:
    """Agents receive the setting and persist the last snapshot (tests/capabilities/snapshots/test_keeper.py persists one)."""
    told = [SnapshotKeeper(plan(save_at_breakpoint=word), tmp_path).environment() for word in ("true", "false")]

    assert [words.get(env.SAVE_AT_BREAKPOINT) for words in told] == ["1", None]


@pytest.mark.argument("numa_affinity")
def test_workers_are_bound_to_cpus() -> None:
    """Each to those near its GPU, or in turn; tests/agent/test_affinity.py has machines of every shape."""
    assert worker_cpus(plan(), {}) == {}
    bound = worker_cpus(plan(numa_affinity="true"), {"CUDA_VISIBLE_DEVICES": ""})
    assert set(bound) == {0, 1}
    assert all(bound.values())


@pytest.mark.difference(11)
def test_the_training_port_has_one_default() -> None:
    """On the command line, in a job and in the plan."""
    parser = RunParser()
    add_run_flags(parser, {})
    by_hand = read_options(parser.parse_args(["train.py"]), {}).plan

    assert {by_hand.devices.training_port, plan().devices.training_port, field_default(ARGUMENTS["training_port"].field)} == {
        60000
    }
