"""A user who can write to the current folder runs no code in the processes of Rallypoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

#: Modules that our processes import, and that another user has put where everybody may write.
PLANTED = ("rallypoint/__init__.py", "json.py", "pickle.py", "runpy.py", "yaml.py", "aiohttp.py")

#: Beside the script: an extension and an operator, which are found by their names in processes of their own.
CLASSES = """
class Advises:
    def decide(self, failure):
        return "NORMAL"

class Checks:
    def check(self):
        return True
"""


@pytest.fixture
def shared(tmp_path: Path, light: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; a process that imports from it adds a line to the file `ran` beside it."""
    folder = tmp_path / "shared"
    for name in PLANTED:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write(f'{name} in {{sys.orig_argv}}\\n')\n")
    (tmp_path / "train.py").write_text("print('it has trained')\n")
    (tmp_path / "classes.py").write_text(CLASSES)
    (folder / "mine.py").write_text("def run():\n    print('it has trained')\n")
    monkeypatch.chdir(folder)
    return folder


def run(command: str, *words: object) -> str:
    """Run one of our commands as it is installed, and return what it said; it must succeed."""
    line = [str(Path(sys.executable).with_name(command)), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def ran(folder: Path) -> str:
    """Return what was run of that which was planted."""
    path = folder.with_name("ran")
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({}, id="a script elsewhere"),
        pytest.param(
            {"entrypoint": "mine:run", "process_group": False}, id="a function in the folder", marks=pytest.mark.extended
        ),
    ],
)
def test_a_submitted_job_imports_nothing_of_the_current_folder(shared: Path, what: dict[str, object]) -> None:
    """In none of its processes: supervisor, coordinator, agent, workers, and those of the user's own classes."""
    document = {
        "name": "planted",
        "entrypoint": str(shared.with_name("train.py")),
        "workdir": str(shared),
        "env": {"PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(shared.parent)))},
        "fault_tolerance": {"dynamic_failover_extension": "classes::Advises", "retry_limit": 0},
        "health": {"pre_check_ops": [["classes", "Checks", True]]},
        **what,
    }
    job = shared.with_name("job.json")
    job.write_text(json.dumps(document))

    run("rallypoint", "submit", job, "--watch")

    assert "it has trained" in run("rallypoint", "logs", "planted")
    assert ran(shared) == ""


def test_a_run_imports_nothing_of_the_current_folder(shared: Path) -> None:
    """Neither in the process of the stores nor in that which workers are forked from."""
    told = run("rallypoint-agent", "run", "--standalone", "--nproc-per-node", 2, shared.with_name("train.py"))

    assert told.count("it has trained") == 2
    assert ran(shared) == ""
