"""What an end was, and what is done about it: one table, the user's rules before it. Pure.

The order is: the user's rules, the first that matches; terminal exit codes; retryable exit codes; the table. Exit codes in the
two lists mean what they mean to AppWrapper: of all that ended, 0 is passed over; one terminal code, or (where the list of
retryable ones is not empty) one code that is not retryable, ends the job; terminal wins; without a code they say nothing.

`python -m rallypoint.supervision.verdicts` prints the table as it stands in docs/reference/verdicts.md.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rallypoint.supervision.patterns import search
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind
from rallypoint.wire.plan import EndRule

if TYPE_CHECKING:  # a coordinator judges workers, and sees no pods
    from rallypoint.supervision.observation import NodeSeen

__all__ = ["TABLE", "End", "Judgement", "Row", "classify", "exception_of", "judge", "node_end", "table", "worker_end"]

#: A code above this is 128 + the signal that ended the process, as shells and container runtimes write it.
_SIGNALLED, _LAST_SIGNAL = 128, 64

#: What launchers and container runtimes say for a process that was out of memory, beside 137 (128 + SIGKILL) with evidence.
_OOM_CODE = 247
#: Codes by which training programs say that the hardware is at fault.
_HARDWARE_CODES = frozenset({14, 201, 202})

_OOM_TEXT = re.compile(r"out of memory|oom[-_ ]?kill|OOMKilled|cannot allocate memory", re.IGNORECASE)
#: What torch says when a collective was waited for in vain: the others live, and one of them does not come.
_HANG_TEXT = re.compile(
    r"watchdog caught collective operation timeout|timed out waiting \d+ ?ms|monitored_?barrier\b.*\btime", re.IGNORECASE
)
_OOM_EXCEPTIONS = frozenset({"MemoryError", "OutOfMemoryError"})

#: What `launch_agent` says of a result that cannot leave the worker.
_RESULT_TEXT = re.compile(r"FunctionError: (?:what the function returned|the return value) \(a .*\) cannot be pickled")
#: What Python says of a script or a module that is not there, and the agent of a program.
_MISSING_TEXT = re.compile(
    r"can't open file '([^']+)': \[Errno 2\]|: No module named ([\w.]+)$|"
    r"(?:cannot start .*|cannot be started): No such file or directory: (.+)"
)

#: The conclusion of a traceback: a class, with its module or without, by a name that exceptions have.
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|Warning|Expired|Failure|Fault))(?=:|\s*$)"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of end: by what it is known, and what is done when it ends a worker or a whole node, and which budget pays."""

    known_by: str
    worker: tuple[Answer, Cause]
    node: tuple[Answer, Cause]


_HERE, _ELSEWHERE, _FAIL = Answer.RETRY_HERE, Answer.RETRY_ELSEWHERE, Answer.FAIL_NOW

