"""One wheel and the bare environments made from it, for all tests of this room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.bare import Bare, bare

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Where jobs are submitted from: neither Airflow nor torch."""
    return bare(tmp_path_factory.mktemp("client"), wheel, "client")


@pytest.fixture(scope="session")
def pod(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """A training image: torch, but neither Airflow nor pydantic."""
    return bare(tmp_path_factory.mktemp("pod"), wheel, "agent")
