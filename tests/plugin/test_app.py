"""The web application: what it serves to whom, and what a browser may keep of it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest

pytest.importorskip("uvicorn")

TASK = "run_id=manual__1&task_id=train&map_index=%7BMAP_INDEX%7D"


class Answer:
    """What came back."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body


def get(address: str, **headers: str) -> Answer:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as told:
            return Answer(told.status, told.headers, told.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.headers, refused.read())


def test_the_values_of_the_page_are_json(root):
    """Also for a task that is not mapped, whose map index the UI leaves as a placeholder."""
    answer = get(f"{root}/api/dags/recovered/job?{TASK}")

    assert answer.status == 200
    assert json.loads(answer.body)["state"] == "recovered"
    assert answer.headers["Cache-Control"] == "private, no-cache"


def test_what_has_not_changed_is_not_sent_again(root):
    """The same job is the same ETag, and the answer then is empty."""
    first = get(f"{root}/api/dags/failed/job?{TASK}")
    again = get(f"{root}/api/dags/failed/job?{TASK}", **{"If-None-Match": first.headers["ETag"]})
    other = get(f"{root}/api/dags/running/job?{TASK}", **{"If-None-Match": first.headers["ETag"]})

    assert (again.status, again.body) == (304, b"")
    assert other.status == 200


def test_a_page_of_megabytes_delays_no_other_request(root):
    """It is encoded in a thread, a part at a time: the API server has one event loop for all of Airflow's UI."""
    server = root.removesuffix("/rallypoint")
    get(f"{root}/api/dags/largest/job?{TASK}")  # whatever is done only once
    get(f"{server}/longest-block")

    bodies = [get(f"{root}/api/dags/largest/job?{TASK}").body for _ in range(3)]
    longest = float(get(f"{server}/longest-block").body)

    print(f"{len(bodies[0])} bytes, longest block {longest:.3f} s")
    assert len(bodies[0]) > 2 << 20
    assert longest <= 0.05


def test_who_may_not_read_the_dag_is_told_nothing(root):
    """Neither the job nor its log."""
    for what in ("job?", "log?rank=0&"):
        assert get(f"{root}/api/dags/no-permission/{what}{TASK}").status == 403


def test_a_log_is_plain_text(root):
    """A browser must not take for a page what a script has written."""
    answer = get(f"{root}/api/dags/failed/log?rank=27&{TASK}")

    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.body.decode().splitlines()[-1] == "err  step 39 of rank 27"


@pytest.mark.parametrize("query", ["rank=x", "rank=-1", ""])
def test_a_rank_is_a_number(root, query):
    """Anything else is refused by name."""
    answer = get(f"{root}/api/dags/failed/log?{query}&{TASK}")

    assert answer.status == 422
    assert "rank" in answer.body.decode()


def test_the_document_may_load_nothing_from_elsewhere(root):
    """A strict policy, on every answer, and nothing inline that would need another one."""
    answer = get(f"{root}/ti?dag_id=running")
    policy = answer.headers["Content-Security-Policy"]
    page = answer.body.decode()

    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "style=" not in page
    assert re.findall(r"<script(?![^>]*src=)", page) == []
    assert "http" not in page
    assert get(f"{root}/api/dags/running/job?{TASK}").headers["Content-Security-Policy"] == policy


def test_files_are_kept_for_ever_under_what_is_in_them(root):
    """The document is asked for anew each time; what it names never changes under that name."""
    page = get(f"{root}/ti")
    assert page.headers["Cache-Control"] == "no-cache"
    names = re.findall(r'(?:src|href)="(assets/[^"]+)"', page.body.decode())
    assert len(names) == 2
    for name in names:
        assert get(f"{root}/{name}").headers["Cache-Control"] == "public, max-age=31536000, immutable"
    old = re.sub(r"assets/\w+", "assets/0", names[0])
    assert get(f"{root}/{old}").headers["Cache-Control"] == "no-store"
    assert get(f"{root}/assets/0/../app.py").status == 404
    assert get(f"{root}/assets/0/page.html").status == 404


def test_scripts_only_name_files_that_are_there(root):
    """Every import of every module is served."""
    page = get(f"{root}/ti").body.decode()
    (folder,) = set(re.findall(r"assets/\w+", page))
    waiting, seen = ["app.js"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        answer = get(f"{root}/{folder}/{name}")
        assert answer.status == 200, name
        assert answer.headers["Content-Type"].startswith("text/javascript")
        waiting += re.findall(r'from "\./([^"]+)"', answer.body.decode())
    assert len(seen) > 5
