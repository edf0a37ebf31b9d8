"""Errors of training tasks, named for the event in the job.

```
AirflowException                 Airflow retries the task while retries are left
├── TrainingFailed               the job failed; a retry starts its next attempt
├── TrainingDeleted              another client deleted the job while the task waited; a retry submits it again
├── TrainingTimedOut             `execution_timeout` expired; the job was cancelled
├── SupervisionFailed            the supervision failed, not the training; a retry adopts the job
├── ConditionImpossible          the condition of a sensor is no longer possible
└── JobHangs                     a sensor with `on_hang="fail"` detected a hang
AirflowFailException             Airflow does not retry
├── InvalidJob                   the job is not valid
├── JobRefused                   the request is not possible: no such job, the job has ended, or the size is not allowed
└── NodesRefused                 the node check found nodes that must not train
ValueError
└── OptionError                  an argument is not valid, detected when the DAG is parsed
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from rallypoint.wire.errors import RallypointError

__all__ = [
    "ConditionImpossible",
    "InvalidJob",
    "JobHangs",
    "JobRefused",
    "NodesRefused",
    "OptionError",
    "SupervisionFailed",
    "TrainingDeleted",
    "TrainingFailed",
    "TrainingTimedOut",
    "at_least_one",
    "one_of",
    "positive",
]


class TrainingFailed(AirflowException):
    """The job failed; the text names the rank and node that failed first, and contains its last log lines.

    `failure` is the verdict as a value (`rallypoint.provider.claim.Failure`), None if unknown.
    """

    def __init__(self, text: str, failure: Any = None) -> None:
        super().__init__(text)
        self.failure = failure


class TrainingDeleted(AirflowException):
    """Another client deleted the job."""


class TrainingTimedOut(AirflowException):
    """The task's `execution_timeout` expired."""


class SupervisionFailed(AirflowException):
    """An operator or sensor failed to watch the job; the state of the job is unknown."""


class ConditionImpossible(AirflowException):
    """The condition of a sensor is no longer possible."""


class JobHangs(AirflowException):
    """The job hangs; the text states since when, and the ranks that cause it."""


class InvalidJob(AirflowFailException):
    """The job is not valid; a retry would fail in the same way."""


class JobRefused(AirflowFailException):
    """The request to a job is not possible, and a retry would fail in the same way."""


class NodesRefused(AirflowFailException):
    """A node check found nodes that must not train; a retry on the same machines would find them again."""


class OptionError(RallypointError, ValueError):
    """An argument has a value that is not allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {value!r} is not allowed; expected {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def one_of(field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise `OptionError` unless `value` is one of the words `allowed`."""
    words = tuple(allowed)
    if value not in words:
        raise OptionError(field, value, f"one of {', '.join(words)}")


def positive(field: str, value: object) -> None:
    """Raise `OptionError` unless `value` is a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise OptionError(field, value, "a number of seconds above 0")


def at_least_one(field: str, value: object) -> None:
    """Raise `OptionError` unless `value` is a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(field, value, "a whole number of 1 or more")
