"""The command line on an emulated cluster, from the first submission to the last word."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from rallypoint.backends.kubernetes.labels import PART
from rallypoint.backends.kubernetes.lease import PROCESS, SILENT, write_time
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
    assert not _pods(stage)


def test_a_deletion_ends_the_supervisor_pod_and_its_lease(stage, tmp_path, command):
    """The command returns when the supervisor of a running job has ended, too; its Lease is deleted with its pod."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("echo it has trained", "sleep 3600"))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{stage.namespace}/leases"
    assert command("submit", str(file))[0] == 0
    eventually(lambda: _phase(stage) == "Running", timeout=60, why=lambda: f"phase {_phase(stage)}, pods {_pods(stage)}")
    uids = {pod["metadata"]["uid"] for pod in stage.pods() if pod["metadata"]["labels"][PART] == "supervisor"}
    owners = [owner["uid"] for lease in stage.ask("GET", leases)["items"] for owner in lease["metadata"]["ownerReferences"]]
    assert owners
    assert set(owners) <= uids

    assert command("delete", "digits")[0] == 0

    assert not _pods(stage)
    eventually(lambda: not stage.ask("GET", leases)["items"], timeout=60)


@pytest.fixture
def command(stage, tmp_path, capsys):
    """Run a command against the stage; return its exit code and everything that it printed."""
    where = ["--backend", "kubernetes", "--namespace", stage.namespace]
    where += ["--kubeconfig", str(stage.emulator.kubeconfig(tmp_path / "kubeconfig"))]

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, *where])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def killed(stage, tmp_path, command):
    """A job whose supervisor, a process of this machine, was killed while it waited; returns its file."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("echo it has trained", "sleep 3600"))
    code, printed = command("submit", str(file), "--supervise", "process", "--json")
    assert code == 0, printed
    pid = json.loads(printed)["supervisor_pid"]
    eventually(lambda: _phase(stage) == "Running", timeout=60, why=lambda: f"phase {_phase(stage)}, pods {_pods(stage)}")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists())
    yield file
    command("delete", "digits")


def test_a_killed_supervisor_is_noticed_by_one_command(stage, command, killed):
    """On its own machine the process is looked at: a job without a supervisor is shown as such, and submitting it adopts it."""
    assert "none since" in command("status", "digits")[1]
    assert "not running; to take over" in command("explain", "digits")[1]

    code, printed = command("submit", str(killed), "--supervise", "none")

    assert (code, "already exists; it had no supervisor and continues now" in printed) == (0, True), printed


def test_a_supervisor_that_was_killed_elsewhere_is_known_by_its_lease(stage, command, killed):
    """One reading decides, by the API server's time: a Lease of another machine that was renewed lately holds the job."""
    (lease,) = stage.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/{stage.namespace}/leases")["items"]
    name = lease["metadata"]["name"]
    process = lease["metadata"]["annotations"][PROCESS].partition("/")[2]

    def renew(seconds_ago: float) -> None:
        change = {
            "metadata": {"annotations": {PROCESS: f"another-boot/{process}"}},
            "spec": {"renewTime": write_time(time.time() - seconds_ago)},
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/{stage.namespace}/leases/{name}"
        stage.ask("PATCH", path, change, content="application/merge-patch+json")

    renew(SILENT - 10)
    assert "its last heartbeat was" in command("status", "digits")[1]
    code, printed = command("submit", str(killed), "--supervise", "none")
    assert (code, "is already running, and nothing was started" in printed) == (0, True), printed

    renew(SILENT + 2)
    assert "none since" in command("status", "digits")[1]
    assert command("submit", str(killed), "--supervise", "none")[0] == 0


def _phase(stage) -> str:
    found = stage.ask("GET", stage.path("configmaps", "rallypoint-digits"), fine=(404,))
    return JobRecord.from_json(found["data"]["record.json"]).phase.value if found else ""


def _pods(stage) -> dict[str, str]:
    return {pod["metadata"]["labels"][PART]: pod["status"].get("phase", "") for pod in stage.pods()}
