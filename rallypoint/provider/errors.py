"""How a training task fails, named by what happened to the job.

```
AirflowException                 Airflow tries the task again while it has retries left
├── TrainingFailed               the job came to its end and failed; a retry starts its next attempt
├── TrainingDeleted              somebody deleted the job while the task waited for it; a retry submits it anew
├── TrainingTimedOut             `execution_timeout` is over; the job was cancelled
├── SupervisionFailed            the supervision broke, not the training; a retry finds the job where it is
├── ConditionImpossible          what a sensor waits for cannot come any more
└── JobHangs                     a sensor that fails at a hang has seen one
AirflowFailException             Airflow does not try again
├── InvalidJob                   the job cannot run as it is written
├── JobRefused                   what is asked of a job cannot be: there is none, it is over, it cannot have that size
└── NodesRefused                 nodes were checked, and some must not train
ValueError
└── OptionError                  an argument is wrong, found when the DAG is parsed
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
    """The job ended and failed; the text tells which rank on which node ended how, with its last words.

    `failure` is the verdict in words for programs (`rallypoint.provider.claim.Failure`), None where it is not known.
    """

    def __init__(self, text: str, failure: Any = None) -> None:
        super().__init__(text)
        self.failure = failure


class TrainingDeleted(AirflowException):
    """The job was deleted from outside."""


class TrainingTimedOut(AirflowException):
    """The task's `execution_timeout` is over."""


class SupervisionFailed(AirflowException):
    """Watching the job failed, from an operator or a sensor; the state of the job is not known."""


class ConditionImpossible(AirflowException):
    """The job can no longer come to where a sensor expects it."""


class JobHangs(AirflowException):
    """The job does not go on; the text tells since when, and whom the others wait for."""


class InvalidJob(AirflowFailException):
    """The job cannot run as it is written; trying again would fail alike."""


class JobRefused(AirflowFailException):
    """What is asked of a job cannot be, and trying again cannot help."""


class NodesRefused(AirflowFailException):
    """A node check found nodes that must not train; trying again on the same machines would find them again."""


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
