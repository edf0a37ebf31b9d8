"""Every end is something, and something is done about it: the table, the lists of exit codes, the user's rules."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.verdicts import TABLE, End, classify, exception_of, judge, node_end, table, worker_end
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import FREE, Answer, Cause, Culprit, FaultKind
from rallypoint.wire.plan import EndRule

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "verdicts.md"


def worker(code: int | None = None, **more: object) -> End:
    return worker_end(Culprit(exit_code=code, **more))  # type: ignore[arg-type]


def node(code: int | None = None, *, agent: bool = False, **more: object) -> End:
    seen = NodeSeen(attempt=1, node=0, incarnation=1, state=NodeState.FAILED, present=False, exit_code=code, **more)  # type: ignore[arg-type]
    return node_end(seen, agent=agent)


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        pytest.param(worker(1), FaultKind.EXIT_CODE, id="a code of its own"),
        pytest.param(worker(1, error="epoch 3: loss 0.5"), FaultKind.EXIT_CODE, id="a last line is no exception"),
        pytest.param(worker(1, error="ValueError: no"), FaultKind.APPLICATION_ERROR, id="an exception"),
        pytest.param(worker(1, error="my.own.SadFailure: no"), FaultKind.APPLICATION_ERROR, id="one of a module"),
        pytest.param(worker(1, error="KeyboardInterrupt"), FaultKind.APPLICATION_ERROR, id="one without a message"),
        pytest.param(worker(1, error="MemoryError"), FaultKind.OOM, id="MemoryError"),
        pytest.param(worker(1, error="torch.OutOfMemoryError: CUDA out of memory."), FaultKind.OOM, id="memory of a GPU"),
        pytest.param(worker(247), FaultKind.OOM, id="247"),
        pytest.param(
            worker(1, error="RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"),
            FaultKind.HANG,
            id="gloo waited in vain",
        ),
        pytest.param(
            worker(
                134, log_tail=("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",)
            ),
            FaultKind.HANG,
            id="NCCL's watchdog",
        ),
        pytest.param(worker(137, log_tail=("Out of memory: killed",)), FaultKind.OOM, id="137 with evidence"),
        pytest.param(worker(signal=9, kind=FaultKind.OOM), FaultKind.OOM, id="SIGKILL, and its agent knows why"),
        pytest.param(worker(signal=9), FaultKind.SIGNAL, id="SIGKILL"),
        pytest.param(worker(137), FaultKind.SIGNAL, id="137"),
        pytest.param(worker(143), FaultKind.SIGNAL, id="143"),
        pytest.param(worker(signal=6), FaultKind.SIGNAL, id="SIGABRT"),
        pytest.param(worker(134, error="RuntimeError: what()"), FaultKind.SIGNAL, id="134, whatever it said before"),
        pytest.param(worker(143, error="the log says out of memory"), FaultKind.SIGNAL, id="only SIGKILL is the kernel's"),
        pytest.param(worker(201), FaultKind.HARDWARE, id="201"),
        pytest.param(worker(202), FaultKind.HARDWARE, id="202"),
        pytest.param(worker(14), FaultKind.HARDWARE, id="14"),
        pytest.param(worker(), FaultKind.NODE_LOST, id="nobody saw its end"),
        pytest.param(worker(127, kind=FaultKind.START_FAILED), FaultKind.START_FAILED, id="it could not be started"),
        pytest.param(worker(255), FaultKind.EXIT_CODE, id="255 is no signal"),
        pytest.param(node(), FaultKind.NODE_LOST, id="a node without a trace"),
        pytest.param(node(137, kind=FaultKind.OOM), FaultKind.OOM, id="OOMKilled"),
        pytest.param(node(137, kind=FaultKind.PREEMPTED), FaultKind.PREEMPTED, id="preempted"),
        pytest.param(node(0, exit_codes=(0, 3)), FaultKind.EXIT_CODE, id="one of several containers"),
        pytest.param(node(Exit.CONFIG, agent=True), FaultKind.START_FAILED, id="an agent that cannot work"),
        pytest.param(node(Exit.LOST_CONTACT, agent=True), FaultKind.NODE_LOST, id="an agent without contact"),
        pytest.param(node(4), FaultKind.EXIT_CODE, id="the same code of somebody else"),
    ],
)
def test_every_end_is_something(end: End, kind: FaultKind) -> None:
    """Code, signal, error and what the observer knows are one kind."""
    assert classify(end) is kind


def test_what_the_observer_knows_beats_what_it_looks_like() -> None:
    """An evicted pod ends with 137 like any other."""
    assert classify(End(codes=(137,), kind=FaultKind.EVICTED, error="Out of memory")) is FaultKind.EVICTED


def test_the_first_exception_is_named_without_its_module() -> None:
    """Its class is what people search for."""
    assert exception_of("torch.distributed.DistBackendError: NCCL error in: x") == "DistBackendError"
    assert exception_of("subprocess.TimeoutExpired: Command 'x'") == "TimeoutExpired"
    assert exception_of("Error in line 7, somewhere") == ""


def test_the_table_has_every_kind() -> None:
    """There is no end without a verdict."""
    assert set(TABLE) == set(FaultKind)


def test_free_causes_take_nodes_only() -> None:
    """Preemption and evacuation cost nothing, everything else that takes a node costs one."""
    free = {kind for kind, row in TABLE.items() if row.node[1] in FREE}
    assert free == {FaultKind.PREEMPTED, FaultKind.FLAGGED}


@pytest.mark.parametrize(
    ("terminal", "retryable", "codes", "fails"),
    [
        pytest.param((3, 10), (), (3,), True, id="18a terminal"),
        pytest.param((3, 10), (), (10,), True, id="18b terminal, the second"),
        pytest.param((), (137, 143), (137,), False, id="18c retryable"),
        pytest.param((), (137, 143), (1,), True, id="18d not retryable"),
        pytest.param((137,), (137,), (137,), True, id="18e terminal wins"),
        pytest.param((), (137,), (), False, id="18f no code is known"),
        pytest.param((3,), (), (), False, id="no code is never terminal"),
        pytest.param((), (137,), (137, 1), True, id="18g one of several"),
        pytest.param((3,), (), (0, 7), False, id="18h another code"),
        pytest.param((0, 3), (), (0, 7), False, id="18h zero is passed over"),
        pytest.param((), (7,), (0, 7), False, id="zero need not be retryable"),
        pytest.param((), (), (7,), False, id="no lists"),
    ],
)
def test_exit_codes_are_appwrappers(
    terminal: tuple[int, ...], retryable: tuple[int, ...], codes: tuple[int, ...], fails: bool
) -> None:
    """One terminal code, or one that is not in a list of retryable ones, ends the job."""
    judged = judge(End(node=True, codes=codes), terminal=terminal, retryable=retryable)
    assert (judged.answer is Answer.FAIL_NOW) is fails
    assert judged.reason == ("TerminalExitCode" if fails else "")


def test_a_signal_has_the_exit_code_that_a_shell_gives_it() -> None:
    """Lists of exit codes speak of 137 also where the agent saw a signal."""
    assert judge(worker(signal=9), terminal=(137,)).rule == "exit code 137 is terminal"
    assert judge(worker(signal=9), retryable=(137,)).rule == "exit code 137 is retryable"


def test_an_agents_own_codes_are_no_workers_codes() -> None:
    """A list of exit codes is about the training: that an agent lost contact or was sent away is no end of the job."""
    for code in (Exit.ELSEWHERE, Exit.STALE):
        assert judge(node(code, agent=True), terminal=(code,), retryable=(137,)).answer is Answer.RETRY_ELSEWHERE
    assert judge(node(Exit.LOST_CONTACT, agent=True), terminal=(4,), retryable=(137,)).answer is Answer.RETRY_HERE
    assert judge(node(9, agent=True), terminal=(9,)).answer is Answer.FAIL_NOW


@pytest.mark.parametrize(
    ("named", "end", "matches"),
    [
        pytest.param({"exit_codes": (3, 4)}, worker(4), True, id="code"),
        pytest.param({"exit_codes": (3, 4)}, worker(5), False, id="another code"),
        pytest.param({"exit_codes": (137,)}, worker(signal=9), True, id="the code of a signal"),
        pytest.param({"signals": (9,)}, worker(137), True, id="the signal of a code"),
        pytest.param({"signals": (9,)}, worker(9), False, id="a code is no signal"),
        pytest.param({"signals": (15,)}, worker(), False, id="nothing is known"),
        pytest.param({"log_pattern": "^nan"}, worker(1, error="loss: nan"), False, id="not where a line begins"),
        pytest.param({"log_pattern": "^nan$"}, worker(1, log_tail=("a", "nan")), True, id="log, line by line"),
        pytest.param({"log_pattern": "No.* space"}, worker(1, error="OSError: No space"), True, id="error"),
        pytest.param({"exit_codes": (1,), "log_pattern": "nan"}, worker(1, error="inf"), False, id="all must match"),
        pytest.param({}, worker(1), True, id="any end"),
    ],
)
def test_a_users_rule_matches_all_that_it_names(named: dict[str, Any], end: End, matches: bool) -> None:
    """What a rule does not name matches anything."""
    rule = EndRule(answer=Answer.FAIL_NOW, **named)
    assert (judge(end, rules=(rule,)).reason == "FailNow") is matches


def test_the_first_rule_wins_and_rules_win_over_lists() -> None:
    """The order is: rules, terminal codes, retryable codes, the table."""
    rules = (EndRule(exit_codes=(3,), answer=Answer.RETRY_ELSEWHERE), EndRule(exit_codes=(3,), answer=Answer.FAIL_NOW))
    judged = judge(worker(3), rules=rules, terminal=(3,))
    assert (judged.answer, judged.cause, judged.kind) == (Answer.RETRY_ELSEWHERE, Cause.NODE, FaultKind.EXIT_CODE)
    assert judged.rule == "rule 1 of fault_tolerance.rules (exit code 3)"
    assert judge(worker(4), rules=rules, terminal=(4,)).rule == "exit code 4 is terminal"
    assert judge(worker(4), rules=rules).rule == "default rule for exit-code"


def test_who_stays_pays_as_a_process() -> None:
    """A worker whose node stays costs a restart, one whose node goes costs a replacement."""
    here = EndRule(exit_codes=(201,), answer=Answer.RETRY_HERE)
    assert judge(worker(201)).cause is Cause.NODE
    assert judge(worker(201), rules=(here,)).cause is Cause.PROCESS
    assert judge(node(201), rules=(here,)).cause is Cause.NODE
    assert judge(node(kind=FaultKind.PREEMPTED)).cause is Cause.PREEMPTION


def test_no_progress_ends_a_job_in_its_own_words() -> None:
    """The reason of the verdict says which end it was."""
    assert judge(End(kind=FaultKind.NO_PROGRESS)).reason == "NoProgress"


ends = st.builds(
    End,
    node=st.booleans(),
    agent=st.booleans(),
    codes=st.lists(st.integers(0, 255), max_size=3).map(tuple),
    kind=st.none() | st.sampled_from(FaultKind),
    error=st.text(max_size=20),
)
codes = st.lists(st.integers(0, 255), max_size=4).map(tuple)


@given(ends, codes, codes)
def test_every_end_has_a_verdict(end: End, terminal: tuple[int, ...], retryable: tuple[int, ...]) -> None:
    """Whatever it was: an answer, a cause, a rule in words, and a reason exactly where the job ends."""
    judged = judge(end, terminal=terminal, retryable=retryable)
    assert judged.rule
    assert bool(judged.reason) is (judged.answer is Answer.FAIL_NOW)
    if judged.reason == "TerminalExitCode":
        assert any(code != 0 for code in end.codes)


def test_the_documented_table_is_the_table() -> None:
    """docs/reference/verdicts.md is up to date: `python -m rallypoint.supervision.verdicts` prints what belongs there."""
    assert table() in DOCS.read_text()


@pytest.mark.parametrize(
    ("error", "first", "answer"),
    [
        pytest.param(
            "python: can't open file '/x.py': [Errno 2] No such file or directory", True, Answer.FAIL_NOW, id="script"
        ),
        pytest.param("python: can't open file '/x.py': [Errno 2] No such file", False, Answer.RETRY_HERE, id="script, later"),
        pytest.param("/usr/bin/python: No module named my.job", True, Answer.FAIL_NOW, id="module"),
        pytest.param("ModuleNotFoundError: No module named 'numpy'", True, Answer.RETRY_HERE, id="an import of the script"),
        pytest.param("x cannot be started: No such file or directory: x", True, Answer.FAIL_NOW, id="program"),
        pytest.param(
            "FunctionError: the return value (a lock) cannot be pickled: TypeError: no",
            False,
            Answer.FAIL_NOW,
            id="result",
        ),
    ],
)
def test_what_every_further_try_would_meet_ends_the_job(error: str, first: bool, answer: Answer) -> None:
    """Unless a rule or the list of retryable codes says otherwise."""
    end = End(codes=(2,), error=error, first=first)

    assert judge(end).answer is answer
    assert judge(end, retryable=(2,)).answer is Answer.RETRY_HERE
    assert judge(end, rules=(EndRule(answer=Answer.RETRY_HERE, exit_codes=(2,)),)).answer is Answer.RETRY_HERE
    assert judge(dataclasses.replace(end, node=True)).answer is Answer.RETRY_HERE
