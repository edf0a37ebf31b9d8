"""The tab in a real Airflow: who may see it, and what it says of a job that a DAG has run; and the form of a connection."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("aiohttp")

from tests.emulator.options import Options
from tests.emulator.running import kubeconfig, running
from tests.plugin.browser import Tab, chromium, open_browser
from tests.plugin.hostile_notes import ATTACKS, SECRET, witness
from tests.plugin.serving import output
from tests.plugin.signed_in import DRAWN, EDITOR, FRAME, PASSWORD, USER, AirflowPages, airflow_with_a_run, sign_in

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

#: The button of the extra link, which opens a window of its own; the tab has the same name.
LINK = "[...document.querySelectorAll('a')].find((a) => a.textContent.trim() === 'Elastic training' && a.target)"


#: What stands in a stored kubeconfig beside the token that counts.
INLINE = "canary-kubeconfig-9c0e"


class Airflow:
    """The API server, and the name of the DAG's run."""

    def __init__(self, pages: AirflowPages, folder: Path) -> None:
        self.pages, self.folder, self.root, self.run, self.token = pages, folder, pages.root, pages.run, ""

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
    with airflow_with_a_run(folder) as pages:
        found = Airflow(pages, folder)
        status, told = found.ask("/auth/token", body={"username": USER, "password": PASSWORD})
        assert status == 201, told
        found.token = told["access_token"]
        yield found


@pytest.mark.extended
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


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_task_cannot_make_the_api_server_act_for_it(airflow, attack):
    """Whatever it notes: no program runs, no file of the API server is shown, and the tab says a sentence."""
    index = str(list(ATTACKS).index(attack))
    witness(airflow.folder).unlink(missing_ok=True)
    status, page = airflow.job("hostile", index)

    assert status == 200, page
    assert page["title"]
    query = f"run_id={quote(airflow.run)}&task_id=hostile&map_index={index}&rank=0"
    status, log = airflow.ask(f"/rallypoint/api/dags/counting/log?{query}")
    assert status in (404, 503), log
    assert log["detail"]
    assert SECRET not in f"{page} {log}"
    assert not witness(airflow.folder).exists()
    own = attack in {"a log that is a link", "a folder of logs that the job chose"}
    assert page["state"] == ("waiting" if own else "no-data"), page


def test_the_test_of_a_connection_runs_no_program(airflow):
    """An editor of connections presses the button, which Airflow answers in the API server."""
    _, told = airflow.ask("/auth/token", body={"username": EDITOR, "password": PASSWORD})
    editor = Airflow(airflow.pages, airflow.folder)
    editor.token = told["access_token"]
    witness(airflow.folder).unlink(missing_ok=True)
    for extra in (
        *({"platform": "kubernetes", "kubernetes_conn_id": name} for name in ("allowed", "allowed_path", "allowed_file")),
        {"home": str(airflow.folder / "foreign")},
    ):
        body = {"connection_id": "edited", "conn_type": "rallypoint", "extra": json.dumps(extra)}
        status, answer = editor.ask("/api/v2/connections/test", body=body)
        assert status == 200, answer
        assert (answer["status"], "is not allowed" in answer["message"]) == (False, True), answer
        assert not witness(airflow.folder).exists()


