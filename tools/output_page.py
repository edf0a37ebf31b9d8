"""Write docs/reference/output.md: `python tools/output_page.py`.

The page shows output of the commands as it is. Times, process ids, ports and folders are replaced by fixed ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/output.md"

_HEAD = """\
<!-- Written by `python tools/output_page.py`. -->

# Output

This page shows what the commands print. Times, process ids, ports and folders are examples.
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
        failed = _run(home, "rallypoint", "submit", "fails.yaml", "--name", "mnist", "--watch", code=1)
        story = failed[failed.index("Job mnist failed") :]
        parts.append(
            _block(
                "The exception of a failed task",
                "",
                story,
                "A task raises `TrainingFailed` with this text; `--watch` prints it.",
            )
        )
    return "\n".join((_HEAD, *parts))


def _block(title: str, command: str, output: str, text: str = "") -> str:
    prompt = f"$ {command}\n" if command else ""
    note = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{note}```console\n{prompt}{output.rstrip()}\n```\n"


def _run(home: Path, program: str, *args: str, code: int = 0) -> str:
    env = {**os.environ, "RALLYPOINT_HOME": str(home / "home"), "COLUMNS": "80", "NO_COLOR": "1", "TZ": "UTC"}
    path = Path(sys.executable).parent / program
    done = subprocess.run(
        [str(path), *args],
        cwd=home,
        env=env,
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
