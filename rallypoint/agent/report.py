"""How a run ended, for people. Pure."""

from __future__ import annotations

from rallypoint.wire.incident import Culprit
from rallypoint.wire.process_exit import signal_name
from rallypoint.wire.status import Verdict

__all__ = ["describe_verdict"]


def describe_verdict(verdict: Verdict) -> str:
    """Return a few lines: what happened, which rank on which node ended how, its first error, the last lines of its log."""
    lines = ["", f"The job has {verdict.outcome.value} ({verdict.reason}): {verdict.message}"]
    if verdict.culprit is not None:
        lines += _culprit(verdict.culprit)
    return "\n".join(lines)


def _culprit(culprit: Culprit) -> list[str]:
    how = f"killed by {signal_name(culprit.signal)}" if culprit.signal is not None else f"exit code {culprit.exit_code}"
    who = f"rank {culprit.rank} (local rank {culprit.local_rank}, pid {culprit.pid})" if culprit.rank >= 0 else "the whole node"
    lines = [f"  culprit: {who} on node {culprit.node} ({culprit.host})", f"  exit:    {how}"]
    if culprit.error:
        lines.append(f"  error:   {culprit.error}")
    if culprit.log_tail:
        lines.append(f"  last lines of {culprit.log_path}:")
        lines += [f"    {line}" for line in culprit.log_tail]
    return lines
