"""Every backend that the contract's tests run on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.backends.stage import FakeStage, LocalStage, Stage
from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.kube.stage import KubernetesStage


@pytest.fixture(scope="session")
def emulator() -> Iterator[Running]:
    """One cluster for all tests; each has a namespace of its own."""
    with running(Options()) as cluster:
        yield cluster


@pytest.fixture(
    params=[
        pytest.param("fake", id="fake"),
        pytest.param("local", id="local", marks=pytest.mark.live),
        pytest.param("kubernetes", id="kubernetes", marks=pytest.mark.live),
    ]
)
async def stage(request, tmp_path, home) -> AsyncIterator[Stage]:
    """One backend with its hands."""
    if request.param == "fake":
        made: Stage = FakeStage(tmp_path)
    elif request.param == "local":
        made = LocalStage(tmp_path, home)
    else:
        made = KubernetesStage(tmp_path, request.getfixturevalue("emulator"))
    yield made
    await made.close()
