"""Starting the tab's application beside a test or a tool, with a throw-away home for Airflow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "airflow_env", "serving"]

ROOT = Path(__file__).parents[2]


def airflow_env(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of an Airflow of its own in `folder`."""
    return {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        **more,
    }


@contextlib.contextmanager
def serving(folder: Path, module: str = "tests.plugin.server", *args: str, **more: str) -> Iterator[str]:
    """Serve in a process of its own, and give the address of its root; `more` are variables of its environment."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *args],
        cwd=ROOT,
        env=airflow_env(folder, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{_port(process)}"
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().isdigit():
            return int(line)
    raise AssertionError(f"the server ended with {process.wait()} before it told its port")