def test_the_form_of_a_connection_and_its_button(airflow):
    """The form has the fields; a test uses another connection that Airflow stores. No secret is in an answer or a log."""
    _, told = airflow.ask("/auth/token", body={"username": EDITOR, "password": PASSWORD})
    editor = Airflow(airflow.pages, airflow.folder)
    editor.token = told["access_token"]
    with running(Options()) as cluster:
        inline = {"kube_config": kubeconfig(cluster.url, INLINE), "namespace": "default"}
        prod = {"connection_id": "prod", "conn_type": "kubernetes", "extra": json.dumps(inline)}
        assert editor.ask("/api/v2/connections", body=prod)[0] == 201
        extra = json.dumps({"platform": "kubernetes", "kubernetes_conn_id": "prod"})
        answers = [
            editor.ask("/api/v2/connections/test", body={"connection_id": name, "conn_type": "rallypoint", **fields})
            for name, fields in {
                "a": {"password": cluster.admin_token, "extra": extra},
                "b": {"extra": extra},
                "c": {"extra": json.dumps({"platform": "slurm"})},
            }.items()
        ]
    assert [status for status, _ in answers] == [200] * 3, answers
    right, unknown, wrong = (answer for _, answer in answers)
    assert right["status"] is True, right
    assert right["message"].startswith("Connection works: jobs run on the cluster, in namespace default")
    assert (unknown["status"], wrong["status"]) == (False, False)
    assert "the API server rejected the credentials" in unknown["message"]
    assert ("platform: 'slurm' is not allowed; expected one of k8s, kubernetes, local, pyk8s") in wrong["message"]

    _, forms = editor.ask("/ui/connections/hook_meta")
    (form,) = [each for each in forms if each["connection_type"] == "rallypoint"]
    fields, standard = form["extra_fields"], form["standard_fields"]
    assert fields["platform"]["schema"]["enum"] == ["local", "kubernetes", "ray"]
    assert (standard["password"]["title"], standard["host"]["hidden"]) == ("Token", True)
    printed = output(airflow.folder).read_text()
    assert [secret for secret in (cluster.admin_token, INLINE) if secret in f"{answers} {forms} {printed}"] == []


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


@pytest.mark.skipif(chromium() is None, reason="there is no chromium on PATH")
@pytest.mark.extended
def test_the_tab_in_airflows_own_frame(airflow, tmp_path):
    """Signed in by the form, a viewer reads it in the task's page: by its address, by the link, mapped, on a phone, dark."""
    seen = asyncio.run(_look_around(airflow.pages, tmp_path))

    assert seen == {
        "missing words and errors": [],
        "address of the link": airflow.pages.task("train"),
        "theme": "dark",
        "fits a phone": True,
        "console": [],
    }


async def _look_around(pages: AirflowPages, folder) -> dict[str, object]:
    """Return what a browser found in the tab, by the deep link, a mapped task, the extra link, and on a dark phone."""
    program = chromium()
    assert program is not None
    async with open_browser(program, folder) as browser:
        tab = await browser.tab()
        await tab.resize(width=1440)
        await sign_in(tab, pages.task("train"))
        await tab.wait_for(DRAWN, why="a deep link leads to the tab")
        missing = await _missing(tab, "Succeeded", "of attempt 1", "Timeline", "Use of time", "Rank 1, step 150")

        await tab.visit(pages.task("mapped", index=1), until=DRAWN)
        missing += await _missing(tab, "mapped", "No action needed", "Step\n3\n")

        await tab.visit(pages.task("train", "details"), until=LINK)
        await tab.run(f"((link) => {{ link.removeAttribute('target'); link.click(); }})({LINK})")
        await tab.wait_for(DRAWN, why="the extra link leads to the tab")
        address = await tab.run("location.href")

        await tab.run("localStorage.setItem('theme', 'dark')")
        await tab.resize(width=390)
        await tab.visit(pages.task("train"), until=DRAWN)
        seen = {
            "missing words and errors": missing,
            "address of the link": address,
            "theme": await tab.run(f"{FRAME}.documentElement.dataset.theme"),
            "fits a phone": await tab.run(f"{FRAME}.documentElement.scrollWidth <= {FRAME}.defaultView.innerWidth"),
            "console": _ours(tab),
        }
        await tab.close()
        return seen


async def _missing(tab: Tab, *words: str) -> list[str]:
    """Return the words that the tab does not show, and errors on the console since the last visit of a page."""
    text = await tab.run(f"{FRAME}.body.innerText")
    return [*(word for word in words if word not in text), *_ours(tab)]


def _ours(tab: Tab) -> list[str]:
    """Return what the console says, without Chromium's remark on how Airflow frames every plugin's page."""
    return [line for line in tab.errors if "can escape its sandboxing" not in line]
