"""The result of a run as the page docs/reference/airflow-matrix.md."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from tests.airflow.driver import Result
from tests.airflow.further import Look

__all__ = ["page", "row"]

_HEAD = """\
# Killed, cleared, marked, deleted, paused: what was seen on a real Airflow

`make test-airflow` writes this page. It starts a scheduler with LocalExecutor, an api-server, a DAG processor and two
triggerers, drives them through the REST API, and performs one scenario after the other (`tests/airflow/matrix.py`), each in a
DAG run of its own. A moment is reached by an event and never by waiting: the task stops at it, or the record, the state or the
training says so. After each scenario the program asks how often training began and whether two processes ever trained at the
same time (each training holds a lock and keeps a ledger), how many jobs there were, what became of the job and of every process
of it, and what state the task has. One more deferred task and its job live through all of it.

Two things were seen that are Airflow's own (LocalExecutor of 3.3.2), and the program steps around them. The executor's workers
are forked with the scheduler's connection to the database: when the scheduler alone is killed while it has the pool locked, the
lock lives as long as they do, and no other scheduler queues a task; so the idle ones are ended with it, as a service manager
does. And an idle worker waits with the lock of the executor's queue: where only that one is killed, none gets a task any more;
so "worker" is the whole executor where no task's process is there.
"""


_FURTHER = """\
In an Airflow of its own, whose connections hold secrets: a job on a cluster that only they open is deferred, with a sensor
beside it, and every table of the metadata database, every file and log, the arguments of every process and the objects of the
cluster are searched for them, while it is deferred and afterwards. And three sensors with `start_from_trigger` wait for a job,
one rank of which is stopped (SIGSTOP) until `HangSensor` has said so.
"""


def page(
    results: Sequence[Result], looks: Sequence[Look] = (), *, database: str, bystander: str, now: datetime.datetime
) -> str:
    """Return the whole page."""
    good = sum(not result.wrong for result in results)
    seconds = sum(result.seconds for result in results)
    facts = [
        f"- {now:%Y-%m-%d}, {seconds / 60:.0f} minutes on {platform.machine()}, Python {platform.python_version()}",
        f"- Airflow {version('apache-airflow-core')}, Task SDK {version('apache-airflow-task-sdk')}, {database}",
        f"- {good} of {len(results)} scenarios went as expected",
        f"- the task that lived through all of it: {bystander}",
    ]
    return "\n".join([_HEAD, *facts, "", *_table(results), *_complaints(results), *_looks(looks)]) + "\n"


def row(result: Result) -> str:
    """Return one scenario as a line of the table."""
    verdict = "yes" if not result.wrong else "**no**"
    return f"| {result.scenario.name} | {result.scenario.expected} | {result.seen} | {verdict} | {result.seconds:.0f} |"


def _table(results: Iterable[Result]) -> list[str]:
    return ["| scenario | expected | seen | as expected | seconds |", "|---|---|---|---|---|", *map(row, results)]


def _looks(looks: Iterable[Look]) -> list[str]:
    rows = [
        f"| {look.name} | {look.seen or 'not as it must be'} | {'**no**' if look.wrong else 'yes'} | {look.seconds:.0f} |"
        for look in looks
    ]
    if not rows:
        return []
    return ["", "## What no kill shows", "", _FURTHER, "| look | seen | as it must be | seconds |", "|---|---|---|---|", *rows]


def _complaints(results: Iterable[Result]) -> list[str]:
    wrong = [f"- {result.scenario.name}: {'; '.join(result.wrong)}" for result in results if result.wrong]
    return ["", "## What was not as expected", "", *wrong] if wrong else []
