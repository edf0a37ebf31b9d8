"""A record stays small whatever happens, and no budget notices."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.supervision.budget import Budget
from rallypoint.supervision.folding import LAST_ATTEMPTS, LIMIT, STATUS_LIMIT, bounded, fold, fold_told, news, take_over
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import reconcile
from rallypoint.supervision.record import Attempt, Folded, JobRecord, Slot
from rallypoint.supervision.trimming import MARK, cut, last_lines, size_of, size_of_event
from rallypoint.wire import codec
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, RankGroup, Rung, merge_incidents
from rallypoint.wire.result import RESULT_LIMIT
from rallypoint.wire.sanitize import clean_text
from rallypoint.wire.status import Event, JobState, JobStatus, Outcome, Progress, Verdict
from tests.work import growth

#: What a ConfigMap is promised to need for a record at the most.
PROMISED = 256 * 1024

#: A character that JSON must escape, one of four bytes, and one that no encoding has.
NASTY = "\x01\U0001f525\ud800"


def new_record(**fields) -> JobRecord:
    record = JobRecord.new(name="digits", uid="u1", digest="d1", owner="cli", now=0.0)
    return dataclasses.replace(record, attempt=1, **fields)


def process(round_, *, node=0, attempt=1, text="rank 0 was killed by SIGKILL", healed=True, at=None) -> Incident:
    """A worker's fault in a round."""
    at = float(round_) if at is None else at
    culprit = Culprit(node=node, host="host-1", rank=0, local_rank=0, signal=9, error=text, log_tail=(text,) * 20, at=at)
    return Incident(
        id=IncidentId(attempt=attempt, round=round_, node=node, local_rank=0),
        cause=Cause.PROCESS,
        rung=Rung.RESTART_WORKERS,
        reason=text,
        culprit=culprit,
        detected_at=at,
        healed_at=at + 1 if healed else None,
        clock=at,
    )


def lost(node, incarnation, *, attempt=1, cause=Cause.NODE, text="was lost", healed=True) -> Incident:
    """The end of a slot's node."""
    told = process(0, node=node, attempt=attempt, text=text, healed=healed, at=float(incarnation))
    name = IncidentId(attempt=attempt, round=0, node=node, sequence=incarnation)
    return dataclasses.replace(told, id=name, cause=cause, rung=Rung.RECOVER)


def charged(record: JobRecord) -> dict[tuple[Cause, int, int], int]:
    """How often each cause struck each node of the current attempt, all others by cause; whole or folded alike."""
    counts: dict[tuple[Cause, int, int], int] = {}
    for incident in record.incidents:
        node = incident.id.node if incident.id.attempt == record.attempt and incident.cause is Cause.NODE else -1
        key = (incident.cause, incident.id.attempt, node)
        counts[key] = counts.get(key, 0) + 1
    for folded in record.folded:
        node = folded.node if folded.attempt == record.attempt and folded.cause is Cause.NODE else -1
        key = (folded.cause, folded.attempt, node)
        counts[key] = counts.get(key, 0) + folded.count
    return counts


def spent(record: JobRecord) -> list[int]:
    """What the budgets say: that of processes, and that of each node."""
    budgets = [Budget(cause=Cause.PROCESS, limit=3), *(Budget(cause=Cause.NODE, limit=3, node=n) for n in range(3))]
    return [b.spent(record.incidents, record.attempt, folded=record.folded, clock=record.clock) for b in budgets]


def json_size(record: JobRecord) -> int:
    return len(record.to_json().encode())


