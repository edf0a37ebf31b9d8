"""What the task's retry policy is asked once its job has failed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rallypoint.provider.claim import Failure
    from rallypoint.provider.retry_policy import TrainingRetryPolicy
    from rallypoint.supervision.record import Advice

__all__ = ["advice", "growing"]


def growing(policy: Any, failure: Failure | None) -> TrainingRetryPolicy | None:
    """Return the policy where it would ask for more memory, None where it is another, does not, or nothing has failed."""
    from rallypoint.provider.retry_policy import GROW, TrainingRetryPolicy  # noqa: PLC0415  a DAG file need not pay for it

    if failure is None or not isinstance(policy, TrainingRetryPolicy) or policy.action_on(failure) != GROW:
        return None
    return policy


def advice(policy: Any, failure: Failure | None, ti: Any) -> Callable[[Advice], Advice] | None:
    """Return what decides what a next try is to do otherwise, None where there is none or nobody asks."""
    from rallypoint.provider.retry_policy import TrainingRetryPolicy  # noqa: PLC0415  a DAG file need not pay for it

    if failure is None or not isinstance(policy, TrainingRetryPolicy) or ti.try_number > (ti.max_tries or 0):
        return None
    return functools.partial(policy.advise, failure)
