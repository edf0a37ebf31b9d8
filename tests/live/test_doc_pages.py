"""Every console block and every file of Get started and the tutorials is run, and shows the output of today."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.options import NodeOptions, Options
from tests.emulator.running import running
from tests.live import doc_pages
from tests.optional import needs

needs("torch")

ROOT = Path(__file__).parents[2]
LOCAL = ("get-started.md", "tutorials/from-torchrun.md", "tutorials/recovery-in-place.md", "tutorials/a-hang-explained.md")
CLUSTER = ("tutorials/on-kubernetes.md", "tutorials/from-kubernetes-pod-operator.md")

#: The page that `make test` runs; `make test-all` runs all of them.
SAMPLE = "tutorials/recovery-in-place.md"

NODES = tuple(NodeOptions(name=f"node-{letter}") for letter in "abcd")


def require(page: str) -> None:
    """Skip a page with a DAG where Airflow is not installed."""
    if "airflow dags" in (ROOT / "docs" / page).read_text() and importlib.util.find_spec("airflow") is None:
        pytest.skip("Airflow is not installed")


def run(page: str, folder: Path, env: dict[str, str]) -> list[str]:
    """Run a page; return the commands that failed, or printed something else than the page shows."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    wrong = []
    for _, command, code, lines in doc_pages.check(text, folder, env):
        found = doc_pages.differences(command.output, lines)
        if found or code:
            wrong.append(f"$ {command.text}: exit code {code}; {found}; its output:\n" + "\n".join(lines[-40:]))
    return wrong


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page, marks=[] if page == SAMPLE else pytest.mark.extended) for page in LOCAL],
)
def test_a_page_runs_on_this_machine(page: str, tmp_path: Path) -> None:
    """With its files, commands and output; pages with a DAG need Airflow."""
    require(page)
    wrong = run(page, tmp_path, doc_pages.environment(tmp_path))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.extended
@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in CLUSTER])
def test_a_page_runs_on_an_emulated_cluster(page: str, tmp_path: Path) -> None:
    """`kubectl` is a stand-in with the same output for the few commands of the pages."""
    require(page)
    with cluster(tmp_path) as env:
        wrong = run(page, tmp_path, env)
        assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", [pytest.param(page, id=page) for page in (*LOCAL, *CLUSTER)])
def test_every_block_of_yaml_is_a_file(page: str) -> None:
    """So a command of the page uses it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    files = [block.file for block in doc_pages.blocks(text) if block.language == "yaml"]
    commands = " ".join(command.text for block in doc_pages.blocks(text) for command in block.commands)

    assert [file for file in files if file not in commands] == []


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a shell that reaches an emulated cluster."""
    with running(Options(rbac=True, nodes=NODES)) as emulator:
        kubeconfig = emulator.kubeconfig(folder / "kubeconfig")
        programs = folder / "bin"
        programs.mkdir()
        kubectl = programs / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests" / "live" / "kubectl.py"}" "$@"\n')
        kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
        env = doc_pages.environment(folder)
        yield {**env, "KUBECONFIG": str(kubeconfig), "PATH": os.pathsep.join((str(programs), env["PATH"]))}
