from __future__ import annotations

from pathlib import Path

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


def test_no_public_name_is_that_of_a_module_beside_it():
    """Whoever imports such a module first would find it in the place of what the name stands for."""
    beside = {path.stem for path in Path(rallypoint.training.__file__).parent.glob("*.py")}
    assert not beside & set(rallypoint.training.__all__)
