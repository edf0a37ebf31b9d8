"""The backend of the emulated cluster that a test file starts as its fixture `cluster`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from tests.emulator.running import Running


@pytest.fixture
async def backend(cluster: Running) -> AsyncIterator[KubernetesBackend]:
    """Jobs of the namespace `default`."""
    made = KubernetesBackend(Access(namespace="default", server=cluster.url))
    yield made
    await made.close()
