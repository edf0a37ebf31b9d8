"""Airflow's REST API, as far as the scenarios need it."""

from __future__ import annotations

import datetime
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import PATIENCE

__all__ = ["Rest", "RestError", "Task"]


class RestError(Exception):
    """Airflow said no; `code` is the answer's status."""

    def __init__(self, what: str, code: int, text: str) -> None:
        super().__init__(f"{what}: {code} {text}")
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task instance as the API tells it. `state` is None before it was scheduled, `tries` the number of its present try."""

    id: str
    state: str | None
    tries: int
    max_tries: int
    pid: int | None


@dataclass
class Rest:
    """A client with the rights of an administrator."""

    base: str
    _token: str = field(default="", init=False)

    def health(self) -> dict[str, Any]:
        """Return the state of each part of Airflow; empty while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.base}/api/v2/monitor/health", timeout=10 * PATIENCE) as answer:
                told: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return told

    def knows(self, dag: str) -> bool:
        """Return whether a DAG was parsed."""
        try:
            self._ask("GET", f"dags/{dag}")
        except RestError as error:
            if error.code == 404:
                return False
            raise
        return True

    def import_errors(self) -> list[str]:
        """Return why DAG files could not be parsed."""
        return [str(one["stack_trace"]) for one in self._ask("GET", "importErrors")["import_errors"]]

    def trigger(self, dag: str, run: str, conf: dict[str, Any]) -> None:
        """Begin a DAG run."""
        self._ask("POST", f"dags/{dag}/dagRuns", {"dag_run_id": run, "logical_date": None, "conf": conf})

    def task(self, dag: str, run: str, task: str) -> Task | None:
        """Return a task instance, None when there is none."""
        try:
            told = self._ask("GET", f"dags/{dag}/dagRuns/{_quoted(run)}/taskInstances/{task}")
        except RestError as error:
            if error.code == 404:
                return None
            raise
        return Task(id=told["id"], state=told["state"], tries=told["try_number"], max_tries=told["max_tries"], pid=told["pid"])

    def mark_task(self, dag: str, run: str, task: str, state: str) -> None:
        """Mark a task instance as failed or successful."""
        self._ask("PATCH", f"dags/{dag}/dagRuns/{_quoted(run)}/taskInstances/{task}", {"new_state": state})

    def clear(self, dag: str, run: str, task: str) -> None:
        """Clear a task instance, whatever it does."""
        body = {"dry_run": False, "dag_run_id": run, "task_ids": [task], "only_failed": False, "reset_dag_runs": True}
        self._ask("POST", f"dags/{dag}/clearTaskInstances", body)

    def mark_run(self, dag: str, run: str, state: str) -> None:
        """Mark a DAG run as failed or successful."""
        self._ask("PATCH", f"dags/{dag}/dagRuns/{_quoted(run)}", {"state": state})

    def delete_run(self, dag: str, run: str) -> None:
        """Delete a DAG run."""
        self._ask("DELETE", f"dags/{dag}/dagRuns/{_quoted(run)}")

    def run_state(self, dag: str, run: str) -> str | None:
        """Return the state of a DAG run, None when there is none."""
        try:
            state: str = self._ask("GET", f"dags/{dag}/dagRuns/{_quoted(run)}")["state"]
        except RestError as error:
            if error.code == 404:
                return None
            raise
        return state

    def pause(self, dag: str, *, paused: bool) -> None:
        """Pause a DAG, or let it go on."""
        self._ask("PATCH", f"dags/{dag}", {"is_paused": paused})

    def triggerer_of(self, dag: str, run: str, task: str) -> int | None:
        """Return the number of the triggerer job that a deferred task's trigger was given to."""
        told = self._ask("GET", f"dags/{dag}/dagRuns/{_quoted(run)}/taskInstances/{task}")
        return None if told["trigger"] is None else told["trigger"]["triggerer_id"]

    def running(self, kind: str) -> set[int]:
        """Return which of Airflow's own jobs of a kind count as running, whether they do or not."""
        return {job["id"] for job in self._ask("GET", f"jobs?job_type={kind}&job_state=running&order_by=-id")["jobs"]}

    def beats(self, kind: str, since: datetime.datetime) -> int:
        """Return how many of Airflow's own jobs of a kind have beaten since then."""
        jobs = self._ask("GET", f"jobs?job_type={kind}&is_alive=true&order_by=-id")["jobs"]
        return sum(datetime.datetime.fromisoformat(job["latest_heartbeat"].replace("Z", "+00:00")) > since for job in jobs)

    def returned(self, dag: str, run: str, task: str) -> Any:
        """Return what a task instance returned, None when there is nothing."""
        try:
            return self._ask("GET", f"dags/{dag}/dagRuns/{_quoted(run)}/taskInstances/{task}/xcomEntries/return_value")["value"]
        except RestError as error:
            if error.code == 404:
                return None
            raise

    def xcom(self, dag: str, run: str, task: str, key: str) -> Any:
        """Return a value that a task instance has pushed, None when there is none; a bare NaN in it is an error."""
        try:
            found = self._ask(
                "GET", f"dags/{dag}/dagRuns/{_quoted(run)}/taskInstances/{task}/xcomEntries/{key}?deserialize=false"
            )
        except RestError as error:
            if error.code == 404:
                return None
            raise
        return found["value"]

    def page(self, dag: str, run: str, task: str) -> dict[str, Any]:
        """Return what the tab shows of a task."""
        query = urllib.parse.urlencode({"run_id": run, "task_id": task, "map_index": -1})
        told: dict[str, Any] = self._ask("GET", f"dags/{_quoted(dag)}/job?{query}", under="rallypoint/api")
        return told

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, *, under: str = "api/v2") -> Any:
        request = urllib.request.Request(
            f"{self.base}/{under}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._sign_in()}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30 * PATIENCE) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise RestError(f"{method} {path}", error.code, error.read().decode(errors="replace")[:2000]) from error
        return json.loads(text, parse_constant=_refused) if text else None

    def _sign_in(self) -> str:
        if not self._token:
            with urllib.request.urlopen(f"{self.base}/auth/token", timeout=30 * PATIENCE) as answer:
                self._token = json.load(answer)["access_token"]
        return self._token


def _refused(word: str) -> Any:
    raise ValueError(f"Airflow answered with {word}, which is not JSON")


def _quoted(word: str) -> str:
    return urllib.parse.quote(word, safe="")
