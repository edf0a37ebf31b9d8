"""Flags and variables of a script in profile `mindcluster`: each asks for its strategies, or switches them off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Rung
from tests.live.jobs import Job
from tests.live.mindcluster_jobs import GRACE, Elastic, counting, faults, lose_host, rungs

#: Variables of Table 3 of the documentation, which a strategy puts into the workers' environment.
INJECTED = (
    *("PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE", "ENABLE_RESTART_FAULT_PROCESS"),
    *("HIGH_AVAILABILITY", "MINDIO_FOR_MINDSPORE", "MS_ENABLE_TFT"),
)


@pytest.mark.parametrize(
    ("labels", "env"),
    [
        ({}, {"HIGH_AVAILABILITY": "recover,retry"}),
        pytest.param({"framework": "mindspore"}, {"MS_ENABLE_TFT": "{UCE:1,ARF:1}"}, marks=pytest.mark.extended),
    ],
    ids=["HIGH_AVAILABILITY", "MS_ENABLE_TFT"],
)
@pytest.mark.extended
def test_a_variable_asks_for_retry_and_recover(tmp_path: Path, home: Path, labels: dict[str, str], env: dict[str, str]) -> None:
    """Without recover-strategy: a step that raises is run again, and a killed process is started anew; the other one lives."""
    run = Elastic.submit(tmp_path, home, labels={**GRACE, **labels}, env=env)
    first = run.trains(0, 1)
    run.breaks(1, "raise")
    second = run.trains(0, 1, round_=2)
    run.breaks(1, "kill")
    third = run.trains(0, 1, round_=3)
    record = run.ends()

    assert rungs(record) == [Rung.RETRY, Rung.RECOVER], run.job.tell()
    assert first[0].pid == second[0].pid == third[0].pid
    assert first[1].pid == second[1].pid != third[1].pid
    assert all(incident.steps_lost == 0 for incident in faults(record))
    assert (record.phase, record.restarts) == (Phase.SUCCEEDED, 0)


@pytest.mark.extended
def test_the_flags_ask_for_retry_and_dump(tmp_path: Path, home: Path) -> None:
    """`--enable-hbmfault-repair` is retry, `--enable-high-availability` the last checkpoint of a job that cannot go on."""
    flags = ("--enable-high-availability", "--enable-hbmfault-repair")
    run = Elastic.submit(tmp_path, home, *flags, labels=GRACE)
    run.trains(0, 1)
    run.breaks(1, "raise")
    run.trains(0, 1, round_=2)
    run.breaks(1, "kill")
    record = run.job.ends(timeout=30.0)

    assert rungs(record) == [Rung.RETRY, Rung.DUMP], run.job.tell()
    assert record.phase is Phase.FAILED
    assert (run.work / "storage").is_dir()


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (("--enable-elastic-training",), {}),
        pytest.param((), {"HIGH_AVAILABILITY": "elastic-training"}, marks=pytest.mark.extended),
    ],
    ids=["--enable-elastic-training", "HIGH_AVAILABILITY"],
)
@pytest.mark.extended
def test_a_flag_or_a_variable_asks_for_elastic_training(
    tmp_path: Path, home: Path, flags: tuple[str, ...], env: dict[str, str]
) -> None:
    """The world shrinks by the lost node, and the other process lives."""
    run = Elastic.submit(tmp_path, home, *flags, profile="mindcluster", nodes="1:2", env=env)
    before = run.trains(0, 1)
    lose_host(run.job, 1)
    after = run.trains(0, round_=2)
    record = run.ends()

    assert rungs(record) == [Rung.ELASTIC_TRAINING], run.job.tell()
    assert (after[0].pid, after[0].world) == (before[0].pid, 1)
    assert (record.phase, record.attempt) == (Phase.SUCCEEDED, 1)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("env", "answer"),
    [
        ({"ENABLE_RESTART_FAULT_PROCESS": "off"}, Rung.RECOVER),
        ({"ELASTIC_PROCESS_RECOVER_ENABLE": "0"}, Rung.RESTART_WORKERS),
        ({"PROCESS_RECOVER": "off"}, Rung.RESTART_WORKERS),
    ],
    ids=["ENABLE_RESTART_FAULT_PROCESS", "ELASTIC_PROCESS_RECOVER_ENABLE", "PROCESS_RECOVER"],
)
def test_a_variable_switches_strategies_off(tmp_path: Path, home: Path, env: dict[str, str], answer: Rung) -> None:
    """Without recover-in-place the process is recovered; without any strategy all workers are restarted."""
    run = Elastic.submit(tmp_path, home, labels=GRACE, annotations={"recover-strategy": "recover-in-place,recover"}, env=env)
    before = run.trains(0, 1)
    run.breaks(1, "kill")
    after = run.trains(0, 1, round_=2)
    record = run.ends()

    assert rungs(record) == [answer], run.job.tell()
    assert (after[0].pid == before[0].pid) == (answer is Rung.RECOVER)
    assert record.phase is Phase.SUCCEEDED


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (
            {"annotations": {"recover-strategy": "recover"}},
            {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1", "HIGH_AVAILABILITY": "recover"},
        ),
        pytest.param(
            {"annotations": {"recover-strategy": "elastic-training"}},
            {"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "elastic-training"},
            marks=pytest.mark.extended,
        ),
        pytest.param(
            {"annotations": {"recover-strategy": "recover-in-place,dump,retry"}, "labels": {"framework": "mindspore"}},
            {
                "PROCESS_RECOVER": "on",
                "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
                "ENABLE_RESTART_FAULT_PROCESS": "on",
                "MINDIO_FOR_MINDSPORE": "1",
                "MS_ENABLE_TFT": "{ARF:1,HCCE:1,TTP:1,UCE:1}",
            },
            marks=pytest.mark.extended,
        ),
        pytest.param(
            {"labels": {"framework": "mindspore", "pod-rescheduling": "on"}},
            {"MS_ENABLE_TFT": "{RSC:1}"},
            marks=pytest.mark.extended,
        ),
        pytest.param({"annotations": {"recover-strategy": "exit"}}, {}, marks=pytest.mark.extended),
    ],
    ids=["recover", "elastic-training", "mindspore", "pod-rescheduling", "exit"],
)
def test_workers_find_the_variables_of_their_strategies(
    tmp_path: Path, home: Path, fields: dict[str, Any], found: dict[str, str]
) -> None:
    """What Ascend Operator injects stands in the environment of a running worker, and nothing else of it."""
    labels = {**GRACE, **fields.get("labels", {})}
    job = counting(tmp_path, home, profile="mindcluster", **{**fields, "labels": labels}).submit()
    status = job.trains(ranks=2)
    told = [environment(job, worker.pid) for worker in status.ranks]
    job.may_end()
    job.ends()

    assert [{name: seen[name] for name in INJECTED if name in seen} for seen in told] == [found, found]


def environment(job: Job, pid: int | None) -> dict[str, str]:
    assert pid is not None, job.tell()
    rows = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(row.split("=", 1) for row in rows if "=" in row)
