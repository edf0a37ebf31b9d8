"""The rung `dump`: when it answers, what is asked of whom, and what the verdict says of it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.capabilities.snapshots.coordinator import Snapshots, choose
from rallypoint.capabilities.snapshots.keeper import SnapshotKeeper
from rallypoint.capabilities.snapshots.node import CheckpointSaver
from rallypoint.capabilities.snapshots.wire import HeldParts, ReplySection, SavePhase, SaveRequest, SaveResult
from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.wire import codec, env
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import DUMP_TIMEOUT, Cause, Rung
from rallypoint.wire.messages import AgentState, Assignment, Continue, Stop, reply_from_json, reply_to_json
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build
from rallypoint.wire.status import NODE_LOST, JobState
from tests.agent.test_rendezvous import TWO, answers, killed, report, say, training
from tests.agent.test_rungs import mindcluster
from tests.capabilities.snapshots.test_replicas import FENCE, leave
from tests.waiting import eventually_async

ONCE = dataclasses.replace(TWO, max_restarts=0)
ECHO = dataclasses.replace(killed(1), signal=None, exit_code=1, error="RuntimeError: Connection closed by peer")


def kept(step: int, *ranks: int, size: int = 2, whole: bool = False) -> HeldParts:
    return HeldParts(fence=FENCE, step=step, world_size=size, ranks=ranks, whole=whole)


def broken(settings: Settings = ONCE, *, dumps: bool = True) -> State:
    """Return a job of two nodes in which a worker was killed; both wait, with nothing left."""
    state = training(settings, registered=(Snapshots(),))
    state = say(state, *(report(n, AgentState.RUNNING, 1, dumps=dumps) for n in (0, 1)), now=40.0)
    state = say(state, report(0, AgentState.FAILED, 1, failures=(killed(0),), dumps=dumps), now=50.0)
    return say(state, *(report(n, round_=1, dumps=dumps) for n in (0, 1)), now=51.0)


def asked(state: State) -> list[SaveRequest | None]:
    """Return what each node is asked."""
    return [ReplySection.of(reply).dump if isinstance(reply, Continue) else None for reply in answers(state, "0.1", "1.1")]


def tell(state: State, node: int, phase: SavePhase, now: float = 52.0, **fields: object) -> State:
    told = SaveResult(number=1, phase=phase, **fields)  # type: ignore[arg-type]
    return say(state, report(node, round_=1, dumps=True, dump=told), now=now)


def rungs_of(state: State) -> list[Rung]:
    return [incident.rung for incident in state.incidents]


def test_the_last_snapshot_is_written_before_the_verdict() -> None:
    """All tell, each writes its share, one commits; no round is formed meanwhile, and the budget is charged once."""
    state = broken()
    assert (state.state, state.verdict, rungs_of(state)) == (JobState.FORMING, None, [Rung.DUMP])
    assert [ask.phase for ask in asked(state) if ask] == [SavePhase.TELL] * 2

    state = tell(state, 0, SavePhase.TELL, kept=(kept(8, 0), kept(7, 0)))
    assert [ask is None for ask in asked(state)] == [True, False]
    state = tell(state, 1, SavePhase.TELL, kept=(kept(7, 1), kept(6, 1)))
    write = SaveRequest(number=1, phase=SavePhase.WRITE, fence=FENCE, step=7, ranks=(0,))
    assert asked(state) == [write, dataclasses.replace(write, ranks=(1,))]

    for node in (1, 0):
        state = tell(state, node, SavePhase.WRITE, checkpoint="step-7")
    assert asked(state) == [dataclasses.replace(write, phase=SavePhase.COMMIT), None]
    state = tell(state, 0, SavePhase.COMMIT, checkpoint="step-7")

    assert state.verdict is not None
    assert "restarts are disabled (the limit is 0); saved a last checkpoint of step 7: step-7" in state.verdict.message
    assert (rungs_of(state), state.state) == ([Rung.DUMP], JobState.FAILED)
    assert all(isinstance(reply, Stop) for reply in answers(state, "0.1", "1.1"))


def test_who_holds_nothing_ends_at_once() -> None:
    """As it was before there was this rung."""
    state = broken(dumps=False)
    assert (rungs_of(state), state.state) == ([Rung.EXIT], JobState.FAILED)


def test_a_cheaper_rung_comes_first() -> None:
    """As long as a restart is left nobody dumps."""
    state = broken(TWO)
    assert rungs_of(state) == [Rung.RESTART_WORKERS]
    assert all(isinstance(reply, Assignment) for reply in answers(state, "0.1", "1.1"))


@pytest.mark.parametrize(
    ("settings", "rung"),
    [
        pytest.param(mindcluster("dump"), Rung.DUMP, id="it is the best that is configured"),
        pytest.param(mindcluster("retry", "recover", "dump"), Rung.DUMP, id="the processes can nothing else"),
        pytest.param(mindcluster("retry", "recover"), Rung.RESTART_WORKERS, id="it is not configured"),
        pytest.param(mindcluster("dump", process_recover="pause"), Rung.RESTART_WORKERS, id="paused"),
    ],
)
def test_mindcluster_dumps_where_its_strategies_say_so(settings: Settings, rung: Rung) -> None:
    """There it comes before a restart of all workers, which is the supervisor's next attempt."""
    assert rungs_of(broken(settings)) == [rung]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        pytest.param("nothing whole", "no complete snapshot is available", id="a shard is nowhere"),
        pytest.param("a full disk", "no room for 7 bytes", id="it cannot be written"),
        pytest.param("a lost agent", "a node that stores a part of the snapshot was lost", id="an agent is lost"),
        pytest.param("too late", f"the checkpoint was not written within {DUMP_TIMEOUT:g} s", id="it takes too long"),
    ],
)
def test_a_dump_that_fails_ends_the_job_all_the_same(what: str, why: str) -> None:
    """The verdict says why there is none, and the incident that the job just ended."""
    state = broken()
    state = tell(state, 0, SavePhase.TELL, kept=(kept(7, 0),))
    state = tell(state, 1, SavePhase.TELL, kept=(kept(6 if what == "nothing whole" else 7, 1),))
    if what == "a full disk":
        state = tell(state, 0, SavePhase.WRITE, checkpoint="step-7")
        state = tell(state, 1, SavePhase.WRITE, error="no room for 7 bytes")
    elif what == "a lost agent":
        state = rendezvous.disconnected(state, "agent-1.1", 53.0)
        state = rendezvous.tick(state, 53.0 + rendezvous.RECONNECT_WITHIN)
    elif what == "too late":
        at = rendezvous.deadline(state)
        assert at is not None
        assert at < 51.0 + DUMP_TIMEOUT
        state = say(state, *(report(n, round_=1, dumps=True) for n in (0, 1)), now=50.0 + DUMP_TIMEOUT)

    assert state.verdict is not None
    assert f"; cannot save a last checkpoint: {why}" in state.verdict.message
    assert [i.rung for i in state.incidents if i.cause is Cause.PROCESS] == [Rung.EXIT]


