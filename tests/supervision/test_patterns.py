"""Patterns of rules: what they match, and how long a hostile one takes."""

from __future__ import annotations

import threading
import time

import pytest

from rallypoint.supervision import patterns
from rallypoint.supervision.patterns import search
from rallypoint.supervision.verdicts import End, judge
from rallypoint.wire.incident import Answer
from rallypoint.wire.plan import PATTERN_LENGTH, RULES, EndRule

TEXT = "RuntimeError: CUDA error 48\nlast line \u2028 \ud800 \x00 end"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("CUDA error", True),
        ("^last", True),
        ("^CUDA", False),
        ("cuda|nccl", False),
        (r"error (48|79)$", True),
        (r"(?i)cuda\s+error", True),
        (r"line .* end$", True),
        (r"Xid \d+", False),
        ("error 4", True),
        ("a b", False),
        ("[", False),
        ("(", False),
        ("(?:a{1000}){1000}{1000}", False),
    ],
)
def test_a_pattern_is_searched_as_python_searches_it(pattern: str, found: bool) -> None:
    """In every line of the text; one that cannot be compiled matches nothing."""
    assert search((pattern,), TEXT) == (frozenset({pattern}) if found else frozenset())


def test_a_slow_pattern_matches_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 characters would take years; the second search costs nothing."""
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    began = time.monotonic()
    for _ in range(20):
        assert search((r"^(\w+\s?)*: fatal$",), "x" * 60 + "!") == frozenset()

    assert time.monotonic() - began < 5.0


def test_a_long_pattern_without_repetitions_leaves_the_interpreter_to_others() -> None:
    """Alternatives alone cost the length of the pattern times that of the text, in one call that holds the interpreter lock."""
    longest, over = 0.0, threading.Event()

    def beat() -> None:
        nonlocal longest
        while not over.is_set():
            wall, cpu = time.monotonic(), time.process_time()
            over.wait(0.005)
            longest = max(longest, min(time.monotonic() - wall, time.process_time() - cpu))

    def pattern(count: int) -> str:
        return "|".join("a" * length + "b" for length in range(count, 0, -1))

    beating = threading.Thread(target=beat)
    beating.start()
    found = [search((pattern(count),), "a" * 8192) for count in (40, 600)]
    over.set()
    beating.join()

    assert found == [frozenset(), frozenset()]
    assert len(pattern(40)) <= PATTERN_LENGTH < len(pattern(600))
    assert longest <= 0.1


def test_too_long_a_pattern_is_named_in_a_short_line(caplog):
    """It begins with the first 80 characters of the pattern."""
    pattern = "ab" * PATTERN_LENGTH

    assert not search((pattern,), pattern)

    assert caplog.messages == [
        (
            f"log_pattern '{'ab' * 40}'... has {2 * PATTERN_LENGTH} characters; "
            f"expected at most {PATTERN_LENGTH}, so the rule counts as not matching"
        )
    ]


@pytest.mark.parametrize("slow", [1, pytest.param(10, marks=pytest.mark.extended), RULES])
def test_all_patterns_of_a_verdict_share_one_time_limit(slow: int) -> None:
    """100 slow patterns kept a thread of the triggerer for 200 s; a fast pattern is found before and after slow ones."""
    rules = tuple(EndRule(log_pattern=f"(a+)+{number}$", answer=Answer.FAIL_NOW) for number in range(slow))
    fast = EndRule(log_pattern="b{3}", answer=Answer.RETRY_ELSEWHERE)
    rules = (*rules, fast) if slow < RULES else (fast, *rules)
    began = time.monotonic()

    judged = judge(End(codes=(1,), error="a" * 40 + f"bbb {slow}"), rules=rules)

    assert time.monotonic() - began < 2 * patterns.SECONDS
    assert judged.rule.startswith(f"rule {rules.index(fast) + 1} of")


def test_a_pattern_that_needs_longer_than_the_others_is_found() -> None:
    """It is searched again after the fast ones."""
    text = "x" * 110
    assert search((r"(?:x*){3}y|x$", r"^y"), text) == frozenset({r"(?:x*){3}y|x$"})
