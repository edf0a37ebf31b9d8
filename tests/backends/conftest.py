"""Every backend that the contract's tests run on."""

from __future__ import annotations

import pytest

from tests.backends.stage import FakeStage, LocalStage, Stage


@pytest.fixture(params=[pytest.param("fake", id="fake"), pytest.param("local", id="local", marks=pytest.mark.live)])
def stage(request, tmp_path, home) -> Stage:
    """One backend with its hands."""
    return FakeStage(tmp_path) if request.param == "fake" else LocalStage(tmp_path, home)
