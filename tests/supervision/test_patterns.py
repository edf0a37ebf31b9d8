"""Patterns of rules: what they match, and how long a hostile one takes."""

from __future__ import annotations

import time

import pytest

from rallypoint.supervision import patterns
from rallypoint.supervision.patterns import matches

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
        ("[", False),
        ("(", False),
        ("(?:a{1000}){1000}{1000}", False),
    ],
)
def test_a_pattern_is_searched_as_python_searches_it(pattern: str, found: bool) -> None:
    """In every line of the text; one that cannot be compiled matches nothing."""
    assert matches(pattern, TEXT) is found


def test_a_slow_pattern_matches_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 characters would take years; the second search costs nothing."""
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    began = time.monotonic()
    for _ in range(20):
        assert matches(r"^(\w+\s?)*: fatal$", "x" * 60 + "!") is False

    assert time.monotonic() - began < 5.0
