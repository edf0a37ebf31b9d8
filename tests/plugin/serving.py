"""Starting the tab's application beside a test or a tool, with a throw-away home for Airflow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import eventually

__all__ = ["ROOT", "airflow_env", "output", "serving"]

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
    folder.mkdir(exist_ok=True)
    with output(folder).open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *args],
            cwd=ROOT,
            env=airflow_env(folder, **more),
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    assert process.stdin is not None
    try:
        yield f"http://127.0.0.1:{_port(process, output(folder))}"
    finally:
        process.stdin.close()
        process.kill()  # an Airflow that ends by itself takes seconds of CPU time for that
        process.wait()


def output(folder: Path) -> Path:
    """Return the file that has what the process prints."""
    return folder / "server.txt"


def _port(process: subprocess.Popen[bytes], printed: Path) -> int:
    """Return the port, which the server prints on a line of its own when it listens."""

    def found() -> int | None:
        code, lines = process.poll(), printed.read_text().splitlines(keepends=True)
        port = next((int(line) for line in lines if line.endswith("\n") and line.strip().isdigit()), None)
        assert port or code is None, f"the server ended with {code} before it told its port:\n{printed.read_text()}"
        return port

    return eventually(found, timeout=120.0, why=lambda: f"the server should tell its port: {printed.read_text()}")
