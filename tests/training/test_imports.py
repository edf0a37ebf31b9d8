from __future__ import annotations

import pytest

import rallypoint.training
from tests.training.worlds import finish, python


def test_progress_needs_no_torch():
    """Importing the package and reporting progress imports neither torch nor anything else that is large."""
    script = (
        "import sys; from rallypoint.training import current_job, report_progress; report_progress(1, loss=0.5); current_job();"
        "print(sorted({'torch', 'numpy', 'pydantic', 'yaml'} & set(sys.modules)))"
    )

    assert finish(python("-c", script)) == "[]\n"


@pytest.mark.parametrize("name", rallypoint.training.__all__)
def test_public_names_are_there(name):
    """Every public name can be had from the package, and says what it is."""
    assert getattr(rallypoint.training, name).__doc__
    assert name in dir(rallypoint.training)


def test_unknown_names_are_refused():
    """A name that is not there is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'checkpoint'"):
        _ = rallypoint.training.checkpoint