#: The verdict on every kind of end. Kinds that end no single worker have the same answer in both places.
TABLE: Mapping[FaultKind, Row] = {
    FaultKind.EXIT_CODE: Row(
        known_by="an exit code that no other row of this table lists", worker=(_HERE, Cause.PROCESS), node=(_HERE, Cause.NODE)
    ),
    FaultKind.SIGNAL: Row(
        known_by="a signal, or exit code 128 + signal number, such as 134 (SIGABRT), 137 (SIGKILL, "
        "cause unknown), 139 (SIGSEGV) or 143 (SIGTERM)",
        worker=(_HERE, Cause.PROCESS),
        node=(_HERE, Cause.NODE),
    ),
    FaultKind.OOM: Row(
        known_by="exit code 247; MemoryError or OutOfMemoryError; a container that ended with the reason OOMKilled; SIGKILL or "
        "exit code 137, if the cgroup's kill counter or the log shows that memory ran out",
        worker=(_HERE, Cause.PROCESS),
        node=(_HERE, Cause.NODE),
    ),
    FaultKind.HARDWARE: Row(
        known_by="exit code 201, 202 or 14; an XID error of the worker's GPU after which the GPU must be reset or replaced",
        worker=(_ELSEWHERE, Cause.NODE),
        node=(_ELSEWHERE, Cause.NODE),
    ),
    FaultKind.APPLICATION_ERROR: Row(
        known_by="a Python exception, read from torch's error file or from the last traceback in the log",
        worker=(_HERE, Cause.PROCESS),
        node=(_HERE, Cause.NODE),
    ),
    FaultKind.EVICTED: Row(
        known_by="the kubelet evicted the node's pod, because its host ran short of a resource",
        worker=(_ELSEWHERE, Cause.NODE),
        node=(_ELSEWHERE, Cause.NODE),
    ),
    FaultKind.PREEMPTED: Row(
        known_by="a pod with a higher priority preempted the node's pod",
        worker=(_ELSEWHERE, Cause.PREEMPTION),
        node=(_ELSEWHERE, Cause.PREEMPTION),
    ),
    FaultKind.FLAGGED: Row(
        known_by="the host of the node was marked as faulty while the node ran on it",
        worker=(_ELSEWHERE, Cause.EVACUATION),
        node=(_ELSEWHERE, Cause.EVACUATION),
    ),
    FaultKind.DELETED: Row(
        known_by="a client other than Rallypoint deleted the node", worker=(_HERE, Cause.NODE), node=(_HERE, Cause.NODE)
    ),
    FaultKind.NODE_LOST: Row(
        known_by="the node disappeared without an exit code, its agent sent no report for `health.node_lease`, or its agent "
        "lost the connection to the coordinator",
        worker=(_HERE, Cause.PROCESS),
        node=(_ELSEWHERE, Cause.NODE),
    ),
    FaultKind.HANG: Row(
        known_by="no rank made progress within `health.hang_downtime`, or within the time that Rallypoint learned from earlier "
        "steps; or a collective timed out (NCCL's watchdog, gloo's `Timed out waiting`, a monitored barrier)",
        worker=(_HERE, Cause.HANG),
        node=(_HERE, Cause.HANG),
    ),
    FaultKind.START_FAILED: Row(
        known_by="the node did not start because of its interpreter, image, volume or secret; or its agent exited with code 78",
        worker=(_HERE, Cause.PROCESS),
        node=(_ELSEWHERE, Cause.NODE),
    ),
    FaultKind.NO_PROGRESS: Row(
        known_by="`fault_tolerance.no_progress_limit` attempts in a row ended without a new training step",
        worker=(_FAIL, Cause.JOB),
        node=(_FAIL, Cause.JOB),
    ),
}