def lost_master(*, dumps: bool) -> State:
    """Return a MindCluster job whose node 0 was lost at 50, where the last report of node 1 knows a snapshot or not."""
    state = training(mindcluster("recover", "dump"), registered=(Snapshots(),))
    state = say(state, *(report(n, AgentState.RUNNING, 1, dumps=dumps) for n in (0, 1)), now=40.0)
    state = rendezvous.disconnected(state, "agent-0.1", 50.0)
    return rendezvous.tick(state, 50.0 + rendezvous.RECONNECT_WITHIN)


def test_a_snapshot_newer_than_the_last_report_is_saved_all_the_same() -> None:
    """The first snapshot of the survivor was complete after its last report: nothing is decided before it has regrouped."""
    state = lost_master(dumps=False)
    assert (state.verdict, rungs_of(state)) == (None, [Rung.RECOVER])

    state = say(state, report(1, round_=1, dumps=True), now=51.0)
    assert (state.verdict, rungs_of(state)) == (None, [Rung.DUMP])
    state = tell(state, 1, SavePhase.TELL, kept=(kept(7, 1, whole=True),))
    for phase in (SavePhase.WRITE, SavePhase.COMMIT):
        state = tell(state, 1, phase, checkpoint="step-7")
    assert state.verdict is not None
    assert "saved a last checkpoint of step 7: step-7" in state.verdict.message
    assert rungs_of(state) == [Rung.DUMP]


def test_that_there_is_nothing_to_save_is_final() -> None:
    """The supervisor deletes the nodes as soon as it reads `exit`: a checkpoint that begins later would be torn."""
    state = say(lost_master(dumps=False), report(1, round_=1), now=51.0)
    assert rungs_of(state) == [Rung.EXIT]

    state = say(state, report(1, round_=1, dumps=True), now=52.0)
    assert (state.held_verdict, rungs_of(state)) == (None, [Rung.EXIT])


