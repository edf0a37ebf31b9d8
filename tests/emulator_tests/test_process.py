"""The emulator as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import yaml

from tests.emulator.running import Troubles

pytestmark = pytest.mark.live


@pytest.fixture
def process(tmp_path):
    options = ["--rbac", "--nodes", "1", "--crds", str(tmp_path), "--kubeconfig", str(tmp_path / "kubeconfig")]
    with subprocess.Popen([sys.executable, "-m", "tests.emulator", *options], stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def test_it_starts_by_itself(process, tmp_path):
    """It prints its address, writes a kubeconfig, refuses strangers if asked to, and ends when it is told."""
    url = process.stdout.readline().strip()
    told = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert told["clusters"][0]["cluster"]["server"] == url
    server = Troubles(url)

    assert server.request("GET", "/api/v1/nodes")[0] == 403
    code, nodes = server.request("GET", "/api/v1/nodes", token=told["users"][0]["user"]["token"])
    assert (code, [node["metadata"]["name"] for node in nodes["items"]]) == (200, ["node-0"])
    assert server.watches() == {}

    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
