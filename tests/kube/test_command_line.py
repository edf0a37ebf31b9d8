"""The command line on an emulated cluster, from the first submission to the last word."""

from __future__ import annotations

import pytest

from rallypoint.backends.kubernetes.labels import PART
from rallypoint.backends.kubernetes.rbac import rbac
from rallypoint.cli.main import main
from rallypoint.supervision.record import JobRecord
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage
from tests.waiting import eventually

pytestmark = pytest.mark.live

JOB = """\
name: digits
image: train
entrypoint: [sh, -c, "echo it has trained"]
recovery: {max_restarts: 0, node_replacements: 0}
"""


@pytest.fixture
def stage(tmp_path, home):
    """A namespace to which the printed manifests were applied."""
    with running(Options()) as cluster:
        made = KubernetesStage(tmp_path, cluster)
        for manifest in rbac(made.namespace):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            made.ask("POST", f"{root}/namespaces/{made.namespace}/{manifest['kind'].lower()}s", manifest, fine=(409,))
        yield made


def test_a_pod_sees_a_job_to_its_end(stage, tmp_path, capsys):
    """What was left behind needs nobody: it trains, its words can be read, and a deletion leaves nothing."""
    where = ["--backend", "kubernetes", "--namespace", stage.namespace]
    where += ["--kubeconfig", str(stage.emulator.kubeconfig(tmp_path / "kubeconfig"))]
    file = tmp_path / "job.yaml"
    file.write_text(JOB)

    assert main(["plan", str(file), *where, "--dry-run=server"]) == 0
    assert main(["submit", str(file), *where]) == 0
    eventually(lambda: _phase(stage) == "Succeeded", timeout=60, why=lambda: f"phase {_phase(stage)}, pods {_pods(stage)}")
    eventually(lambda: _pods(stage).get("supervisor") == "Succeeded", timeout=60, why=lambda: str(_pods(stage)))
    capsys.readouterr()

    assert main(["logs", "digits", *where]) == 0
    assert capsys.readouterr().out == "it has trained\n"
    assert main(["status", "digits", *where]) == 0
    assert "Succeeded" in capsys.readouterr().out
    assert main(["delete", "digits", *where]) == 0
    eventually(lambda: not _pods(stage), timeout=60, why=lambda: str(_pods(stage)))


def _phase(stage) -> str:
    found = stage.ask("GET", stage.path("configmaps", "rallypoint-digits"), fine=(404,))
    return JobRecord.from_json(found["data"]["record.json"]).phase.value if found else ""


def _pods(stage) -> dict[str, str]:
    return {pod["metadata"]["labels"][PART]: pod["status"].get("phase", "") for pod in stage.pods()}
