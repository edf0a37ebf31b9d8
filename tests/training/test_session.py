"""What a worker that lives through rounds tells of what went wrong in it."""

from __future__ import annotations

import logging

import pytest

from rallypoint.training import session
from tests.waiting import eventually


def test_what_a_step_raised_is_told_with_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Later, when nothing waits for it, though the traceback has been let go with all that its frames hold."""
    with pytest.raises(ArithmeticError) as raised:
        raise ArithmeticError("the loss is not a number")

    with caplog.at_level(logging.WARNING):
        session._tell_later(raised.value)
        assert "a training step raised" not in caplog.text
        raised.value.__traceback__ = None
        eventually(lambda: "a training step raised" in caplog.text)

    assert 'raise ArithmeticError("the loss is not a number")' in caplog.text
    assert "ArithmeticError: the loss is not a number" in caplog.text
