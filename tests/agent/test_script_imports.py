"""The modules that a script imports, read from its text."""

from __future__ import annotations

import sys

import pytest

from rallypoint.agent.workers.zygote.launcher import imported_by, imports_of
from rallypoint.agent.workers.zygote.preload import installed
from rallypoint.wire.python import run_module

SCRIPT = """
import os, torch.nn as nn
from torch.utils.data import DataLoader
from . import beside
try:
    import maybe
except ImportError:
    import instead
if os.environ.get("X"):
    import conditional
def later():
    import lazy
import os
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param(SCRIPT, ("os", "torch.nn", "torch.utils.data", "maybe"), id="what is imported in any case, once"),
        pytest.param("import a\nthis is no Python", (), id="no Python"),
        pytest.param("import a\0", (), id="a null byte"),
        pytest.param("(" * 100_000, (), id="deeply nested"),
        pytest.param("import " + "a" * 200, (), id="a name that is too long"),
        pytest.param("\n".join(f"import m{n}" for n in range(1000)), tuple(f"m{n}" for n in range(400)), id="too many"),
    ],
)
def test_what_a_text_imports(text: str, names: tuple[str, ...]) -> None:
    """Without conditions, within bounds, and nothing of what is no Python."""
    assert imports_of(text) == names


def test_scripts_modules_and_code_are_read(tmp_path) -> None:
    """As Python would find them."""
    (tmp_path / "train.py").write_text("import json")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text("import csv")
    script = [sys.executable, "-u", str(tmp_path / "train.py"), "--flag"]
    assert imported_by(script, str(tmp_path)) == ("json",)
    assert imported_by([sys.executable, "-m", "train"], str(tmp_path)) == ("json",)
    assert imported_by([sys.executable, "-m", "package"], str(tmp_path)) == ("csv",)
    assert imported_by([sys.executable, "-c", "import zlib"], "") == ("zlib",)
    assert imported_by(run_module("package"), str(tmp_path)) == ()  # looked for elsewhere
    assert imported_by([sys.executable, "-m", "json.tool"], str(tmp_path))[:2] == ("argparse", "json")


def test_what_cannot_be_read_imports_nothing(tmp_path) -> None:
    """The worker itself tells what is wrong with it."""
    assert imported_by([sys.executable, str(tmp_path / "absent.py")], str(tmp_path)) == ()
    assert imported_by([sys.executable, "-X", "dev", "a.py"], str(tmp_path)) == ()
    assert imported_by([sys.executable, "-m", "no_such_package.train"], str(tmp_path)) == ()


def test_modules_beside_the_script_are_not_installed() -> None:
    """They may change between two rounds."""
    assert installed(["json.tool", "pytest", "no_such_module", "tests.agent.fakes"]) == ["json.tool", "pytest"]
