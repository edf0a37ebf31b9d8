"""The source distribution is enough to build, test and document from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this tree, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def test_it_holds_every_program_of_its_makefile(unpacked: Path) -> None:
    """Each target runs files and modules that are there."""
    text = (unpacked / "Makefile").read_text()
    scripts = re.findall(r"(?:PYTHON\)|VENV_PYTHON\)) (\w[\w/]*\.py)", text)
    modules = re.findall(r"-m ([\w.]+[\w])", text)

    assert len(scripts) >= 6
    assert len(modules) >= 6
    assert [script for script in scripts if not (unpacked / script).exists()] == []
    places = [unpacked.joinpath(*module.split(".")) for module in modules]
    assert [str(place) for place in places if not (place.is_dir() or place.with_suffix(".py").exists())] == []
    for target in ("help", "environment", "lint"):
        done = subprocess.run(["make", "-n", target], cwd=unpacked, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_it_holds_all_that_is_tracked(unpacked: Path) -> None:
    """Only what serves this repository's own host is left out."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this tree is no clone")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.split("\0") if name and (ROOT / name).exists()}

    missing = {name for name in tracked if not (unpacked / name).exists()}
    assert {name for name in missing if not name.startswith((".ci/", ".github/", ".gitignore"))} == set()
