"""`TrainingRetryPolicy`: choose the retries of a task by the verdict on its job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryDecision, RetryPolicy

from rallypoint.provider.errors import OptionError, TrainingFailed, one_of, positive

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.provider.claim import Failure
    from rallypoint.supervision.record import Advice

__all__ = ["ACTIONS", "TrainingRetryPolicy"]

FAIL, RETRY, ELSEWHERE, LATER, GROW = ACTIONS = ("fail", "retry", "retry-elsewhere", "retry-later", "grow-memory")

#: Seconds of the longest delay: one that Airflow can add to a date.
_LONGEST = 10**9

#: Action by reason of the verdict, else by kind of the last fault (docs/reference/verdicts.md). Other faults are retried.
_DEFAULTS: Mapping[str, str] = {
    "FailNow": FAIL,
    "TerminalExitCode": FAIL,
    "NoProgress": FAIL,
    "StartFailed": FAIL,
    "CreateFailed": FAIL,
    "MissingComponent": RETRY,
    "Orphaned": RETRY,
    "PendingTimeout": LATER,
    "RendezvousTimeout": LATER,
    "InsufficientPodsReady": LATER,
    "oom": GROW,
    "application-error": RETRY,
    "hardware": ELSEWHERE,
    "flagged": ELSEWHERE,
    "node-lost": ELSEWHERE,
    "evicted": LATER,
    "preempted": LATER,
}


class TrainingRetryPolicy(RetryPolicy):
    """Decide by the verdict on a failed job whether, when and with which changes the task is retried.

    The changes for the next try are stored in the job's record with the result, so they apply wherever that try runs. Airflow
    decides about other failures (a lost Airflow worker, a failed supervision).

    :param rules: actions by reason or by kind of fault, which override the defaults: `fail`, `retry`, `retry-elsewhere` (the
        hosts that caused the fault are excluded from now on), `retry-later` (after `delay`), `grow-memory`.
    :param delay: seconds, or a timedelta, before a `retry-later`.
    :param memory_factor: `grow-memory` multiplies `node_resources.memory` (and its `memory_limit`) by this factor.
    :param memory_limit: maximum memory for `grow-memory`, such as `64Gi`. Without it, and at the limit, `grow-memory`
        acts as `fail`, because the same memory would be too small again.
    """

    def __init__(
        self,
        *,
        rules: Mapping[str, str] | None = None,
        delay: timedelta | float = 300.0,
        memory_factor: float = 1.5,
        memory_limit: str = "",
    ) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        positive("delay", seconds)
        if not seconds <= _LONGEST:
            raise OptionError("delay", delay, f"at most {_LONGEST:,} seconds")
        for word, action in (rules or {}).items():
            one_of(f"rules[{word!r}]", action, ACTIONS)
        if not 1 < memory_factor <= 16:
            raise OptionError("memory_factor", memory_factor, "a number above 1 and at most 16")
        if memory_limit:
            _check_quantity(memory_limit)
        self.rules = dict(rules or {})
        self.delay = float(seconds)
        self.memory_factor = float(memory_factor)
        self.memory_limit = memory_limit

    def action_on(self, failure: Failure) -> str:
        """Return the action for a failure."""
        table = {**_DEFAULTS, **self.rules}
        # A rule of the user for a kind overrides a default for a reason, because WorkersFailed has many kinds.
        for word in (failure.reason, failure.kind):
            if word in self.rules:
                return self._possible(self.rules[word], failure)
        return self._possible(table.get(failure.reason) or table.get(failure.kind) or RETRY, failure)

    def _possible(self, action: str, failure: Failure) -> str:
        return FAIL if action == GROW and (failure.no_growth or not self.memory_limit) else action

    def advise(self, failure: Failure, before: Advice) -> Advice:
        """Return the changes for the next submission."""
        from rallypoint.provider.failure import merged  # noqa: PLC0415  a DAG file need not pay for it

        action = self.action_on(failure)
        if action == ELSEWHERE:
            return merged(before, hosts=failure.hosts)
        if action == GROW:
            return merged(before, factor=self.memory_factor, limit=self.memory_limit)
        return before

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide about a task that failed; see `airflow.sdk.RetryPolicy`."""
        failure = exception.failure if isinstance(exception, TrainingFailed) else None
        if failure is None:
            return RetryDecision.default()
        action, why = self.action_on(failure), f"{failure.reason}{f' ({failure.kind})' if failure.kind else ''}"
        if action == FAIL:
            because = f", since {failure.no_growth}" if failure.no_growth else ""
            return RetryDecision.fail(f"{why}: no retry, because it would fail again{because}")
        if action == LATER:
            return RetryDecision.retry(timedelta(seconds=self.delay), f"{why}: retrying after {self.delay:g} s")
        if action == ELSEWHERE:
            return RetryDecision.retry(reason=f"{why}: retrying without host {', '.join(failure.hosts) or 'exclusions'}")
        if action == GROW:
            return RetryDecision.retry(reason=f"{why}: retrying with {self.memory_factor:g} times the memory")
        return RetryDecision.retry(reason=f"{why}: retrying")

    def serialize(self) -> dict[str, Any]:
        """Return the policy as JSON; `deserialize` reads it."""
        return {
            "__type": f"{type(self).__module__}.{type(self).__qualname__}",
            "rules": self.rules,
            "delay": self.delay,
            "memory_factor": self.memory_factor,
            "memory_limit": self.memory_limit,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TrainingRetryPolicy:
        """Return the policy from its JSON form."""
        return cls(**{key: value for key, value in data.items() if key != "__type"})


def _check_quantity(text: str) -> None:
    from rallypoint.job.quantity import is_quantity  # noqa: PLC0415  a DAG file need not pay for it

    if not is_quantity(text):
        raise OptionError("memory_limit", text, "a quantity of bytes such as 64Gi")
