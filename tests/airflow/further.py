"""Looks at a real Airflow that a matrix of kills does not take: where secrets are, and what sensors see of a real hang."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.provider.naming import default_name
from rallypoint.wire import codec
from rallypoint.wire.status import JobStatus
from tests.airflow.deployment import Deployment, deployment
from tests.airflow.planted import Planted, found_in_database, found_in_files, found_in_titles, planted
from tests.airflow.rest import RestError
from tests.airflow.stage import OVER
from tests.waiting import eventually

__all__ = ["Look", "look_further"]

#: Seconds on a quiet machine.
_SOON = 60.0


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was looked for, what was seen, and what of it must not be."""

    name: str
    seen: str
    seconds: float
    wrong: str = ""


def look_further() -> Iterator[Look]:
    """Start an Airflow with secrets in its connections, and yield what each look at it has seen."""
    with (
        tempfile.TemporaryDirectory(prefix="airflow-") as folder,
        planted() as secrets,
        deployment(Path(folder), **secrets.variables, AIRFLOW__RALLYPOINT__UI_PUBLISH_INTERVAL="1") as made,
    ):
        made.await_dags("secretive", "guarded")
        yield _look(made, "no secret is stored outside of connections", lambda: _secrets(made, secrets))
        yield _look(made, "sensors with `start_from_trigger` find a hang", lambda: _hang(made))


def _look(made: Deployment, name: str, look: Callable[[], str]) -> Look:
    began = time.monotonic()
    seen, wrong = "", ""
    try:
        seen = look()
    except (AssertionError, RestError) as error:
        wrong = f"{error}\n{made.tell()}"
    return Look(name=name, seen=seen, seconds=time.monotonic() - began, wrong=wrong)


class _Run:
    """A run of one of the DAGs, whose training goes on until it may end."""

    def __init__(self, made: Deployment, dag: str) -> None:
        self._made, self._dag, self.folder = made, dag, made.folder / "runs" / dag
        self.folder.mkdir(parents=True)
        made.rest.trigger(dag, dag, {"folder": str(self.folder)})

    def state(self, task: str) -> str | None:
        found = self._made.rest.task(self._dag, self._dag, task)
        return None if found is None else found.state

    def waits(self, holds: Callable[[], Any], what: str) -> Any:
        def story() -> str:
            tasks = {path.parent.name: path.name for path in self.logs()}
            return f"{self._dag}: {what}; {tasks}\n{self.tell()}"

        return eventually(holds, timeout=_SOON, every=0.2, why=story)

    def comes_to(self, task: str, state: str) -> None:
        """Wait until a task is in a state; fails at once when it stays in another."""

        def is_there() -> bool:
            now = self.state(task)
            assert now == state or now not in OVER, f"{task} is {now}, and should come to {state}\n{self.tell()}"
            return now == state

        self.waits(is_there, f"{task} should come to {state}")

    def shows(self, task: str, state: str) -> dict[str, Any]:
        """Wait until the tab shows the job of a task in a state, and return its page."""
        seen: dict[str, Any] = {}

        def is_shown() -> bool:
            seen.update(self._made.rest.page(self._dag, self._dag, task))
            return bool(seen["state"] == state)

        self.waits(is_shown, f"the tab of {task} should show {state}")
        return seen

    def may_end(self) -> None:
        (self.folder / "enough").touch()

    def returned(self, task: str) -> Any:
        return self._made.rest.returned(self._dag, self._dag, task)

    def logs(self, task: str = "*") -> list[Path]:
        place = self._made.folder / "airflow" / "logs" / f"dag_id={self._dag}"
        return [path for path in place.rglob("*.log*") if task in ("*", path.parent.name.removeprefix("task_id="))]

    def tell(self) -> str:
        return "\n".join(
            f"--- {path.parent.name}/{path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.logs()
        )

    @property
    def place(self) -> Path:
        """The folder of the local job."""
        return self._made.home / "jobs" / default_name(dag_id=self._dag, run_id=self._dag, task_id="train", map_index=-1)

    @property
    def status(self) -> JobStatus | None:
        try:
            return codec.loads(JobStatus, (self.place / "status.json").read_bytes())
        except FileNotFoundError:
            return None


def _secrets(made: Deployment, secrets: Planted) -> str:
    """Search while job and sensor are deferred, and once more when all is over."""
    run = _Run(made, "secretive")
    run.comes_to("train", "deferred")
    run.comes_to("ends", "deferred")
    run.waits(lambda: "'phase': 'Running'" in secrets.objects(), "pods should run")
    page = run.shows("train", "running")
    assert page["live"], page
    assert "ui_connections" in page["notice"], page["notice"]
    rows = _search(made, secrets, "while it is deferred")
    assert "trigger" in rows, f"no row of the table trigger names the connection, only {sorted(rows)}"
    run.may_end()
    for task in ("train", "ends"):
        run.comes_to(task, "success")
    assert run.returned("train")["phase"] == "Succeeded"
    assert run.shows("train", "succeeded")["kept"]
    assert "it has trained" in run.tell(), "the log of the task has no output of the rank"
    tables = len(_search(made, secrets, "afterwards"))
    return (
        f"0 secrets in all tables, files, arguments and objects; the connection's name is in {tables} tables; "
        "the tab showed the running job as its trigger published it"
    )


def _search(made: Deployment, secrets: Planted, when: str) -> set[str]:
    """Raise where a secret is; return the tables that have the connection's name, by which the search is seen to work."""
    everywhere = {
        "tables": found_in_database(made.database.url, secrets.secrets),
        "files": found_in_files(made.folder, secrets.secrets),
        "arguments": found_in_titles(secrets.secrets),
        "objects": {word for word in secrets.secrets if word in secrets.objects()},
    }
    places = {where: had for where, had in everywhere.items() if had}
    assert not places, f"secrets were found {when}: {places}"
    return set(found_in_database(made.database.url, ("canary",)))


def _hang(made: Deployment) -> str:
    """Stop one of two ranks for good, and let it go on when the sensor has said so."""
    run = _Run(made, "guarded")
    for task in ("hangs", "ends"):
        run.comes_to(task, "deferred")
    begun = [path.name for task in ("meets", "hangs", "ends") for path in run.logs(task) if "trigger" not in path.name]
    run.comes_to("meets", "success")
    run.waits((run.folder / "trains-1").exists, "twenty steps are trained")
    assert run.state("hangs") == "deferred"
    begun += [path.name for task in ("hangs", "ends") for path in run.logs(task) if "trigger" not in path.name]
    assert not begun, f"a worker began a sensor that starts in the triggerer: {begun}"
    status = run.status
    assert status is not None
    [victim] = [rank.pid for rank in status.ranks if rank.rank == 1]
    os.kill(victim, signal.SIGSTOP)
    try:
        run.comes_to("hangs", "success")
    finally:
        os.kill(victim, signal.SIGCONT)
    found = run.returned("hangs")
    assert (found["hang"], found["culprits"]) == ("verdict", [1]), found
    assert "hang.py" in str(found["evidence"]) or "did not answer" in str(found["evidence"]), found
    run.may_end()
    for task in ("train", "ends"):
        run.comes_to(task, "success")
    return f"rank {found['culprits'][0]} was named while it was stopped; the job then continued and succeeded"
