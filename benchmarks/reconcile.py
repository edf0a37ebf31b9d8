"""What deciding costs: one turn of a job of 1,000 pods, and one turn of each of 1,000 jobs of 8 pods. Nothing else is measured.

Cases:
    steady-1000      1,000 pods run and train; a turn changes nothing but the job's clock (aim: under 2 ms)
    starting-1000    none of 1,000 pods exists yet: a turn asks for each
    lost-1000        1,000 pods are lost at once, each with an incident; a turn judges and replaces them all
    story-1000       as steady-1000, with 2,000 incidents told by the coordinator before
    jobs-1000x8      a turn of each of 1,000 jobs; once per second this is the share of a core (aim: under 0.1 s)

Python's own speed on this machine is measured beside it (`loop`, ns for one round of a plain loop): a machine that is busy with
something else is slow at both.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable

from benchmarks.report import Case, arguments, deliver, versions
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import reconcile
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung
from rallypoint.wire.status import JobState, JobStatus, Member, Progress

__all__ = ["main"]

COMMAND = "python -m benchmarks.reconcile"

_LOOPS = 1_000_000


def main() -> None:
    """Measure all cases and print them."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="turns measured in each case (20)")
    args = parser.parse_args()
    gc.freeze()
    cases = (
        _case("steady-1000", _steady(1000), args.repeat),
        _case("starting-1000", _starting(1000), args.repeat),
        _case("lost-1000", _lost(1000), args.repeat),
        _case("story-1000", _story(1000, 2000), args.repeat),
        _jobs(1000, 8, args.repeat),
        Case(name="loop", command=COMMAND, samples=tuple(_loop() for _ in range(5)), unit="ns"),
    )
    deliver("reconcile", cases, versions(), args.json)


# --- Jobs ------------------------------------------------------------------------------------------------------------------

Turn = tuple[JobRecord, Observation, Policy, float]


def _policy(nodes: int) -> Policy:
    return Policy(min_nodes=1, max_nodes=nodes)


def _node(number: int, *, attempt: int = 1, incarnation: int = 1, state: NodeState = NodeState.RUNNING) -> NodeSeen:
    return NodeSeen(
        attempt=attempt,
        node=number,
        incarnation=incarnation,
        state=state,
        present=state is NodeState.RUNNING,
        host=f"host-{number}",
    )


def _submitted() -> JobRecord:
    return JobRecord.new(name="big", uid="u1", digest="d1", owner="cli", now=0.0)


def _starting(nodes: int) -> Turn:
    policy = _policy(nodes)
    begun = reconcile(_submitted(), Observation(), policy, 1.0).record
    return begun, Observation(), policy, 2.0


def _steady(nodes: int, told: tuple[Incident, ...] = ()) -> Turn:
    """A job that trains: the same observation again and again."""
    policy = _policy(nodes)
    pods = tuple(_node(number) for number in range(nodes))
    world = tuple(
        Member(node=n, incarnation=1, agent=f"a{n}", host=f"host-{n}", local_world_size=8, group_rank=n, first_rank=8 * n)
        for n in range(nodes)
    )
    status = JobStatus(
        job="big",
        uid="u1",
        fence=Fence(attempt=1, term=1, round=1),
        state=JobState.RUNNING,
        world=world,
        progress=Progress(step=7),
        incidents=told,
    )
    seen = Observation(nodes=pods, coordinators=(_node(-1),), status=status)
    record = _submitted()
    for now in (1.0, 2.0, 3.0):
        record = reconcile(record, seen, policy, now).record
    return record, seen, policy, 4.0


def _lost(nodes: int) -> Turn:
    record, seen, policy, now = _steady(nodes)
    gone = tuple(dataclasses.replace(n, state=NodeState.LOST, present=False) for n in seen.nodes)
    return record, dataclasses.replace(seen, nodes=gone), policy, now


def _story(nodes: int, incidents: int) -> Turn:
    told = tuple(
        Incident(
            id=IncidentId(attempt=1, round=1 + number, node=number % nodes, local_rank=0),
            cause=Cause.PROCESS,
            rung=Rung.RESTART_WORKERS,
            reason="rank 1 (local rank 1) was killed by SIGKILL",
            culprit=Culprit(node=number % nodes, rank=1, local_rank=1, signal=9, log_tail=("a line of its log",) * 20),
            detected_at=float(number),
            healed_at=float(number) + 1.0,
        )
        for number in range(incidents)
    )
    return _steady(nodes, told)


# --- Measuring -------------------------------------------------------------------------------------------------------------


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _case(name: str, turn: Turn, repeat: int) -> Case:
    reconcile(*turn)  # what is made once is made now
    samples = tuple(1000.0 * _seconds(lambda: reconcile(*turn)) for _ in range(repeat))
    return Case(name=name, command=COMMAND, samples=samples, unit="ms")


def _jobs(jobs: int, nodes: int, repeat: int) -> Case:
    turn = _steady(nodes)

    def all_of_them() -> None:
        for _ in range(jobs):
            reconcile(*turn)

    samples = tuple(_seconds(all_of_them) for _ in range(max(3, repeat // 4)))
    return Case(name=f"jobs-{jobs}x{nodes}", command=COMMAND, samples=samples, counts={"jobs": jobs})


def _loop() -> float:
    """Return the nanoseconds that one round of a plain loop takes."""

    def plain() -> None:
        total = 0
        for number in range(_LOOPS):
            total += number

    return 1e9 * _seconds(plain) / _LOOPS


if __name__ == "__main__":
    main()