@dataclass(frozen=True, kw_only=True)
class End:
    """How a worker or a whole node ended: all that was seen of it.

    Attributes:
        node: it was a node; a worker in one otherwise.
        agent: the node's process was our agent, which has exit codes of its own (`wire/exits.py`).
        codes: exit codes of all that ended in it, 128 + signal where a signal did; empty when nobody saw any.
        kind: what it was, where the observer knows better than code and text can tell.
        first: it was of the first workers that the job ever started, so what it lacks was never there.
        error: its first error in one line; `log_tail` its last lines.
    """

    node: bool = False
    agent: bool = False
    codes: tuple[int, ...] = ()
    kind: FaultKind | None = None
    first: bool = False
    error: str = ""
    log_tail: tuple[str, ...] = ()

    @property
    def signals(self) -> tuple[int, ...]:
        """The signals that ended something in it."""
        return tuple(code - _SIGNALLED for code in self.codes if _SIGNALLED < code <= _SIGNALLED + _LAST_SIGNAL)

    @property
    def judged_codes(self) -> tuple[int, ...]:
        """The codes that lists of exit codes speak of: not 0, and none that an agent says of itself."""
        own = frozenset(Exit) if self.agent else frozenset()
        return tuple(code for code in self.codes if code != 0 and code not in own)

    @property
    def text(self) -> str:
        """Error and log tail, as patterns search them."""
        return "\n".join((self.error, *self.log_tail))


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on one end.

    Attributes:
        kind: what it was.
        answer: what is done.
        cause: which budget pays for it where it is not the end of the job.
        rule: which rule decided, for people.
        reason: the word of a job's verdict (`TerminalExitCode`, `FailNow`, `NoProgress`); "" unless `answer` ends the job.
    """

    kind: FaultKind
    answer: Answer
    cause: Cause
    rule: str
    reason: str = ""


def worker_end(culprit: Culprit, *, first: bool = False) -> End:
    """Return the end of a worker as its agent saw it; `first` as in `End`."""
    code = culprit.exit_code if culprit.signal is None else _SIGNALLED + culprit.signal
    codes = () if code is None else (code,)
    return End(codes=codes, kind=culprit.kind, first=first, error=culprit.error, log_tail=culprit.log_tail)


def node_end(seen: NodeSeen, *, agent: bool) -> End:
    """Return the end of a node as its backend saw it; `agent` says that its exit code is that of our agent."""
    codes = seen.exit_codes or (() if seen.exit_code is None else (seen.exit_code,))
    return End(node=True, agent=agent, codes=codes, kind=seen.kind, error=seen.reason, log_tail=seen.log_tail)


# --- What it was -----------------------------------------------------------------------------------------------------------


def classify(end: End) -> FaultKind:
    """Return what an end was."""
    if end.kind is not None:
        return end.kind
    own = _said_by_agent(end)
    if own is not None:
        return own
    if _HARDWARE_CODES.intersection(end.codes):
        return FaultKind.HARDWARE
    if _out_of_memory(end):
        return FaultKind.OOM
    if _HANG_TEXT.search(end.text):
        return FaultKind.HANG
    if end.signals:
        return FaultKind.SIGNAL
    if exception_of(end.error):
        return FaultKind.APPLICATION_ERROR
    return FaultKind.EXIT_CODE if any(end.codes) else FaultKind.NODE_LOST


def exception_of(error: str) -> str:
    """Return the class of the exception that an error in one line speaks of, without its module; "" for anything else."""
    found = _EXCEPTION.match(error)
    return "" if found is None else found[1]


def _said_by_agent(end: End) -> FaultKind | None:
    if not end.agent:
        return None
    if Exit.CONFIG in end.codes:
        return FaultKind.START_FAILED
    # Why an agent was sent away stands in what the coordinator tells; by itself it says no more than that it is gone.
    gone = {Exit.LOST_CONTACT, Exit.STALE, Exit.ELSEWHERE, Exit.ORPHANED}
    return FaultKind.NODE_LOST if gone.intersection(end.codes) else None


def _out_of_memory(end: End) -> bool:
    if _OOM_CODE in end.codes or exception_of(end.error) in _OOM_EXCEPTIONS:
        return True
    return signal.SIGKILL in end.signals and _OOM_TEXT.search(end.text) is not None


# --- What is done about it -------------------------------------------------------------------------------------------------


def judge(
    end: End,
    *,
    rules: tuple[EndRule, ...] = (),
    terminal: tuple[int, ...] = (),
    retryable: tuple[int, ...] = (),
) -> Judgement:
    """Return the verdict on an end: by the user's rules, the terminal and the retryable exit codes, or the table."""
    kind = classify(end)
    if (found := _first_match(rules, end)) is not None:
        number, rule = found
        return _judgement(end, kind, rule.answer, f"rule {number} of fault_tolerance.rules ({_words(rule)})")
    codes = end.judged_codes
    fatal = [code for code in codes if code in terminal]
    if fatal:
        return _judgement(end, kind, Answer.FAIL_NOW, f"exit code {fatal[0]} is terminal", "TerminalExitCode")
    strange = [code for code in codes if code not in retryable] if retryable else []
    if strange:
        return _judgement(end, kind, Answer.FAIL_NOW, f"exit code {strange[0]} is not retryable", "TerminalExitCode")
    answer, _ = _row(end, kind)
    if not (retryable and codes) and (why := _hopeless(end)):
        return _judgement(end, kind, Answer.FAIL_NOW, why)
    if retryable and codes:
        answer = Answer.RETRY_HERE if answer is Answer.FAIL_NOW else answer
        return _judgement(end, kind, answer, f"exit code {codes[0]} is retryable")
    return _judgement(
        end, kind, answer, f"default rule for {kind.value}", "NoProgress" if kind is FaultKind.NO_PROGRESS else ""
    )


