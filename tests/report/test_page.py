"""What the page says of a job in each of its states."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest

from rallypoint.plugin.task import map_index_of
from rallypoint.report import headline, timeline
from rallypoint.report.model import Mood, State
from rallypoint.report.page.published import LIMIT
from rallypoint.report.page.values import Page
from rallypoint.report.page.view import as_of, curves, keepsake, page_of
from rallypoint.supervision.record import Attempt, ConditionType, Phase
from rallypoint.wire import codec
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Cause, FaultKind, RankGroup, Rung
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import Event, Sample
from tests.cli.samples import PLAN
from tests.plugin import scenes
from tests.plugin.scenes import OWNER, START
from tests.work import growth


def facts(page: Page) -> dict[str, str]:
    return {fact.label: fact.text for fact in page.facts}


def test_a_job_that_runs_asks_for_nothing():
    """Its world, its step, and that nobody has to do anything."""
    page = scenes.page(scenes.running())

    assert (page.state, page.mood, page.live) == (State.RUNNING, Mood.GOOD, True)
    assert page.title == "Training on 4 nodes, 32 ranks"
    assert "No action needed" in page.advice
    assert facts(page)["World"] == "32"
    assert facts(page)["Faults"] == "0"
    assert page.timeline is not None
    assert [p.label for p in page.timeline.phases] == ["Submitted", "Resuming", "Running"]
    assert [a.label for a in page.timeline.attempts] == ["Attempt 1 (try 2)"]


def test_a_job_that_recovered_says_what_broke_and_what_it_cost():
    """Which rank on which host, which rung, healed when, and how many steps were trained again."""
    page = scenes.page(scenes.recovered())

    assert page.state is State.RECOVERED
    assert "recovered from 2 faults" in page.title
    worker, node = page.faults
    assert (worker.where, worker.ended, worker.rung) == ("rank 11 on node 1 (gpu-07)", "SIGKILL", "restart-workers")
    assert worker.healed_at == START + 223.4
    assert worker.steps_lost == 23
    assert node.host == "gpu-11"
    assert facts(page)["Steps lost"] == str(23 + 51)
    assert page.timeline is not None
    assert [r.label for r in page.timeline.rounds] == [
        "Round 1: 32 ranks",
        "Round 2: 32 ranks",
        "Round 3: 24 ranks",
        "Round 4: 32 ranks",
    ]


def test_a_job_that_failed_names_who_broke_and_what_to_do():
    """The culprit's last lines, and where it goes on once the script is mended."""
    page = scenes.page(scenes.failed())

    assert (page.state, page.mood, page.live) == (State.FAILED, Mood.BAD, False)
    assert "rank 27 on node 3 (gpu-12) exited with code 1: FloatingPointError" in page.title
    assert "clear the task" in page.advice
    assert "/runs/nightly/step-1200" in page.advice
    last = page.faults[-1]
    assert last.mood is Mood.BAD
    assert last.tail[-1] == "FloatingPointError: loss is not finite at step 1203"
    assert page.logs[0].rank == 27
    assert page.logs[0].command.endswith("--backend kubernetes --namespace training --rank 27")


def test_the_time_is_told_without_gaps_and_sums_up():
    """Every second from the submission on went to something, and the parts are the whole."""
    for scene in (scenes.running, scenes.recovered, scenes.failed):
        page = scenes.page(scene())
        assert page.timeline is not None
        assert page.goodput is not None
        work = page.timeline.work
        assert work[0].start == page.timeline.start
        assert work[-1].end == page.timeline.end
        assert all(earlier.end == later.start for earlier, later in itertools.pairwise(work))
        lost = sum(share.seconds for share in page.goodput.lost)
        assert page.goodput.trained + lost == pytest.approx(page.goodput.total, abs=0.01)
        assert page.goodput.total == pytest.approx(page.timeline.end - page.timeline.start)


