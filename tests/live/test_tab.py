"""The tab in a real Airflow: who may see it, and what it says of a job that a DAG has run."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest

pytest.importorskip("uvicorn")

from tests.plugin.serving import serving

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

PASSWORD = "correct horse"


class Airflow:
    """The API server, and the name of the DAG's run."""

    def __init__(self, root: str, run: str) -> None:
        self.root, self.run, self.token = root, run, ""

    def ask(self, path: str, *, signed_in: bool = True, body: object = None):
        """Return the status and the JSON of an answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if signed_in and self.token else {}
        data = None
        if body is not None:
            headers["Content-Type"], data = "application/json", json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.root + path, headers=headers, data=data)) as told:
                return told.status, json.loads(told.read())
        except urllib.error.HTTPError as refused:
            with refused:
                text = refused.read()
                return refused.code, json.loads(text) if text.startswith(b"{") else text

    def job(self, task: str, index: str = "{MAP_INDEX}", **more):
        """Ask for the job of a task of the run."""
        query = f"run_id={quote(self.run)}&task_id={task}&map_index={quote(index)}"
        return self.ask(f"/rallypoint/api/dags/counting/job?{query}", **more)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """An Airflow whose DAG has run; its only user is signed in."""
    folder = tmp_path_factory.mktemp("airflow")
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps({"ada": PASSWORD}))
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ada:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret that is long enough for every algorithm there is, and then some",
        "RALLYPOINT_HOME": str(folder / "home"),
        "TEST_FOLDER": str(folder),
    }
    with serving(folder, "tests.plugin.airflow_server", **settings) as root:
        found = Airflow(root, json.loads((folder / "run.json").read_text()))
        status, told = found.ask("/auth/token", body={"username": "ada", "password": PASSWORD})
        assert status == 201, told
        found.token = told["access_token"]
        yield found


def test_nobody_is_told_nothing(airflow):
    """Without credentials there is neither a job nor a log, only the empty document."""
    status, told = airflow.job("train", signed_in=False)
    assert status == 401
    assert "nightly" not in str(told)
    assert airflow.ask("/rallypoint/api/dags/counting/log?run_id=r&task_id=train&rank=0", signed_in=False)[0] == 401


def test_a_viewer_sees_the_job_of_the_task(airflow):
    """Found by what the operator noted, read where the job is, and told to be this task's own."""
    status, page = airflow.job("train")

    assert status == 200, page
    assert page["state"] == "succeeded"
    assert page["kept"] is False
    assert {"label": "Step", "text": "150"}.items() <= page["facts"][0].items()
    assert [attempt["label"] for attempt in page["timeline"]["attempts"]] == ["Attempt 1 (try 1)"]
    assert page["curves"][0]["name"] == "Step"
    assert 1 < int(page["curves"][0]["last"]) <= 150
    assert page["curves"][-1] | {"points": []} == {
        "name": "World size",
        "unit": "ranks",
        "last": "2",
        "stepped": True,
        "points": [],
    }


def test_the_log_of_a_rank_is_there(airflow):
    """Its last lines, from the place where it wrote them."""
    query = f"run_id={quote(airflow.run)}&task_id=train&map_index=-1&rank=1"
    request = urllib.request.Request(
        f"{airflow.root}/rallypoint/api/dags/counting/log?{query}", headers={"Authorization": f"Bearer {airflow.token}"}
    )
    with urllib.request.urlopen(request) as told:
        assert "rank 1 is done" in told.read().decode()


def test_a_mapped_task_whose_job_was_deleted_is_told_as_it_kept_it(airflow):
    """Each map index has a job of its own; deleted when it ended, it is still to be seen."""
    pages = [airflow.job("mapped", index)[1] for index in ("0", "1")]

    assert [page["state"] for page in pages] == ["succeeded", "succeeded"]
    assert [page["kept"] for page in pages] == [True, True]
    assert [page["facts"][0]["text"] for page in pages] == ["5", "3"]
    assert pages[0]["job"] != pages[1]["job"]


def test_a_task_without_a_job_says_so(airflow):
    """And one that there is not is not found."""
    assert airflow.job("rest")[1]["title"] == "No training job here"
    assert airflow.job("nobody")[0] == 404


def test_airflow_shows_the_tab_and_the_link(airflow):
    """The plugin is loaded without an error, and the link is stored where the UI asks for it."""
    status, told = airflow.ask("/api/v2/plugins/importErrors")
    assert told["total_entries"] == 0 if status == 200 else status == 403
    _, links = airflow.ask(f"/api/v2/dags/counting/dagRuns/{quote(airflow.run)}/taskInstances/train/links")

    assert links["extra_links"]["Elastic training"].endswith("/tasks/train/plugin/rallypoint")
