"""`rallypoint pause`, `save`, `stop`, and `resume` of a paused job: what is wished, what is waited for, what is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.line import Verb
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import JobStatus, Outcome, Verdict
from rallypoint.wire.wish import RankAnswer, Wish, WishStatus
from tests.cli.fake import Place
from tests.cli.samples import begun, over, training


def answering(*answers: RankAnswer) -> Callable[[Place], None]:
    """The workers answer the wish of the record, each as it is said."""

    def step(place: Place) -> None:
        record = place.world.record("digits")
        assert record.wish is not None
        told = WishStatus(number=record.wish.number, verb=record.wish.verb, ranks=answers)
        place.put(record, replaced(training(), wish=told))

    return step


def at(step: int) -> tuple[RankAnswer, ...]:
    return tuple(RankAnswer(rank=rank, done=True, step=step) for rank in range(4))


def test_a_job_is_paused_and_goes_on(run: Any, place: Place, capsys: Any) -> None:
    """The wish is in the record; the answers of all ranks are waited for. To resume what is not suspended lets it go on."""
    place.put(begun(), training())
    place.script = [answering(*at(120)), answering(*at(120))]

    assert [run("pause", "digits"), run("resume", "digits")] == [0, 0]

    assert place.world.record("digits").wish == Wish(number=2, verb=Verb.RESUME, attempt=1)
    assert not place.world.record("digits").suspend
    assert capsys.readouterr().out.splitlines() == [
        "Job digits: 4 of 4 ranks paused at step 120",
        "Job digits: 4 of 4 ranks resumed at step 120",
    ]


def test_who_cannot_is_told_by_node_and_reason(run: Any, place: Place, capsys: Any) -> None:
    """And the command has failed."""
    place.put(begun(), training())
    cannot = "no save callback registered (State.on_save)"
    place.script = [answering(RankAnswer(rank=0, done=True, step=7), *(RankAnswer(rank=r, error=cannot) for r in (1, 2, 3)))]

    assert run("save", "digits") == 1

    assert capsys.readouterr().out.splitlines() == [
        "Job digits: 1 of 4 ranks saved at step 7",
        f"  node 0, rank 1: {cannot}",
        f"  node 1, ranks 2, 3: {cannot}",
    ]


def test_answers_are_not_waited_for_without_end(run: Any, place: Place, capsys: Any) -> None:
    """What is known is told, and that the rest is still asked."""
    place.put(begun(), training())
    place.script = [answering(*at(9)[:3], RankAnswer(rank=3))] * 1000

    assert run("pause", "digits", "--timeout", "0.05") == 1

    assert capsys.readouterr().out.splitlines() == [
        "Job digits: 3 of 4 ranks paused at step 9",
        "  node 1, rank 3: no answer yet",
        "Some ranks have not answered within 0.05 s; the request stays active until attempt 1 ends",
    ]


def test_a_coordinator_that_has_not_heard_says_nothing(run: Any, place: Place, capsys: Any) -> None:
    """An answer to an earlier wish is none to this one."""
    status: JobStatus = replaced(training(), wish=WishStatus(number=0, verb=Verb.SAVE, ranks=at(1)))
    place.put(begun(), status)

    assert run("pause", "digits", "--timeout", "0") == 1

    assert capsys.readouterr().out.splitlines()[0] == "Job digits: the coordinator has not received the request yet"


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_job_that_stops_is_waited_for(run: Any, place: Place, capsys: Any, outcome: Outcome) -> None:
    """Until it is over: that its ranks have heard says little."""
    place.put(begun(), training())

    def ends(place: Place) -> None:
        verdict = Verdict(outcome=outcome, reason="Completed", message="2 nodes, 4 ranks succeeded")
        place.put(place.world.record("digits"), dataclasses.replace(training(), verdict=verdict))

    place.script = [answering(*at(5)), ends]

    assert run("stop", "digits") == (0 if outcome is Outcome.SUCCEEDED else 1)
    assert capsys.readouterr().out == "Job digits has ended: 2 nodes, 4 ranks succeeded\n"


@pytest.mark.parametrize("word", ["pause", "save", "stop"])
def test_only_workers_that_run_are_asked(run: Any, place: Place, capsys: Any, word: str) -> None:
    """A job that is absent, pending, suspended, over or being deleted is an error in one line."""
    assert run(word, "digits") == 1
    place.put(begun(phase=Phase.RESUMING))
    assert run(word, "digits") == 1
    place.put(dataclasses.replace(begun(), suspend=True))
    assert run(word, "digits") == 1
    place.put(over(outcome=Outcome.FAILED))
    assert run(word, "digits") == 1
    place.put(dataclasses.replace(begun(), deletion=True))
    assert run(word, "digits") == 1

    assert place.world.record("digits").wish is None
    assert capsys.readouterr().err.splitlines() == [
        "rallypoint: job 'digits' not found",
        f"rallypoint: job digits is not running (state: Resuming); its workers cannot {word}",
        f"rallypoint: job digits is not running (state: suspended); its workers cannot {word}",
        f"rallypoint: the workers of job digits cannot {word} any more: the job has ended (Failed)",
        f"rallypoint: the workers of job digits cannot {word} any more: the job is being deleted",
    ]


def test_a_suspended_job_is_resumed_as_a_whole(run: Any, place: Place, capsys: Any) -> None:
    """Though its workers had been asked to pause before: those are gone."""
    place.put(dataclasses.replace(begun(), suspend=True, wish=Wish(number=1, verb=Verb.PAUSE, attempt=1)), training())

    assert run("resume", "digits") == 0

    assert not place.world.record("digits").suspend
    assert capsys.readouterr().out.splitlines()[0] == "Job digits is being resumed"


def test_a_wrong_timeout_is_wrong_usage(run: Any, capsys: Any) -> None:
    """It names the value and what is allowed."""
    with pytest.raises(SystemExit):
        run("pause", "digits", "--timeout", "soon")
    assert ("'soon' is not allowed; expected a timeout in seconds, 0 or more") in capsys.readouterr().err
