"""What a job waits for on a cluster, and what it is refused for, as the command line says it: with names and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rallypoint.backends.kubernetes.rbac import rbac
from rallypoint.cli.main import main
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage
from tests.waiting import eventually

pytestmark = pytest.mark.live

JOB = """\
name: digits
image: train
nodes: 2
entrypoint: [sh, -c, "sleep 3600"]
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def stage(tmp_path: Path, home: Path) -> Iterator[KubernetesStage]:
    """A namespace to which the printed manifests were applied, on a cluster with a training operator."""
    with running(Options(controllers=("pytorchjob",))) as cluster:
        made = KubernetesStage(tmp_path, cluster)
        for manifest in rbac(made.namespace):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            made.ask("POST", f"{root}/namespaces/{made.namespace}/{manifest['kind'].lower()}s", manifest, fine=(409,))
        yield made


@pytest.fixture
def command(stage: KubernetesStage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run a command against the stage; return its exit code and everything that it printed. The job is deleted at last."""
    where = ["--backend", "kubernetes", "--namespace", stage.namespace]
    where += ["--kubeconfig", str(stage.emulator.kubeconfig(tmp_path / "kubeconfig"))]

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, *where])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    yield run
    run("delete", "digits")


def submit(command: Command, folder: Path, text: str, *flags: str) -> tuple[int, str]:
    file = folder / "job.yaml"
    file.write_text(text)
    return command("submit", str(file), "--supervise", "process", *flags)


def test_a_full_quota_is_named_with_its_numbers(stage: KubernetesStage, command: Command, tmp_path: Path) -> None:
    """It is waited for; `status` and `explain` say which, how much is asked for, used and allowed, until there is room."""
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "2"}}}
    stage.ask("POST", stage.path("resourcequotas"), quota)
    assert submit(command, tmp_path, JOB)[0] == 0

    expected = re.compile(r"quota tight: node \d asks for pods=1; used pods=2, limit pods=2")
    eventually(lambda: expected.search(command("status", "digits")[1]), timeout=30, why=lambda: command("status", "digits")[1])
    assert "waiting for quota tight" in command("status", "digits")[1]
    assert expected.search(command("explain", "digits")[1])

    more = {"spec": {"hard": {"pods": "9"}}}
    stage.ask("PATCH", stage.path("resourcequotas", "tight"), more, content="application/merge-patch+json")
    eventually(lambda: "quota tight" not in command("status", "digits")[1], timeout=30)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(
            "priority_class: nope", "priority_class: 'nope' is not allowed; expected a PriorityClass", id="a PriorityClass"
        ),
        pytest.param(
            "service_account: nope", "service_account: 'nope' is not allowed; expected a ServiceAccount", id="a ServiceAccount"
        ),
    ],
)
def test_what_does_not_exist_is_named_and_no_role_is_asked_for(command: Command, tmp_path: Path, line: str, said: str) -> None:
    """Admission's 403 is no question of rights."""
    code, printed = submit(command, tmp_path, f"{JOB}{line}\n")

    assert code != 0
    assert said in printed
    assert "rbac" not in printed


def test_the_condition_of_an_operator_is_shown(command: Command, tmp_path: Path) -> None:
    """A PyTorchJob whose pods find no machine: what its operator says last, and what the scheduler says of a pod."""
    code, printed = submit(command, tmp_path, f"{JOB}resources: {{cpu: 5000}}\n", "--kind", "pytorchjob")
    assert code == 0, printed

    def told() -> bool:
        shown = command("status", "digits")[1]
        return "waits for" in shown and "PyTorchJob Created (" in shown and "Insufficient cpu" in shown

    eventually(told, timeout=30, why=lambda: command("status", "digits")[1])
    assert "PyTorchJob Created (" in command("explain", "digits")[1]
