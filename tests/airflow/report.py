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
# Airflow matrix

After reading this page, you know how a job and its task end when a component of Airflow is killed, or a task is cleared,
marked, deleted or paused.

```console
$ make test-airflow      # about half an hour; writes this page
```

The program starts a scheduler with LocalExecutor, an API server, a DAG processor and two triggerers, and runs each
scenario (`tests/airflow/matrix.py`) in its own DAG run. After each one it checks how often training started, that no
two processes trained at the same time, the number of jobs, that no process is left, and the state of the task. Another
deferred task lives through all scenarios.

Two properties of LocalExecutor (Airflow 3.3.2) are worked around: when the scheduler is killed while it holds the
database pool's lock, its idle workers are ended too; and "worker" means the whole executor when no task process exists.
"""


_FURTHER = """\
A separate Airflow has connections with secrets. A deferred job and a sensor use them, and the metadata database, files,
logs, process arguments and cluster objects are searched for the secrets during and after the run. Three sensors with
`start_from_trigger` wait for a job, one rank of which is stopped (SIGSTOP) until `HangSensor` reports it.
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