def test_all_survivors_are_asked_before_a_snapshot_is_chosen() -> None:
    """Node 1 holds the other shard, but its last report is older: it is waited for, and asked when it has regrouped."""
    state = say(training(ONCE, registered=(Snapshots(),)), report(1, AgentState.RUNNING, 1), now=40.0)
    state = say(state, report(0, AgentState.FAILED, 1, failures=(killed(0),), dumps=True), now=50.0)
    state = tell(state, 0, SavePhase.TELL, kept=(kept(7, 0),))
    assert (state.verdict, rungs_of(state)) == (None, [Rung.DUMP])

    state = say(state, report(1, round_=1, dumps=True), now=53.0)
    assert [ask and ask.phase for ask in asked(state)] == [None, SavePhase.TELL]
    state = tell(state, 1, SavePhase.TELL, kept=(kept(7, 1),), now=54.0)
    assert [ask and ask.phase for ask in asked(state)] == [SavePhase.WRITE] * 2


@pytest.mark.parametrize("nodes", [(0,), (1, 0)], ids=["node 0", "node 1, then node 0"])
def test_drained_pods_leave_a_last_checkpoint(nodes: tuple[int, ...]) -> None:
    """Node 0 cannot be replaced alone, also where it leaves while the replacement of another node is awaited."""
    settings = dataclasses.replace(mindcluster("recover", "dump"), min_nodes=3, max_nodes=3)
    state = training(settings, nodes=3, registered=(Snapshots(),))
    state = say(state, *(report(n, AgentState.RUNNING, 1, dumps=True) for n in range(3)), now=40.0)
    for node in nodes:
        state = say(state, report(node, AgentState.LEAVING, 1, reason="its agent was ended by SIGTERM"), now=50.0)
    state = say(state, report(2, round_=1, dumps=True), now=51.0)

    assert rungs_of(state).count(Rung.DUMP) == 1
    assert state.held_verdict is not None
    assert state.held_verdict.reason == NODE_LOST
    [reply] = answers(state, "2.1")
    assert isinstance(reply, Continue)
    assert ReplySection.of(reply).dump is not None


def echoed(settings: Settings) -> State:
    """Return a job of two nodes of which one told of lost connections only; both are back before the cause was known."""
    state = training(settings, registered=(Snapshots(),))
    state = say(state, *(report(n, AgentState.RUNNING, 1, dumps=True, keeps=2, resizable=True) for n in (0, 1)), now=40.0)
    state = say(state, report(1, AgentState.FAILED, 1, failures=(ECHO,), dumps=True, keeps=2, resizable=True), now=50.0)
    return say(state, *(report(n, round_=1, dumps=True, keeps=2, resizable=True) for n in (1, 0)), now=50.1)


def test_no_round_is_formed_when_an_echo_is_charged_with_a_last_checkpoint() -> None:
    """All are back, so the echo is charged at once; the dump that answers it is the only incident of the job."""
    state = echoed(mindcluster("dump"))
    assert (state.state, state.fence.round, rungs_of(state)) == (JobState.FORMING, 1, [Rung.DUMP])
    assert [ask and ask.phase for ask in asked(state)] == [SavePhase.TELL] * 2


def test_the_pod_that_an_echo_costs_is_not_in_the_next_round() -> None:
    """It was told to leave when the echo was charged: a round with it would end at once."""
    settings = mindcluster("recover", "dump")
    assert settings.scheduling is not None
    budgeted = dataclasses.replace(settings.scheduling, fault_retry_times=1)
    state = echoed(dataclasses.replace(settings, scheduling=budgeted))
    assert (state.state, state.fence.round, rungs_of(state)) == (JobState.FORMING, 1, [Rung.RECOVER])
    assert state.away == {"agent-1.1"}


def test_a_coordinator_that_takes_over_begins_again() -> None:
    """It must not take the job for one that may restart its workers."""
    before = rendezvous.status(broken(), 52.0)
    state = rendezvous.new(
        ONCE, job="digits", uid=before.uid, attempt=1, term=2, now=0.0, previous=before, registered=(Snapshots(),)
    )
    state = say(state, *(report(n, round_=1, dumps=True) for n in (0, 1)), now=1.0)
    assert (state.verdict, [ask.phase for ask in asked(state) if ask]) == (None, [SavePhase.TELL] * 2)


