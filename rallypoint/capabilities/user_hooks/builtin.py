"""Our own pre-check operators. DLRover's names for them work, too: what they look at is ours, so nothing of it is imported.

An operator needs `check(job_args=...)` alone. What it returns is true or false, or has `result` (0 is fine), `result_msg` and
`abnormal_nodes`. `failed_actions(result_msg=..., abnormal_nodes=...)` says what is to be done then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BUILT_IN", "ConnectionPreCheckOperator", "NoPreCheckOperator", "PreCheckResult", "SchedulingPreCheckOperator"]


@dataclass(frozen=True, kw_only=True)
class PreCheckResult:
    """What an operator found: 0 is nothing."""

    result: int = 0
    result_msg: str = ""
    abnormal_nodes: tuple[Any, ...] = ()


class NoPreCheckOperator:
    """Finds nothing."""

    def check(self, job_args: Any) -> PreCheckResult:
        """Return that all is well."""
        return PreCheckResult()


class SchedulingPreCheckOperator:
    """Waits until the nodes are there that must be: MIN of them, or with `pending_fail_strategy` 2 MAX.

    When they are not after `pending_timeout` the job ends. With the strategies -1 and 0, or no time-out, nobody is judged.
    """

    @classmethod
    def get_retry_interval_secs(cls) -> float:
        """Return how many seconds are between two looks."""
        return 1.0

    def check(self, job_args: Any) -> PreCheckResult:
        """Compare the nodes that have come with those that must."""
        strategy, timeout = job_args.pending_fail_strategy, job_args.pending_timeout
        if strategy in (-1, 0) or timeout <= 0:
            return PreCheckResult(result_msg="skipped, because the job ignores pending nodes")
        needed = job_args.max_nodes if strategy == 2 else job_args.min_nodes
        here = sum(node.status == "Running" for node in job_args.nodes)
        if here >= needed:
            return PreCheckResult(result_msg=f"{here} of {needed} nodes have joined")
        word = "PRE_CHECK_PENDING_TIMEOUT" if job_args.waited > timeout else "PRE_CHECK_PENDING_WAIT"
        return PreCheckResult(
            result=1, result_msg=f"{word}: {here} of {needed} nodes have joined after {job_args.waited:.0f} s"
        )

    def failed_actions(self, result_msg: str, abnormal_nodes: Any) -> list[str]:
        """Return that the job ends, once the time is over."""
        return ["job_abortion" if result_msg.startswith("PRE_CHECK_PENDING_TIMEOUT") else "no_action"]


class ConnectionPreCheckOperator:
    """Finds nodes that came and cannot be heard any more, and waits until MIN nodes are connected and none is missing."""

    @classmethod
    def get_retry_interval_secs(cls) -> float:
        """Return how many seconds are between two looks."""
        return 1.0

    def check(self, job_args: Any) -> PreCheckResult:
        """Look for nodes without a connection; MIN nodes with one must be there."""
        lost = tuple(node for node in job_args.nodes if node.status != "Running")
        here = len(job_args.nodes) - len(lost)
        if not lost and here >= job_args.min_nodes:
            return PreCheckResult(result_msg=f"{here} nodes are connected")
        told = (
            ", ".join(f"node {node.id} on {node.host}" for node in lost) or f"{here} of {job_args.min_nodes} nodes have joined"
        )
        return PreCheckResult(result=1, result_msg=f"CONNECTION_CHECK_FAILED: {told}", abnormal_nodes=lost)

    def failed_actions(self, result_msg: str, abnormal_nodes: Any) -> list[str]:
        """Return nothing: a node whose end is seen is replaced by the supervisor, and the next look counts the replacement."""
        return ["no_action"]


#: By the names that they have in DLRover.
BUILT_IN = {cls.__name__: cls for cls in (NoPreCheckOperator, SchedulingPreCheckOperator, ConnectionPreCheckOperator)}
