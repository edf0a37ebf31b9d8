"""What is performed, and what is told of it."""

from __future__ import annotations

import dataclasses
import datetime
import random
import threading
from pathlib import Path

import pytest

from tests.airflow.__main__ import varied
from tests.airflow.driver import Result
from tests.airflow.gates import Gates, hold
from tests.airflow.matrix import MATRIX, POINTS, STATES, SUBSET
from tests.airflow.report import page
from tests.airflow.scenario import KILLS, Deed, Fate, Mode, Moment, Scenario
from tests.waiting import PATIENCE, eventually

SOME = Scenario(mode=Mode.DEFERRED, at=Moment.DEFERRED, deed=Deed.CLEAR)
DATE = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)


def test_every_victim_is_killed_at_every_point() -> None:
    """Worker, triggerer and scheduler at ten points of a job's life."""
    killed = {(one.deed, one.at) for one in MATRIX}

    assert len(POINTS) == 10
    assert {(deed, point) for deed in KILLS for point in POINTS} <= killed


@pytest.mark.parametrize("deed", [Deed.CLEAR, Deed.MARK_FAILED, Deed.MARK_SUCCESS, Deed.DELETE_RUN, Deed.PAUSE])
def test_a_user_does_everything_in_every_state(deed: Deed) -> None:
    """Queued, running, deferred, and deferred while no triggerer runs."""
    assert {one.at for one in MATRIX if one.deed is deed} == set(STATES)


def test_no_two_scenarios_have_one_name() -> None:
    """A row of the table is found by its name."""
    assert len({one.name for one in MATRIX}) == len(MATRIX)


def test_the_subset_is_part_of_the_matrix() -> None:
    """Six of them, with every process that can be killed."""
    assert len(SUBSET) == 6
    assert set(SUBSET) <= set(MATRIX)
    assert set(KILLS) <= {one.deed for one in SUBSET}


def test_a_varied_scenario_expects_no_more_than_must_be() -> None:
    """Who would have told the job of its end may be the one that is killed next; then its lease ends it."""
    chance = random.Random(1)
    for scenario in MATRIX:
        other = varied(scenario, chance)

        assert other.then in KILLS
        assert (other.mode, other.at, other.deed, other.task) == (scenario.mode, scenario.at, scenario.deed, scenario.task)
        assert (other.fate is Fate.ENDED) is (scenario.fate in (Fate.DELETED, Fate.LEASE))


def test_the_page_counts_what_went_as_expected_and_tells_what_did_not() -> None:
    """One row for each, and one line for each complaint."""
    good = Result(scenario=SOME, seen="task success, job succeeds, trained once", seconds=12.0)
    bad = dataclasses.replace(good, seen="task failed", wrong=("the task is failed, not success",))

    text = page([good, bad], database="PostgreSQL 18", bystander="succeeded", now=DATE)

    assert "- 1 of 2 scenarios ended as expected" in text
    assert f"| {SOME.name} | {SOME.expected} | {good.seen} | yes | 12 |" in text
    assert f"| {SOME.name} | {SOME.expected} | task failed | **no** | 12 |" in text
    assert f"- {SOME.name}: the task is failed, not success" in text
    assert "with another result" not in page([good], database="", bystander="", now=DATE)


def test_a_gate_holds_until_it_is_opened(tmp_path: Path) -> None:
    """Who comes says so, and goes on only when nobody holds it any more."""
    comer = threading.Thread(target=Gates(tmp_path).at, args=("submitted",), kwargs={"tries": 2}, daemon=True)
    with hold(tmp_path, "submitted"):
        comer.start()
        eventually((tmp_path / "at-submitted").exists)
        assert comer.is_alive()

    comer.join(10 * PATIENCE)
    assert not comer.is_alive()
    assert '"tries": 2' in (tmp_path / "at-submitted").read_text()