def test_words_go_over_the_wire() -> None:
    """And an earlier version's have none of them."""
    reply = build(Continue, fence=FENCE, dump=SaveRequest(number=1, phase=SavePhase.WRITE, fence=FENCE, step=7, ranks=(0, 1)))
    assert reply_from_json(reply_to_json(reply)) == reply
    told = report(0, dumps=True, dump=SaveResult(number=1, phase=SavePhase.TELL, kept=(kept(7, 0),)))
    assert codec.loads(type(told), codec.dumps(told)) == told


HELD = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.builds(kept, st.integers(1, 4), st.integers(0, 2), size=st.just(3)), max_size=4),
)


@given(HELD)
def test_every_part_of_what_is_chosen_has_one_writer_who_holds_it(held: dict[str, list[HeldParts]]) -> None:
    """And nothing newer is complete."""
    chosen = choose(held)
    steps = {kept.step for parts in held.values() for kept in parts}
    complete = [s for s in steps if {r for parts in held.values() for k in parts if k.step == s for r in k.ranks} == {0, 1, 2}]
    if chosen is None:
        assert not complete
        return
    fence, step, shares = chosen
    assert (fence, step) == (FENCE, max(complete))
    assert sorted(rank for ranks in shares.values() for rank in ranks) == [0, 1, 2]
    for agent, ranks in shares.items():
        assert set(ranks) <= {rank for k in held[agent] if k.step == step for rank in k.ranks}


def test_of_whole_states_one_is_enough() -> None:
    """Every node has all of it."""
    held = {"b": [kept(7, 1, whole=True)], "a": [kept(7, 0, whole=True), kept(6, 0, whole=True)]}
    assert choose(held) == (FENCE, 7, {"a": (0,)})


@pytest.mark.may_block("the test itself leaves files and looks at them")
async def test_agents_write_their_shares_and_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No manifest before that; a part that no longer exists is said."""
    monkeypatch.setattr("rallypoint.capabilities.snapshots.keeper.shared_memory", lambda _: tmp_path / "shm")
    storage = tmp_path / "storage"
    plan = Plan(
        name="job", role="t", min_nodes=2, max_nodes=2, entry=Entry.SCRIPT, entrypoint="x.py", checkpoint_dir=str(storage)
    )
    keepers = [SnapshotKeeper(plan, tmp_path) for _ in range(2)]
    savers = [CheckpointSaver(keeper, lambda: None) for keeper in keepers]
    for rank, keeper in enumerate(keepers):
        await keeper.begin()
        assert not keeper.can_dump
        leave(Path(keeper.environment()[env.SNAPSHOT_DIR]), 7, rank=rank)
        assert keeper.can_dump

    async def said(node: int, ask: SaveRequest) -> SaveResult:
        savers[node].save(ask)

        def answer() -> SaveResult | None:
            told = savers[node].result
            return told if told is not None and (told.number, told.phase) == (ask.number, ask.phase) else None

        return await eventually_async(answer)

    tells = [await said(node, SaveRequest(number=1, phase=SavePhase.TELL)) for node in (0, 1)]
    chosen = choose({str(node): told.kept for node, told in enumerate(tells)})
    assert chosen == (FENCE, 7, {"0": (0,), "1": (1,)})
    ask = SaveRequest(number=1, phase=SavePhase.WRITE, fence=FENCE, step=7)
    commit = dataclasses.replace(ask, phase=SavePhase.COMMIT, ranks=(0,))
    first = await said(0, dataclasses.replace(ask, ranks=(0,)))
    assert "parts of the snapshot are missing" in (await said(0, commit)).error
    await said(1, dataclasses.replace(ask, ranks=(1,)))
    assert FolderStore(storage).complete() == []
    done = await said(0, dataclasses.replace(commit, number=2))
    (manifest,) = FolderStore(storage).complete()
    assert (done.checkpoint, manifest.step, manifest.world_size) == (first.checkpoint, 7, 2)
    gone = await said(1, dataclasses.replace(ask, number=3, step=8, ranks=(1,)))
    assert "are missing on this node" in gone.error
    await asyncio.gather(*(keeper.close() for keeper in keepers))


def test_fences_of_a_chosen_one_are_compared_first() -> None:
    """A step of an older round may have a higher number."""
    newer = dataclasses.replace(kept(3, 0, 1), fence=Fence(attempt=1, term=1, round=2))
    assert choose({"a": [kept(9, 0, 1), newer]}) == (newer.fence, 3, {"a": (0, 1)})
