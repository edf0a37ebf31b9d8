"""Write docs/reference/output.md: `python tools/output_page.py`.

The page shows output of the commands as it is. Times, process ids, ports and folders are replaced by fixed ones.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/output.md"

_HEAD = """\
<!-- Written by `python tools/output_page.py`. -->

# Output

This page shows the output of the commands. Times, process ids, ports and folders are examples.
"""

#: Rank 1 kills itself in the first round; rank 0 ends first in the second.
_SCRIPT = """\
import os, signal, time
rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
time.sleep(1 + rank)
if first:
    os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(600)
"""

_FAILING = """\
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("learning rate is negative")
time.sleep(600)
"""

#: The task whose exception the page shows.
_DAG = """\
from airflow.sdk import DAG
from rallypoint.operators import ElasticTrainingOperator

with DAG("fails", schedule=None):
    ElasticTrainingOperator(task_id="train", job="{folder}/fails.yaml", name="mnist", entrypoint="{folder}/fails.py")
"""

_JOB = """\
name: digits
entrypoint: {script}
nproc_per_node: 2
recovery:
  max_restarts: 1
  node_replacements: 0
  stop_grace_period: 1s
fault_tolerance:
  retry_limit: 0
"""


def page() -> str:
    """Return the page; runs each command."""
    with tempfile.TemporaryDirectory(prefix="output-") as folder:
        home = Path(folder)
        (home / "train.py").write_text(_SCRIPT)
        (home / "fails.py").write_text(_FAILING)
        for name in ("train", "fails"):
            (home / f"{name}.yaml").write_text(_JOB.format(script=f"{name}.py"))
        parts = [
            _block("Help", "rallypoint --help", _run(home, "rallypoint", "--help")),
            _block("Help of submit", "rallypoint submit --help", _run(home, "rallypoint", "submit", "--help")),
            _block(
                "A recovery in the log of `rallypoint-agent run`",
                "rallypoint-agent run --nproc-per-node 2 train.py",
                _run(home, "rallypoint-agent", "run", "--nproc-per-node", "2", "--start-method", "spawn", "train.py"),
                "One worker is killed. The agent starts a new round with new workers, and the run succeeds.",
            ),
        ]
        _run(home, "rallypoint", "submit", "train.yaml", "--watch")
        parts.append(_block("A recovered job", "rallypoint explain digits", _run(home, "rallypoint", "explain", "digits")))
        note = (
            "The last lines of the log of an Airflow task whose job failed; `rallypoint submit --watch` prints the same text."
        )
        parts.append(_block("The exception of a failed task", "", _failed_task(home), note))
    return "\n".join((_HEAD, *parts))


def _failed_task(home: Path) -> str:
    """Run a DAG in Airflow; return the exception in the log of its task."""
    (home / "dags").mkdir()
    dag = home / "dags/fails.py"
    dag.write_text(_DAG.format(folder=home))
    airflow = {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    _run(home, "airflow", "db", "migrate", env=airflow)
    log = _run(home, "airflow", "dags", "test", "fails", "--dagfile-path", str(dag), env=airflow, code=1)
    start = log.index("rallypoint.provider.errors.TrainingFailed: ")
    lines = log[start:].splitlines()
    return "\n".join([lines[0], *itertools.takewhile(_is_of_exception, lines[1:])])


def _is_of_exception(line: str) -> bool:
    """Return whether a line belongs to the exception: a log line of Airflow starts with a date."""
    return re.match(r"\d{4}-\d\d-\d\d", line) is None


def _block(title: str, command: str, output: str, text: str = "") -> str:
    prompt = f"$ {command}\n" if command else ""
    note = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{note}```console\n{prompt}{output.rstrip()}\n```\n"


def _run(home: Path, program: str, *args: str, code: int = 0, env: Mapping[str, str] = MappingProxyType({})) -> str:
    base = {**os.environ, **env, "RALLYPOINT_HOME": str(home / "home"), "COLUMNS": "80", "NO_COLOR": "1", "TZ": "UTC"}
    path = Path(sys.executable).parent / program
    done = subprocess.run(
        [str(path), *args],
        cwd=home,
        env=base,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != code:
        raise RuntimeError(f"{program} {' '.join(args)}: exit code {done.returncode}; expected {code}\n{done.stdout}")
    return _steady(done.stdout, home)


def _steady(text: str, home: Path) -> str:
    """Replace volatile values by fixed ones."""
    text = text.replace(str(home), "/work")
    for pattern, value in (
        (r"\d\d:\d\d:\d\d\.\d{3}", "14:02:11.000"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-03-09 14:02:11"),
        (r"\b\d\d:\d\d:\d\d\b(?!\.)", "14:02:11"),
        (r"(pid[= ])\d+", r"\g<1>4711"),
        (r"(process )\d+", r"\g<1>4711"),
        (r"(127\.0\.0\.1:)\d+", r"\g<1>29500"),
        (r" on [\w.-]+( since|, since)", r" on host\1"),
        (r"\b\d+m \d\ds\b|\b\d+(?:\.\d+)? (?:s|ms)\b", "2.5 s"),
    ):
        text = re.sub(pattern, value, text)
    return re.sub(r"\(" + re.escape(os.uname().nodename) + r"\)", "(host)", text).replace(os.uname().nodename, "host")


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