def _hopeless(end: End) -> str:
    """Return why every further try would end in the same way, "" where that is not known."""
    if end.node:
        return ""
    if _RESULT_TEXT.match(end.error):
        return "the return value of a function is pickled in the same way in each retry"
    if end.first and (found := _MISSING_TEXT.search(end.error)):
        return f"the first workers of the job did not find {found[1] or found[2] or found[3]}"
    return ""


def _row(end: End, kind: FaultKind) -> tuple[Answer, Cause]:
    row = TABLE[kind]
    answer, cause = row.node if end.node else row.worker
    # An agent that stopped its workers for want of a coordinator has done what it must: nothing is known against its host.
    fenced = kind is FaultKind.NODE_LOST and end.agent and Exit.LOST_CONTACT in end.codes
    return (Answer.RETRY_HERE, cause) if fenced else (answer, cause)


def _judgement(end: End, kind: FaultKind, answer: Answer, rule: str, reason: str = "") -> Judgement:
    _, cause = _row(end, kind)
    if answer is Answer.RETRY_ELSEWHERE and cause is Cause.PROCESS:
        cause = Cause.NODE  # the node goes with the worker
    if answer is Answer.RETRY_HERE and not end.node and cause is Cause.NODE:
        cause = Cause.PROCESS  # the node stays
    reason = (reason or "FailNow") if answer is Answer.FAIL_NOW else ""
    return Judgement(kind=kind, answer=answer, cause=cause, rule=rule, reason=reason)


def _first_match(rules: tuple[EndRule, ...], end: End) -> tuple[int, EndRule] | None:
    """Return the first rule that matches, with its number; the patterns of all rules are searched within one time limit."""
    fitting = [(number, rule) for number, rule in enumerate(rules, 1) if _fits(rule, end)]
    patterns = tuple(rule.log_pattern for _, rule in fitting if rule.log_pattern)
    found = search(patterns, end.text) if patterns else frozenset()
    return next(((number, rule) for number, rule in fitting if not rule.log_pattern or rule.log_pattern in found), None)


def _fits(rule: EndRule, end: End) -> bool:
    """Return whether exit codes and signals of a rule match."""
    if rule.exit_codes and not set(rule.exit_codes).intersection(end.codes):
        return False
    return not rule.signals or bool(set(rule.signals).intersection(end.signals))


def _words(rule: EndRule) -> str:
    said = []
    if rule.exit_codes:
        said.append(f"exit code {_either(rule.exit_codes)}")
    if rule.signals:
        said.append(f"signal {_either(rule.signals)}")
    if rule.log_pattern:
        said.append(f"log pattern {rule.log_pattern!r}")
    return ", ".join(said) or "any exit"


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


# --- The table, for people -------------------------------------------------------------------------------------------------


_TITLES = (
    "Kind of fault",
    "How Rallypoint detects the fault",
    "Reaction and budget, if a worker ended",
    "Reaction and budget, if a node ended",
)


def table() -> str:
    """Return the table as Markdown."""
    lines = [
        f"| {' | '.join(_TITLES)} |",
        "|---|---|---|---|",
    ]
    for kind, row in TABLE.items():
        lines.append(f"| `{kind.value}` | {row.known_by} | {_cell(row.worker, node=False)} | {_cell(row.node, node=True)} |")
    return "\n".join(lines) + "\n"


def _cell(entry: tuple[Answer, Cause], *, node: bool) -> str:
    answer, cause = entry
    if answer is Answer.FAIL_NOW:
        return f"`{answer.value}`: fail the job"
    here = "replace the node" if node and cause is not Cause.HANG else "restart all workers on the same nodes"
    done = here if answer is Answer.RETRY_HERE else "replace the node by one on another host"
    free = {Cause.PREEMPTION, Cause.EVACUATION}
    return f"`{answer.value}`: {done}; counts against {'no' if cause in free else f'the {cause.value}'} budget"


if __name__ == "__main__":
    sys.stdout.write(table())
