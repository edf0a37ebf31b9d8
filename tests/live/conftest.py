"""What tests of real processes may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.light import without_torch


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test starts finds no torch: for those whose scripts need none."""
    monkeypatch.setenv("PYTHONPATH", without_torch(tmp_path))