def test_time_is_lost_to_its_cause():
    """A worker's fault, a node's, starting up, and the steps that were trained again, each by itself."""
    page = scenes.page(scenes.recovered())
    assert page.goodput is not None
    lost = {share.kind: share.seconds for share in page.goodput.lost}

    assert lost["process"] == pytest.approx(9.4)
    assert lost["node"] == pytest.approx(11.2)
    assert lost["queued"] == pytest.approx(42)
    assert lost["starting"] == pytest.approx(37.2)
    assert lost["again"] == pytest.approx((23 + 51) / 2.9, rel=0.1)


def test_a_reset_and_a_suspension_are_told_apart():
    """Time between two attempts is the reset's, unless somebody suspended the job."""
    record, _ = scenes.running()
    first = dataclasses.replace(record.attempts[0], ended_at=START + 100, reason="WorkersFailed")
    second = Attempt(
        number=2, owner=OWNER, started_at=START + 190, ready_at=START + 200, ended_at=START + 300, reason="Suspended"
    )
    third = Attempt(number=3, owner=OWNER, started_at=START + 500, ready_at=START + 510)
    record = dataclasses.replace(record, attempt=3, attempts=(first, second, third))

    told = timeline.goodput(timeline.work(record, None, (), until=START + 560))
    lost = {share.kind: share.seconds for share in told.lost}

    assert lost == {"reset": 90, "suspended": 200, "queued": 42, "starting": 31 + 10 + 10}
    assert told.trained == (100 - 31) + (300 - 200) + (560 - 510)


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_its_words(cause):
    """An incident of any cause can be shown, and its time has a name."""
    record, status = scenes.recovered()
    assert status is not None
    incidents = (dataclasses.replace(status.incidents[0], cause=cause, healed_at=None),)
    page = page_of(
        dataclasses.replace(record, incidents=incidents), dataclasses.replace(status, incidents=incidents), now=START + 1180
    )

    assert page.faults[0].cause
    assert page.timeline is not None
    assert all(part.label for part in page.timeline.work)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_kind_of_end_has_its_advice(kind):
    """A job that failed always says what to do."""
    record, status = scenes.failed()
    assert record.verdict is not None
    assert record.verdict.culprit is not None
    culprit = dataclasses.replace(record.verdict.culprit, kind=kind)
    record = dataclasses.replace(record, verdict=dataclasses.replace(record.verdict, culprit=culprit))

    assert len(page_of(record, status, now=as_of(record, status)).advice) > 40


@pytest.mark.parametrize("rung", list(Rung))
def test_every_rung_has_its_words(rung):
    """What was done about a fault can be told, whatever it was."""
    record, status = scenes.recovered()
    assert status is not None
    incidents = tuple(dataclasses.replace(i, rung=rung) for i in status.incidents)
    page = page_of(
        dataclasses.replace(record, incidents=incidents), dataclasses.replace(status, incidents=incidents), now=START + 1180
    )

    assert all(fault.done.startswith(rung.value) for fault in page.faults)


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_its_page(phase):
    """Also without a status: from the first moment of a job to the last."""
    record = dataclasses.replace(scenes.submitted(), phase=phase)
    page = page_of(record, None, now=as_of(record, None))

    assert page.title
    assert page.advice


def test_a_fault_that_is_being_mended_says_so():
    """An incident of this attempt that is not healed is the first thing that is read."""
    record, status = scenes.recovered()
    assert status is not None
    open_ = tuple(dataclasses.replace(i, healed_at=None) for i in status.incidents)
    page = page_of(dataclasses.replace(record, incidents=open_), dataclasses.replace(status, incidents=open_), now=START + 1180)

    assert page.state is State.RECOVERING
    assert page.title.startswith("Recovering: node 2 on gpu-11")


def test_a_host_that_breaks_again_and_again_is_pointed_at():
    """What has healed by itself twice on one host is worth a look."""
    record, status = scenes.recovered()
    assert status is not None
    again = dataclasses.replace(
        status.incidents[0],
        id=dataclasses.replace(status.incidents[0].id, round=3),
        detected_at=START + 900,
        healed_at=START + 905,
    )
    status = dataclasses.replace(status, incidents=(*status.incidents, again))

    assert "gpu-07 had 2 of the faults" in page_of(record, status, now=START + 1180).advice


