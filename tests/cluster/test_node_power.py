"""`RALLYPOINT_TEST_NODE_KILL`: the tests of `-m cluster` lose nodes by it, and its failures are told by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.loss_hands import Hooked, HookError
from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import running
from tests.live.light import without_torch
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
POWER = f"{sys.executable} -m tests.emulator.power"
TEST = "tests/cluster/test_loss_matrix.py::test_the_power_of_a_machine_fails"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        pytest.param("/nowhere/power", r"cannot run /nowhere/power node-a kill: No such file or directory$", id="missing"),
        pytest.param("sh -c 'echo no such node; exit 3'", r"ended with exit code 3: no such node$", id="fails"),
        pytest.param("false", r"false node-a kill ended with exit code 1: no output$", id="fails without a word"),
        pytest.param("sh -c 'sleep 60 & wait'", r"did not end within 0.5 s$", id="hangs"),
        pytest.param("power 'of", r"cannot read the command \"power 'of\": No closing quotation$", id="quoted wrongly"),
    ],
)
async def test_a_command_that_does_not_work_is_named(command: str, words: str) -> None:
    """With what it said; nothing of it is left."""
    began = time.monotonic()

    with pytest.raises(HookError, match=rf"^RALLYPOINT_TEST_NODE_KILL: .*{words}"):
        await Hooked(command, patience=0.5).kill("node-a")

    assert time.monotonic() - began < 30.0


def on_a_cluster(folder: Path, *selected: str, **variables: str) -> str:
    """Run `pytest -m cluster` as a person does who has a cluster; return what it printed."""
    words = (sys.executable, "-m", "pytest", "-m", "cluster", "-rs", "-q", "-p", "no:cacheprovider", *selected)
    environment = {**os.environ, "RALLYPOINT_TEST_IMAGE": "any:1", "RALLYPOINT_TEST_PYTHON": sys.executable, **variables}
    done = subprocess.run(
        [*words, "--basetemp", str(folder / "inner")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300 * PATIENCE,
        check=False,
    )
    return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"


@pytest.mark.extended
def test_a_cluster_loses_a_node_by_the_command(tmp_path: Path) -> None:
    """The emulated cluster stands for a real one: it is known by its kubeconfig alone, and its power switch is a command."""
    nodes = tuple(NodeOptions(name=f"node-{letter}") for letter in "abc")
    image = {"PYTHONPATH": without_torch(tmp_path)}
    with running(Options(rbac=True, nodes=nodes, image_env=image, speed=1.0)) as cluster:
        kubeconfig = str(cluster.kubeconfig(tmp_path / "kubeconfig"))
        told = on_a_cluster(
            tmp_path, f"{TEST}[cluster-node]", KUBECONFIG=kubeconfig, RALLYPOINT_TEST_NODE_KILL=f"{POWER} {cluster.url}"
        )
        assert "1 passed" in told, told
        skipped = on_a_cluster(tmp_path, f"{TEST}[cluster-node]", KUBECONFIG=kubeconfig, RALLYPOINT_TEST_NODE_KILL="")
        assert "RALLYPOINT_TEST_NODE_KILL is not set" in skipped, skipped
        broken = on_a_cluster(tmp_path, f"{TEST}[cluster-node]", KUBECONFIG=kubeconfig, RALLYPOINT_TEST_NODE_KILL="false")
        assert "RALLYPOINT_TEST_NODE_KILL: false node-" in broken, broken
        assert "ended with exit code 1" in broken, broken
