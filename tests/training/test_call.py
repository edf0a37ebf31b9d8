"""`rallypoint.training.call`: functions and classes by their names, and the settings of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.training import job_config
from rallypoint.training.call import TargetError, find, main
from rallypoint.wire.codec import WireError
from rallypoint.wire.env import CONFIG
from rallypoint.wire.python import run_module

MODULE = """
import missing_of_somebody_else
"""
GOOD = """
import sys

said = []

def run():
    said.append(list(sys.argv))

class Trainer:
    def run(self):
        said.append("class")

class Idle:
    pass

number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module on the path."""
    (tmp_path / "called_module.py").write_text(GOOD)
    (tmp_path / "broken_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.delitem(sys.modules, "called_module", raising=False)
    return "called_module"


def test_functions_and_classes_are_called(module):
    """A function without arguments, which are in sys.argv; of a class its run()."""
    main([f"{module}:run", "--lr", "1"])
    main([f"{module}:Trainer"])

    assert sys.modules[module].said == [[f"{module}:run", "--lr", "1"], "class"]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("called_module:walk", "module called_module has no attribute 'walk'"),
        ("called_module:Idle", "class Idle has no method run()"),
        ("called_module:number", "int is not a function or class"),
        ("no_such_package.train:run", "no module 'no_such_package' on the Python path"),
    ],
)
def test_what_cannot_be_called_is_told(module, target, text):
    """With where it was looked for."""
    with pytest.raises(TargetError, match="^" + target) as caught:
        find(target)
    assert text in str(caught.value)


def test_a_missing_import_of_the_module_is_its_own_error(module):
    """It is not the module that is missing."""
    with pytest.raises(ModuleNotFoundError, match="missing_of_somebody_else"):
        find("broken_module:run")


def test_no_target_is_an_error():
    """Nothing is called."""
    with pytest.raises(TargetError, match="none given"):
        main(["--process-group"])


@pytest.mark.parametrize(("end", "code"), [("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_exit_codes_are_those_of_a_script(tmp_path, end, code):
    """`sys.exit()` and 0 are a success."""
    (tmp_path / "ending.py").write_text(f"import sys\ndef run():\n    {end}\n")

    done = subprocess.run(run_module("rallypoint.training.call", "ending:run"), cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == code


def test_settings_are_read_from_the_environment():
    """Nothing is an empty mapping; what is no mapping is an error."""
    assert job_config({CONFIG: '{"lr": 1e-05}'}) == {"lr": 1e-5}
    assert job_config({}) == {}
    for text in ("[1]", "{"):
        with pytest.raises(WireError, match=CONFIG):
            job_config({CONFIG: text})