def test_the_status_of_an_earlier_attempt_is_left_out():
    """What the last attempt's coordinator said is no news of this one."""
    record, status = scenes.running()
    later = Attempt(number=2, owner=OWNER, started_at=START + 600)
    record = dataclasses.replace(record, attempt=2, attempts=(*record.attempts, later), phase=Phase.RESUMING)
    page = page_of(record, status, now=START + 610)

    assert page.nodes == ()
    assert page.curves == ()


def test_curves_break_where_rounds_end():
    """Steps lost are no slope, and between two rounds there is no rate."""
    page = scenes.page(scenes.recovered())
    curves = {curve.name: curve for curve in page.curves}

    assert set(curves) == {"Step", "Steps per second", "loss", "lr", "World size"}
    assert sum(1 for point in curves["Step"].points if point.value is None) == 3
    assert [point.value for point in curves["World size"].points][:3] == [32, 24, 32]
    rates = [point.value for point in curves["Steps per second"].points if point.value is not None]
    assert max(rates) == pytest.approx(2.9, rel=0.2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_tell_is_left_out(value):
    """A loss that is no number is a break in its curve, and the answer is JSON for any browser."""
    record, status = scenes.running()
    assert status is not None
    broken = dataclasses.replace(status.samples[-1], at=START + 559.9, metrics={"loss": value})
    status = dataclasses.replace(
        status,
        samples=(*status.samples, broken),
        progress=dataclasses.replace(status.progress, metrics={"loss": value}),
    )

    text = codec.dumps(page_of(record, status, now=START + 560))

    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_large_world_is_shown_by_node():
    """Sixteen thousand ranks are told as their nodes, in an answer that a browser can take."""
    record, status = scenes.running()
    assert status is not None
    world = tuple(dataclasses.replace(scenes.member(0, place), node=place, host=f"host-{place}") for place in range(2048))
    page = page_of(record, dataclasses.replace(status, world=world), now=START + 560)

    assert len(page.nodes) == 2048
    assert all(node.ranks == () for node in page.nodes)
    assert page.nodes[0].state == "trains"


def test_without_any_sample_there_is_still_a_page():
    """A coordinator of the version before ours tells no curve."""
    record, status = scenes.recovered()
    assert status is not None
    page = page_of(record, dataclasses.replace(status, samples=()), now=START + 1180)

    assert page.curves == ()
    assert page.goodput is not None
    assert page.goodput.trained > 0


def test_the_page_says_when_it_is_of():
    """It counts up to the newest word and no further, so that the same job is the same page, with the same ETag."""
    record, status = scenes.running()
    ended, its = scenes.failed()

    assert as_of(record, status) == START + 560
    assert as_of(ended, its) == START + 641
    assert scenes.page(scenes.running()) == scenes.page(scenes.running())


def test_ids_of_tries_are_told_as_tries():
    """Nobody knows a task instance's id by heart."""
    page = scenes.page(scenes.running())

    assert OWNER not in codec.dumps(page)
    assert any(line.text == "submitted: by try 2 of this task" for line in page.story)


def test_what_a_task_keeps_is_small_and_holds_no_log():
    """What the script wrote stays in its log; the page survives being stored and read again."""
    kept = keepsake(scenes.page(scenes.failed()))

    text = codec.dumps(kept)
    assert "Traceback" not in text
    assert len(text) < LIMIT
    assert not kept.live
    assert kept.kept
    assert codec.loads(Page, text) == kept


def test_the_words_for_nothing_say_what_to_do():
    """No job, a job that is gone, a place that does not answer."""
    assert "ElasticTrainingOperator" in headline.no_job().advice
    assert "digits" in headline.no_data("digits").title
    assert "not affected" in headline.unreachable("digits", "no route to host").advice


@pytest.mark.parametrize(
    ("text", "index"),
    [("3", 3), ("0", 0), ("-1", -1), ("{MAP_INDEX}", -1), ("", -1), (None, -1), ("-7", -1), ("x", -1), ("9" * 4000, -1)],
)
def test_a_map_index_is_read_as_the_ui_writes_it(text, index):
    """For a task that is not mapped the placeholder stays as it is."""
    assert map_index_of(text) == index


def test_events_that_the_history_tells_are_told_once():
    """One line for one thing."""
    record, status = scenes.running()
    assert status is not None
    status = dataclasses.replace(
        status, events=(*status.events, Event(at=START + 33, kind="round", detail="round 1: 4 nodes, 32 ranks"))
    )
    texts = [line.text for line in page_of(record, status, now=START + 560).story]

    assert len(texts) == len(set(texts)) + 1  # the coordinator itself said it twice


def test_steps_without_a_round_are_drawn():
    """The newest samples may be all that is left of a round."""
    record, status = scenes.running()
    assert status is not None
    samples = tuple(Sample(at=START + at, round=1, world_size=32, step=int(at)) for at in (50.0, 60.0))
    page = page_of(record, dataclasses.replace(status, samples=samples), now=START + 560)

    assert next(curve for curve in page.curves if curve.name == "Steps per second").last == "1"


def test_a_rank_is_behind_when_it_is_by_seconds():
    """Agents speak at different moments, so that a step or two between ranks means nothing."""
    cells = {cell.rank: cell for node in scenes.page(scenes.failed()).nodes for cell in node.ranks}

    assert (cells[0].step, cells[3].step, cells[19].step) == (1200, 1199, 1104)
    assert (cells[0].behind, cells[3].behind, cells[19].behind) == (0, 0, 96)


def hanging(state: HangState) -> Page:
    record, status = scenes.recovered()
    assert status is not None
    groups = (
        RankGroup(
            ranks=(11,),
            culprit=True,
            step=700,
            state="sleeping",
            quiet=1900.0,
            frames=("data.py:88 __next__", "train.py:12 main"),
        ),
        RankGroup(ranks=(0, 1, 2), more=28, step=700, state="running", quiet=1900.0, frames=("ddp.py:5 all_reduce",)),
    )
    told = dataclasses.replace(
        status.incidents[0],
        id=dataclasses.replace(status.incidents[0].id, round=4),
        cause=Cause.HANG,
        rung=Rung.NOTIFY,
        detected_at=START + 1100,
        healed_at=None,
        evidence=groups,
    )
    reason = "no progress of any rank for 31m 40s"
    hang = Hang(round=4, state=state, quiet_since=START + 900, since=START + 1000, reason=reason)
    status = replaced(status, hang=hang, incidents=(*status.incidents, told))
    return page_of(record, status, now=START + 1180)


def test_a_doubt_and_a_hang_are_said_first():
    """Training that does not go on is the headline, however well its nodes are."""
    doubt, verdict = hanging(HangState.DOUBT), hanging(HangState.VERDICT)

    assert (doubt.state, verdict.state) == (State.RECOVERING, State.RECOVERING)
    assert doubt.title == "Hang suspected: no progress of any rank for 31m 40s"
    assert "no action taken yet" in doubt.advice
    assert verdict.title == "Hanging: no progress of any rank for 31m 40s"


def test_where_each_rank_stood_is_told_with_the_hang():
    """The one that the others wait for first, with its frames below it."""
    evidence = hanging(HangState.VERDICT).faults[-1].evidence

    assert evidence[0].startswith("rank 11 (the others wait for it): sleeping, step 700")
    assert evidence[1:3] == ("    data.py:88 __next__", "    train.py:12 main")
    assert evidence[3].startswith("ranks 0-2 and 28 more: running")


def test_what_comes_next_is_told_with_its_moment_and_setting():
    """A node that waits has a clock that runs; a job that is over has none."""
    record, status = scenes.recovered()
    waiting = dataclasses.replace(record, phase=Phase.RESUMING).with_condition(ConditionType.PODS_READY, "Pending", value=False)
    waiting = waiting.with_condition(ConditionType.RESOURCES_DEPLOYED, "Resuming", value=True)
    page = page_of(waiting, status, now=record.last_now, plan=PLAN)
    ended, its = scenes.failed()

    assert page.coming
    assert all(line.at >= record.last_now for line in page.coming)
    assert page_of(ended, its, now=ended.last_now, plan=PLAN).coming == ()
    assert page_of(waiting, status, now=record.last_now).coming == ()


# --- Files that a script has written ---------------------------------------------------------------------------------------


class Host(str):
    """The name of a host, which counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Host.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_the_host_that_broke_most_is_found_in_one_pass():
    """4,000 incidents of 4,000 hosts were 16 million comparisons for one sentence."""
    record, status = scenes.recovered()
    culprit = record.incidents[0].culprit
    assert culprit is not None
    told = [
        dataclasses.replace(record.incidents[0], culprit=dataclasses.replace(culprit, host=Host(f"host-{number % 500}")))
        for number in range(1000)
    ]
    ended = dataclasses.replace(record, phase=Phase.SUCCEEDED)
    Host.compared = 0

    advice = headline.headline(ended, status, told, faults=1000).advice

    assert "Host host-0 had 2 of the faults" in advice
    assert Host.compared < 5000


def test_the_work_for_curves_grows_with_the_samples():
    """A script can name 100,000 metrics in one sample, and each took a look at all samples."""
    _, status = scenes.running()
    assert status is not None

    def drawing(count):
        samples = [Sample(at=float(n), round=1, world_size=1, step=n) for n in range(100)]
        wide = Sample(at=100.0, round=1, world_size=1, step=100, metrics={f"m{n}": 1.0 for n in range(count)})
        return lambda: curves(dataclasses.replace(status, samples=(*samples, wide)))

    assert growth(drawing, 500) < 2.5
    assert len(drawing(500)()) <= 20


def test_a_page_has_a_size_whatever_is_in_the_record():
    """Incidents, texts, spans and samples beyond what a supervisor and a coordinator write are left out, the oldest first."""
    record, status = scenes.recovered()
    long, culprit, many = '\\"' * 10_000, record.incidents[0].culprit, 1000
    assert culprit is not None
    assert status is not None
    worst = dataclasses.replace(culprit, host=long, error=long, log_path=long, log_tail=(long,) * 20)
    groups = (RankGroup(ranks=tuple(range(5000)), frames=(long,) * 20),) * 50
    incidents = tuple(
        dataclasses.replace(
            record.incidents[0],
            id=dataclasses.replace(record.incidents[0].id, sequence=number + 1),
            culprit=worst,
            reason=long,
            evidence=groups,
            detected_at=START + 1000 + number,
        )
        for number in range(many)
    )
    record = dataclasses.replace(
        record,
        incidents=incidents,
        history=tuple(Event(at=START + n, kind="running", detail=long) for n in range(3000)),
        progress=dataclasses.replace(record.progress, checkpoint=long),
    )
    page = scenes.page((record, dataclasses.replace(status, samples=status.samples[-1:] * 1000)))

    assert len(codec.dumps(page)) < 4 << 20
    assert len(page.faults) == 200
    assert page.faults[-1].number - page.faults[0].number == 199
    assert page.faults[-1].number >= many


@pytest.mark.parametrize("scene", [scenes.running, scenes.recovered, scenes.failed])
def test_a_page_is_encoded_in_parts(scene):
    """The same text, and no part of it is so long that the encoder keeps others waiting."""
    page = scenes.page(scene())
    parts = list(codec._parts(page, reported=False, depth=codec._PARTED))

    assert codec.dumps_long(page) == codec.dumps(page)
    assert max(map(len, parts)) < 10_000
