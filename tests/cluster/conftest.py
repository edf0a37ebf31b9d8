"""The sites of the suite: this machine, the emulated cluster, and with `-m cluster` a real one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.sites import ClusterSite, LocalSite, Pods, Site, emulated
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import Running, running
from tests.live.light import without_torch

HERE = Path(__file__).parent

#: Read here: the environment of a test has none of our variables.
KUBECONFIG = os.environ.get("KUBECONFIG", "")
TOLD = {name: os.environ.get(f"RALLYPOINT_TEST_{name}", "") for name in ("IMAGE", "PULL_POLICY", "HOST_PATH", "PYTHON")}

NO_KUBECONFIG = "no cluster: KUBECONFIG names none; set it, and RALLYPOINT_TEST_IMAGE to an image with Rallypoint's agent"
NO_IMAGE = (
    "RALLYPOINT_TEST_IMAGE: '' is not allowed; expected an image with Rallypoint's agent, or "
    "any in which the host's Python runs"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here starts processes; what needs a real cluster is collected only where it was asked for."""
    asked = "cluster" in (config.option.markexpr or "")
    unwanted = []
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.live)
            if _elsewhere(item):
                item.add_marker(pytest.mark.extended)
            if item.get_closest_marker("cluster") and not asked:
                unwanted.append(item)
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in unwanted]


def _elsewhere(item: pytest.Item) -> bool:
    """Return whether `make test` runs this test, but in another place (`@pytest.mark.sample(PLACE)`)."""
    sample, call = item.get_closest_marker("sample"), getattr(item, "callspec", None)
    return sample is not None and call is not None and call.params.get("site") not in (None, "cluster", *sample.args)


NODES = tuple(NodeOptions(name=f"node-{letter}") for letter in "abcdefg")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster that enforces Roles; its images hold no torch, which few scripts here need."""
    image = {"PYTHONPATH": without_torch(tmp_path_factory.mktemp("image"))}
    with running(Options(rbac=True, nodes=NODES, image_env=image)) as cluster:
        yield cluster


@pytest.fixture
def torch_emulator() -> Iterator[Running]:
    """The same with torch."""
    with running(Options(rbac=True, nodes=NODES)) as cluster:
        yield cluster


def real(folder: Path) -> ClusterSite:
    """A namespace of the cluster that KUBECONFIG names."""
    if not KUBECONFIG:
        pytest.skip(NO_KUBECONFIG)
    paths = tuple(path for path in TOLD["HOST_PATH"].split(os.pathsep) if path)
    if not TOLD["IMAGE"]:
        pytest.fail(NO_IMAGE, pytrace=False)
    python = TOLD["PYTHON"] or (f"{paths[0]}/bin/python" if paths else "python")
    pods = Pods(image=TOLD["IMAGE"], policy=TOLD["PULL_POLICY"], python=python, host_paths=paths)
    return ClusterSite(folder, KUBECONFIG, pods)


@pytest.fixture(params=["local", "emulator", pytest.param("cluster", marks=pytest.mark.cluster)])
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    """Each place where the suite runs."""
    if request.param == "local":
        monkeypatch.setenv("PYTHONPATH", without_torch(tmp_path))
        yield LocalSite(tmp_path, home)
        return
    made = real(tmp_path) if request.param == "cluster" else emulated(request.getfixturevalue("emulator"), tmp_path)
    async with made.opened():
        yield made


@pytest.fixture
async def place(emulator: Running, tmp_path: Path) -> AsyncIterator[ClusterSite]:
    """A namespace of the emulated cluster, for tests that need its hands; workers leave their trails in a folder `trail`."""
    (tmp_path / "trail").mkdir()
    async with emulated(emulator, tmp_path, TRAIL=str(tmp_path / "trail")).opened() as made:
        yield made
        emulator.heal()
