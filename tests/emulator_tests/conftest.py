"""One emulator for the tests of a file; a namespace of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.emulator_tests.calls import Calls

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """An API server without nodes: pods are what the test says they are."""
    with running(Options(nodes=(), bookmark_every=0.2)) as emulator:
        yield emulator


@pytest.fixture
def calls(server: Running) -> Calls:
    namespace = f"test-{next(_NUMBERS)}"
    code, _ = server.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    assert code == 201
    return Calls(server=server, namespace=namespace)