# --- Size ------------------------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    ("nodes", "limit"),
    [
        pytest.param(1, LIMIT, id="one node"),
        pytest.param(100, LIMIT, id="a hundred nodes"),
        pytest.param(1000, PROMISED, id="a thousand nodes"),
    ],
)
@pytest.mark.parametrize("text", [pytest.param("worker ended " * 5, id="plain"), pytest.param(NASTY * 400, id="nasty")])
def test_ten_thousand_incidents_fit(nodes, limit, text):
    """Whatever they say, wherever they struck, and none is forgotten: each is there, whole or counted."""
    incidents = [lost(i % nodes, 1 + i // nodes, text=text) for i in range(9000)]
    incidents += [process(1 + i, node=i % nodes, text=text) for i in range(1000)]
    history = tuple(Event(at=1.0, kind="node-lost", detail=text) for _ in range(500))
    record = new_record(
        incidents=tuple(sorted(incidents, key=lambda i: i.id)),
        slots=tuple(Slot(node=n, incarnation=9000, seen=True, pending_clock=12345.678901) for n in range(nodes)),
        history=history,
        verdict=Verdict(outcome=Outcome.FAILED, reason="NodesLost", message=text, culprit=incidents[0].culprit),
    )

    folded = fold(record)

    assert json_size(folded) <= limit
    assert charged(folded) == charged(record)
    assert JobRecord.from_json(folded.to_json()) == fold(JobRecord.from_json(folded.to_json()))


def test_ten_thousand_attempts_fit():
    """The first and the last stay; the numbers of those that stay tell how many went. So do their incidents."""
    told = Progress(step=5, metrics={f"metric-{i}": 1.0 for i in range(100)}, checkpoint="/checkpoints/" * 50)
    attempts = tuple(
        Attempt(number=n, owner="o" * 300, started_at=1e9, ended_at=1e9, reason="r" * 300, message="m" * 3000, progress=told)
        for n in range(1, 10_001)
    )
    incidents = tuple(process(1, attempt=n, text="x" * 500) for n in range(1, 10_001))
    record = dataclasses.replace(new_record(attempts=attempts, incidents=incidents), attempt=10_000)

    folded = fold(record)

    assert json_size(folded) <= LIMIT
    numbers = [attempt.number for attempt in folded.attempts]
    assert numbers == [1, 2, *range(10_001 - LAST_ATTEMPTS, 10_001)]
    assert all(attempt.progress.step == 5 for attempt in folded.attempts)
    assert sum(f.count for f in folded.folded) + len(folded.incidents) == 10_000


def test_an_incident_at_a_time_is_as_good_as_all_at_once():
    """A job folds as it goes; each count is right at every moment, and the record never outgrows its limit."""
    record = new_record()
    for round_ in range(1, 300):
        record = fold(dataclasses.replace(record, incidents=merge_incidents(record.incidents, (process(round_),))))
        assert charged(record) == {(Cause.PROCESS, 1, -1): round_}
    assert json_size(record) <= LIMIT


def test_the_newest_and_the_open_ones_stay_whole():
    """What an on-call engineer asks for is there: the last incidents with their logs, and all that is not healed."""
    open_ = process(1, text="never healed", healed=False)
    record = fold(new_record(incidents=(open_, *(process(r, text="y" * 400) for r in range(2, 1000)))))

    rounds = [incident.id.round for incident in record.incidents]
    assert rounds[0] == 1
    assert rounds[-1] == 999
    newest = record.incidents[-1].culprit
    assert newest is not None
    assert newest.log_tail[-1].startswith("yyy")


def test_a_small_record_is_left_alone():
    """Nothing is cut, folded or copied."""
    record = new_record(incidents=(lost(0, 1), process(1)), attempts=(Attempt(number=1, owner="cli", started_at=0.0),))
    assert fold(record) is record


def test_what_has_not_changed_is_not_looked_at():
    """A turn that changed nothing costs nothing: the parts that are those of the turn before are taken as they are."""
    far_too_long = new_record(history=(Event(at=0.0, kind="x", detail="y" * 10_000),))
    assert fold(far_too_long, far_too_long) is far_too_long


texts = st.one_of(st.text(max_size=40), st.sampled_from([NASTY * 300, "a" * 5000, "é" * 3000, '"\\' * 2000]))


@given(texts, st.integers(20, 2000))
def test_a_text_that_was_cut_says_so(text, most):
    """It fits, it begins as before, it ends with the mark, and cutting again changes nothing."""
    short = cut(text, most)
    assert len(codec.dumps(clean_text(short)).encode()) - 2 <= most
    assert cut(short, most) == short
    if short != text:
        assert short.endswith(MARK)
        assert text.startswith(short.removesuffix(MARK))


@given(st.lists(texts, max_size=5).map(tuple), st.integers(20, 3000))
def test_a_log_keeps_its_last_lines(lines, most):
    """They fit, and the last word is there."""
    kept = last_lines(lines, most)
    assert sum(len(codec.dumps(clean_text(line)).encode()) + 2 for line in kept) <= most
    assert len(kept) >= min(1, len(lines))
    if len(kept) > 1:
        assert kept == lines[-len(kept) :]


@given(texts, texts, st.integers(0, 5))
def test_sizes_are_those_of_the_record(reason, error, round_):
    """What an incident or a line of history is said to take is what it takes, or a little more."""
    one = dataclasses.replace(process(round_ + 1, text=error), reason=reason, rule=error)
    grown = json_size(new_record(incidents=(one, one))) - json_size(new_record(incidents=(one,)))
    assert grown <= size_of(one) <= grown + 500
    line = Event(at=1763740000.123456, kind=reason, detail=error, round=round_)
    grown = json_size(new_record(history=(line, line))) - json_size(new_record(history=(line,)))
    assert grown <= size_of_event(line) <= grown + 40


# --- Counting --------------------------------------------------------------------------------------------------------------


def test_what_is_told_again_is_not_counted_again():
    """The coordinator repeats all it knows on every turn; what was folded meanwhile is dropped, what is new is not."""
    told = tuple(sorted((*(process(r) for r in range(1, 600)), *(lost(1, k) for k in range(1, 50))), key=lambda i: i.id))
    record = fold(new_record(incidents=told))
    assert record.folded
    again = (*told, process(600), lost(1, 50), lost(2, 1), dataclasses.replace(lost(3, 0), cause=Cause.PREEMPTION))

    fresh = news(record, again)
    after = fold(dataclasses.replace(record, incidents=merge_incidents(record.incidents, fresh)))

    expected = charged(record)
    expected[Cause.PROCESS, 1, -1] += 1
    expected[Cause.NODE, 1, 1] += 1
    expected[Cause.NODE, 1, 2] = 1
    expected[Cause.PREEMPTION, 1, -1] = 1
    assert charged(after) == expected


def test_a_free_end_stays_free_when_it_is_told_by_another_name():
    """A preempted node that was folded costs nothing when the coordinator calls it lost."""
    record = new_record(
        folded=(Folded(cause=Cause.PREEMPTION, attempt=1, node=4, count=3, first_at=0.0, last_at=1.0, sequence=3),)
    )
    assert news(record, (lost(4, 3), lost(4, 4))) == (lost(4, 4),)


def test_other_attempts_count_for_themselves():
    """What was folded in an attempt says nothing of the same round or node in another; there the nodes are put together."""
    first = fold(new_record(incidents=tuple(lost(n, k, text="z" * 300) for n in range(4) for k in range(1, 200))))
    assert {f.node for f in first.folded} == {0, 1, 2, 3}
    second = fold(dataclasses.replace(first, attempt=2), first)
    assert news(second, (lost(0, 1, attempt=2),)) == (lost(0, 1, attempt=2),)
    assert {f.node for f in second.folded} == {-1}
    assert sum(f.count for f in second.folded) + len(second.incidents) == 4 * 199


events = st.lists(st.tuples(st.sampled_from(["process", "node", "preempted"]), st.integers(0, 2), st.booleans()), max_size=30)


@settings(max_examples=30)
@given(events, st.integers(1, 20))
def test_folding_charges_what_not_folding_charges(trace, every):
    """For any story, told again and again by the coordinator: a record that folds counts what one does that keeps all."""
    plain, folding = new_record(), new_record()
    told: tuple[Incident, ...] = ()
    rounds, incarnations = 0, {0: 0, 1: 0, 2: 0}
    for turn, (what, node, healed) in enumerate(trace * 3):
        if what == "process":
            rounds += 1
            new = process(rounds, node=node, healed=healed, text="t" * 900)
        else:
            incarnations[node] += 1
            cause = Cause.NODE if what == "node" else Cause.PREEMPTION
            new = lost(node, incarnations[node], cause=cause, healed=healed, text="t" * 900)
        told = merge_incidents(told, (new,))
        if turn % every:
            continue
        plain = dataclasses.replace(plain, incidents=merge_incidents(plain.incidents, told))
        folding = dataclasses.replace(folding, incidents=merge_incidents(folding.incidents, news(folding, told)))
        folding = JobRecord.from_json(fold(folding).to_json())
        assert charged(folding) == charged(plain)
        assert spent(folding) == spent(plain)


# --- The coordinator's side ------------------------------------------------------------------------------------------------


def published(incidents, folded=(), **fields) -> JobStatus:
    fence = Fence(attempt=1, term=1, round=1)
    return JobStatus(job="digits", uid="u1", fence=fence, state=JobState.RUNNING, incidents=incidents, folded=folded, **fields)


def test_a_status_stays_small():
    """Ten thousand restarts and the longest texts fit into what the coordinator publishes."""
    incidents, folded = fold_told(tuple(process(r, text=NASTY * 300) for r in range(1, 10_001)), (), 1)
    story = tuple(Event(at=0.0, kind="regroup", detail=NASTY * 300) for _ in range(300))

    status = bounded(published(incidents, folded, events=story, progress=Progress(step=1, metrics={"é" * 5000: 1.0})))

    assert len(codec.dumps(status, indent=1).encode()) <= STATUS_LIMIT
    assert len(incidents) + sum(f.count for f in folded) == 10_000
    assert bounded(status) is status


def test_status_and_record_stay_small_with_the_largest_result():
    """The result is told whole, and everything else has the room that is left; no fault is lost from the counts."""
    result = "x" * (RESULT_LIMIT - 2)
    incidents, folded = fold_told(tuple(process(r, text=NASTY * 300) for r in range(1, 1001)), (), 1)
    story = tuple(Event(at=0.0, kind="regroup", detail=NASTY * 300) for _ in range(300))

    status = bounded(published(incidents, folded, events=story, result=result))
    record = fold(new_record(incidents=status.incidents, folded=status.folded, history=story * 3, result=result))

    assert len(codec.dumps(status).encode()) <= STATUS_LIMIT
    assert json_size(record) <= LIMIT
    assert status.result == record.result == result
    assert len(status.incidents) + sum(f.count for f in status.folded) == 1000


@pytest.mark.parametrize(
    "seen",
    [pytest.param(0, id="nobody supervised"), pytest.param(300, id="a supervisor saw a part"), pytest.param(1000, id="all")],
)
def test_a_record_takes_over_what_the_coordinator_folded(seen):
    """However much of it a supervisor saw, the record counts each fault once."""
    told = tuple(process(r, text="w" * 500) for r in range(1, 1001))
    record = fold(new_record(incidents=told[:seen], clock=77.0))
    incidents, folded = fold_told(told, (), 1)

    for _ in range(2):
        record = take_over(record, folded)
        record = fold(dataclasses.replace(record, incidents=merge_incidents(record.incidents, news(record, incidents))))
        assert charged(record) == {(Cause.PROCESS, 1, -1): 1000}


def test_a_hostile_record_is_folded_in_time_that_grows_with_its_size():
    """A script can write 4,096 counts into record and status each, or 40,000 groups of ranks into one incident."""

    def taking_over(count):
        ours = [Folded(cause=Cause.NODE, attempt=1, node=n, count=1, first_at=1.0, last_at=2.0, round=1) for n in range(count)]
        told = tuple(dataclasses.replace(f, count=9, round=2) for f in ours)
        record = new_record(folded=tuple(ours), incidents=tuple(lost(n, 1) for n in range(count)))
        return lambda: take_over(record, told)

    def folding(count):
        groups = tuple(RankGroup(ranks=(), life=n) for n in range(count))
        record = new_record(incidents=(dataclasses.replace(process(1), evidence=groups),))
        return lambda: fold(record)

    assert growth(taking_over, 200) < 6
    assert growth(folding, 200) < 6
    many = dataclasses.replace(process(1), evidence=(RankGroup(ranks=()),) * 900)
    (incident,) = fold(new_record(incidents=(many,))).incidents
    assert 1 <= len(incident.evidence) <= 20


def test_a_record_takes_over_no_number_of_counts_that_it_cannot_hold():
    """A script can write other counts into each status; those that the record has are still brought up to date."""
    record = new_record()
    for turn in range(5):
        nodes = range(turn * 4096, (turn + 1) * 4096)
        told = tuple(Folded(cause=Cause.NODE, attempt=1, node=n, count=1, first_at=1.0, last_at=2.0, round=1) for n in nodes)
        record = take_over(record, told)
    record = take_over(record, (dataclasses.replace(record.folded[0], count=9, round=2),))

    assert len(record.folded) == 1024
    assert record.folded[0].count == 9
    assert JobRecord.from_json(record.to_json()) == record


def test_counts_of_another_attempt_are_not_taken_over():
    """A status that is out of date changes nothing."""
    _, folded = fold_told(tuple(process(r, text="w" * 500) for r in range(1, 1001)), (), 1)
    record = dataclasses.replace(new_record(), attempt=2)
    assert take_over(record, folded) is record


def test_the_core_folds_what_it_is_told():
    """A coordinator that tells of ever more faults fills no record; each is charged once, whole or folded."""
    policy = Policy(min_nodes=1, max_nodes=1)
    node = NodeSeen(attempt=1, node=0, incarnation=1, state=NodeState.RUNNING, present=True)
    coordinator = dataclasses.replace(node, node=-1)
    record = reconcile(JobRecord.new(name="d", uid="u1", digest="d", owner="cli", now=0.0), Observation(), policy, 0.0).record
    for turn in range(1, 6):
        incidents, folded = fold_told(tuple(process(r, text="w" * 900) for r in range(1, 100 * turn)), (), 1)
        status = published(incidents, folded)
        seen = Observation(nodes=(node,), coordinators=(coordinator,), status=status)
        record = JobRecord.from_json(reconcile(record, seen, policy, float(turn)).record.to_json())
        assert record.folded
        assert Budget(cause=Cause.PROCESS, limit=3).spent(record.incidents, 1, folded=record.folded) == 100 * turn - 1
    assert json_size(record) <= LIMIT
