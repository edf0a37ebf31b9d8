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

`make test-airflow` starts a scheduler with LocalExecutor, an API server, a DAG processor and two triggerers, and runs each
scenario (`tests/airflow/matrix.py`) in its own DAG run. After each scenario, it checks the state of the task, the number of
jobs, how often a job trained, that no two processes trained at the same time, and that no process is left. One more deferred
task runs during all scenarios.

The name of a scenario contains the action (such as `kill -9 worker`) and the moment of the action (such as `deferred`). If
no process of the task exists, "worker" means the whole executor. If the scheduler is killed while it holds the lock of the
database pool, the test also ends its idle workers, because Airflow 3.3.2 does not.
"""


_FURTHER = """\
In a separate Airflow, a deferred job and a sensor use connections with secrets. The test searches the metadata database,
files, logs, process arguments and cluster objects for these secrets, during and after the run. Three sensors with
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
        f"- {good} of {len(results)} scenarios ended as expected",
        f"- the task that ran during all scenarios: {bystander}",
    ]
    return "\n".join([_HEAD, *facts, "", *_table(results), *_complaints(results), *_looks(looks)]) + "\n"


def row(result: Result) -> str:
    """Return one scenario as a line of the table."""
    verdict = "yes" if not result.wrong else "**no**"
    return f"| {result.scenario.name} | {result.scenario.expected} | {result.seen} | {verdict} | {result.seconds:.0f} |"


def _table(results: Iterable[Result]) -> list[str]:
    return ["| scenario | expected result | result | as expected | seconds |", "|---|---|---|---|---|", *map(row, results)]


def _looks(looks: Iterable[Look]) -> list[str]:
    rows = [
        f"| {look.name} | {look.seen or 'not as expected'} | {'**no**' if look.wrong else 'yes'} | {look.seconds:.0f} |"
        for look in looks
    ]
    if not rows:
        return []
    return [
        "",
        "## Secrets and sensors",
        "",
        _FURTHER,
        "| check | result | as expected | seconds |",
        "|---|---|---|---|",
        *rows,
    ]


def _complaints(results: Iterable[Result]) -> list[str]:
    wrong = [f"- {result.scenario.name}: {'; '.join(result.wrong)}" for result in results if result.wrong]
    return ["", "## Scenarios with another result", "", *wrong] if wrong else []
