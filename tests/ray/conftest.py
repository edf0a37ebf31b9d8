"""One real Ray cluster per module, and a namespace of it per test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.light import without_torch
from tests.ray.clusters import RayCluster, ray_cluster
from tests.ray.sites import RaySite

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that needs a cluster starts processes."""
    for item in items:
        if item.path.is_relative_to(HERE) and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A head without CPUs and two nodes; what is started there finds no torch."""
    ray = pytest.importorskip("ray", reason="ray is not installed")

    folder = tmp_path_factory.mktemp("ray")
    with ray_cluster(folder, variables={"PYTHONPATH": without_torch(folder)}) as made:
        ray.init(address=made.inner.address, namespace="test", log_to_driver=False, logging_level="warning")
        try:
            yield made
        finally:
            ray.shutdown()


@pytest.fixture
def site(cluster: RayCluster, tmp_path: Path) -> RaySite:
    """A namespace of the cluster."""
    return RaySite(tmp_path, cluster, f"test-{secrets.token_hex(4)}")


@pytest.fixture
def place(site: RaySite) -> RaySite:
    """The same, for tests that name it so."""
    return site
