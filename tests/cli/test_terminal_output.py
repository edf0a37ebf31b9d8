"""What a job reports cannot steer the terminal of an operator."""

from __future__ import annotations

import dataclasses
import io
import sys

import pytest

from rallypoint.wire.status import Outcome
from tests.cli.fake import log_lines
from tests.cli.samples import RAISED, over, process_fault

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[2J\u202e"


def test_logs_cannot_steer_a_terminal(run, place, capsys):
    """Control characters are spelled out, unless somebody asks for them; colours are for screens."""
    place.put(over(outcome=Outcome.SUCCEEDED), lines=log_lines((0, "out", HOSTILE)))

    assert run("logs", "digits", "-r", "0") == 0
    assert capsys.readouterr().out == "\\x1b]0;owned\\x07red\\x1b[2J\\u202e\n"
    assert run("logs", "digits", "-r", "0", "--raw") == 0
    assert capsys.readouterr().out == f"{HOSTILE}\n"


@pytest.mark.parametrize("codes", ["", "58;5;8", "38;2;8;8", "48;8", "38;7;8"])
def test_colours_of_a_log_stay_at_a_screen(run, place, monkeypatch, codes):
    """And nothing else does, such as colours that some terminals take for concealed text."""
    conceals = f"\x1b[{codes}m" if codes else ""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    place.put(over(outcome=Outcome.SUCCEEDED), lines=log_lines((0, "out", conceals + HOSTILE)))

    assert run("logs", "digits", "-r", "0") == 0
    assert screen.getvalue() == "\\x1b]0;owned\\x07\x1b[31mred\\x1b[2J\\u202e\x1b[0m\n"


@pytest.mark.parametrize(
    "command", [("status",), ("explain",), ("status", "--watch"), ("status", "--json"), ("explain", "--json")]
)
@pytest.mark.parametrize("screen", [False, True], ids=["a pipe", "a screen"])
def test_what_a_job_reports_cannot_steer_a_terminal(run, place, monkeypatch, command, screen):
    """Errors, hosts and names of metrics are the script's words: the verdict, the incidents, the table, the story."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: screen)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    bad = dataclasses.replace(RAISED, error=HOSTILE, host=HOSTILE, log_tail=(HOSTILE,))
    fault = dataclasses.replace(process_fault(culprit=bad, healed=False), reason=HOSTILE)
    ended = over(outcome=Outcome.FAILED)
    assert ended.verdict is not None
    verdict = dataclasses.replace(ended.verdict, message=HOSTILE, culprit=bad)
    place.put(dataclasses.replace(ended, incidents=(fault,), verdict=verdict))

    run(command[0], "digits", *command[1:])
    shown = out.getvalue()
    assert "owned" in shown
    assert not set(shown) & {"\x07", "\u202e"}
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown


def test_an_error_cannot_steer_a_terminal(run, place, capsys):
    """Not even the name that somebody was made to copy."""
    assert run("status", "\x1b[2Jdigits") == 1
    assert "\\x1b[2Jdigits" in capsys.readouterr().err
