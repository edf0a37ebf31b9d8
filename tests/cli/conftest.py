"""A place for each test, and a job file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.cli.main import main
from tests.cli.fake import Place

JOB = """\
name: digits
entrypoint: train.py
args: [--epochs, "3"]
nodes: 1:2
nproc_per_node: 2
"""


@pytest.fixture
def place() -> Place:
    """An empty place."""
    return Place()


@pytest.fixture
def run(place) -> Callable[..., int]:
    """Run a command there; returns its exit code."""
    return lambda *words: main([str(word) for word in words], services=place.services)


@pytest.fixture
def job_file(tmp_path) -> Path:
    """A job file with a script beside it."""
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path
