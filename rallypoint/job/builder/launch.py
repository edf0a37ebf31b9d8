"""Run `rallypoint submit` on a document in a separate process, so `submit()` works in any thread and event loop."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rallypoint.job.document import write_yaml
from rallypoint.job.errors import JobError, Problem
from rallypoint.job.model import load_job
from rallypoint.wire.arguments import PLATFORMS, WORDS
from rallypoint.wire.env import BACKEND

__all__ = ["launch"]

_COMMAND = ("-m", "rallypoint.cli.main", "submit")
#: Followed by the name of an Airflow connection, and then as `_COMMAND`.
_CONNECTED = ("-m", "rallypoint.connected")
_INTERRUPTED = 130
#: Set by Airflow in the process of a task.
_AIRFLOW_TASK = "AIRFLOW_CTX_TASK_ID"


def launch(document: dict[str, Any], *, blocking: bool, place: Mapping[str, str]) -> int:
    """Submit a document; return 0 or 1, as `rallypoint submit` does. Raises `KeyboardInterrupt` if the wait was interrupted.

    `place` are options of the command that say where the job runs, by their names; `conn_id` is an Airflow connection.
    """
    options = dict(place)
    conn_id = options.pop("conn_id", "")
    if os.environ.get(_AIRFLOW_TASK):
        told = "is not possible in an Airflow task; use ElasticTrainingOperator(job=job)"
        raise JobError([Problem(path="submit", text=told)])
    if conn_id and importlib.util.find_spec("airflow") is None:
        told = f"{conn_id!r} is not allowed; Airflow is not installed. Install apache-airflow, or set the argument backend"
        raise JobError([Problem(path="conn_id", text=told)])
    if not conn_id and _is_local(document, os.environ, place):
        # Relative paths start here, not where the file is written.
        document = load_job(document, base=Path.cwd()).to_document()
    with tempfile.TemporaryDirectory(prefix="rallypoint-") as folder:
        file = Path(folder) / f"{document['name']}.yaml"
        file.write_text(write_yaml(document), encoding="utf-8")
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        command = (*_CONNECTED, conn_id) if conn_id else _COMMAND
        code = _run([sys.executable, *command, str(file), *words, *(["--watch"] if blocking else [])])
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return 0 if code == 0 else 1


def _is_local(document: Mapping[str, Any], environ: Mapping[str, str], place: Mapping[str, str]) -> bool:
    platform = str(document.get("platform") or environ.get(WORDS["platform"].variable, ""))
    return (place.get("backend") or environ.get(BACKEND) or PLATFORMS.get(platform, "local")) == "local"


def _run(command: list[str]) -> int:
    # A session of its own: a terminal's Ctrl-C reaches it once, through this process.
    process = subprocess.Popen(command, start_new_session=True)
    with _forwarding(process):
        return process.wait()


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGINT and SIGTERM on to the process, where this thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _frame: object) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
