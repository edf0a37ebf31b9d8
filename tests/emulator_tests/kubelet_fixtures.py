"""An emulated cluster with nodes, for tests whose pods run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import Running, running
from tests.leftovers import marked_with

__all__ = ["cluster"]

OPTIONS = Options(nodes=tuple(NodeOptions(name=f"node-{letter}", gpus=2) for letter in "abc"), speed=50.0)


@pytest.fixture(scope="module", name="server")
def cluster() -> Iterator[Running]:
    """Three nodes with two GPUs each; nothing that ran there is left afterwards."""
    with running(OPTIONS) as emulator:
        folder = emulator.emulator.folder
        yield emulator
    assert marked_with(str(folder)) == ()
    assert not folder.exists()
