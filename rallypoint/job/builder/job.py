"""`Job`: the result of `build()`. It is frozen; its document can be saved, and `submit()` runs it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from rallypoint.job.builder import settings as options
from rallypoint.job.document import write_yaml
from rallypoint.job.errors import JobError, Problem
from rallypoint.job.model import ElasticJob, load_job
from rallypoint.wire.arguments import PLATFORMS, WORDS
from rallypoint.wire.env import BACKEND
from rallypoint.wire.python import run_module

__all__ = ["Job"]

_STANDS_FOR_NAME = "job"

_COMMAND = ("rallypoint.cli.main", "submit")

#: Followed by the name of an Airflow connection, and then as `_COMMAND`.
_CONNECTED = ("rallypoint.connected",)

_INTERRUPTED = 130

#: Set by Airflow in the process of a task.
_AIRFLOW_TASK = "AIRFLOW_CTX_TASK_ID"


@dataclass(frozen=True)
class Job:
    """A valid job, ready to be submitted under any name.

    Attributes:
        text: the job document without a name, as JSON.
    """

    text: str

    @classmethod
    def of(cls, document: dict[str, Any], wrong: Iterable[Problem] = ()) -> Job:
        """Return the job of a document without a name; raises `JobError` for `wrong` and for what the document has."""
        found = list(wrong)
        try:
            ElasticJob.model_validate({"name": _STANDS_FOR_NAME, **document})
        except JobError as error:
            known = {problem.path for problem in found}
            found += [problem for problem in error.problems if problem.path not in known]
        if found:
            raise JobError(found)
        return cls(text=json.dumps(document))

    @property
    def document(self) -> dict[str, Any]:
        """The job document without a name."""
        document: dict[str, Any] = json.loads(self.text)
        return document

    def to_document(self, job_name: str | None = None, **settings: Unpack[options.SubmitSettings]) -> dict[str, Any]:
        """Return the job document, with the settings of `submit` that are given.

        Without a name it is `dlrover-` and the beginning of a digest of the document, so it is always the same.
        """
        given = options.read({**settings, **({} if job_name is None else {"job_name": job_name})}, {})
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:8]
        return given.applied({"name": given.name or f"dlrover-{digest}", **self.document})

    def to_yaml(self, job_name: str | None = None, **settings: Unpack[options.SubmitSettings]) -> str:
        """Return `to_document` as YAML."""
        return write_yaml(self.to_document(job_name, **settings))

    def submit(
        self,
        job_name: str | None = None,
        blocking: bool = True,  # noqa: FBT001, FBT002  DLRover has it so
        **settings: Unpack[options.SubmitArguments],
    ) -> int:
        """Run the job where `rallypoint submit` runs jobs ($RALLYPOINT_BACKEND, or as processes of this machine).

        A second submission of a job that runs changes nothing; if it is `blocking`, it waits for the end of that job.

        Args:
            job_name: of the job; by default DLROVER_UNIFIED_JOB_NAME, or `dlrover-` and a random number.
            blocking: wait until the job ends. Ctrl-C then leaves the job running and raises `KeyboardInterrupt`.
            settings: see docs/guides/roles.md; each is also a variable DLROVER_UNIFIED_<NAME>. `backend`, `namespace` and
                the other options of `rallypoint submit` say where the job runs, or `conn_id`, an Airflow connection.

        Returns:
            0 if the job succeeded (not blocking: if it was stored and started), 1 if not.

        Raises:
            JobError: names every setting that is wrong.

        """
        place, left = options.read_place(settings)
        given = options.from_environment({**left, **({} if job_name is None else {"job_name": job_name})})
        # The defaults of a connection come before those of `submit`.
        whole = given if "conn_id" in place else given.with_defaults()
        document = whole.applied({"name": given.name or _random_name(), **self.document})
        ElasticJob.model_validate(document)
        return _launch(document, blocking=blocking, place=place)


def _random_name() -> str:
    return f"dlrover-{secrets.token_hex(3)}"


def _launch(document: dict[str, Any], *, blocking: bool, place: Mapping[str, str]) -> int:
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
        code = _run(run_module(*command, str(file), *words, *(["--watch"] if blocking else [])))
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return 0 if code == 0 else 1


def _is_local(document: Mapping[str, Any], environ: Mapping[str, str], place: Mapping[str, str]) -> bool:
    platform = str(document.get("platform") or environ.get(WORDS["platform"].variable, ""))
    return (place.get("backend") or environ.get(BACKEND) or PLATFORMS.get(platform, "local")) == "local"


def _run(command: Sequence[str]) -> int:
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
