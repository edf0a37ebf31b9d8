"""The file in which the Ray job of a submission finds a ledger that runs on its machine."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.ray.access import LEDGER, Access
from rallypoint.backends.ray.cluster import place
from rallypoint.backends.ray.cluster.place import Place
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.ray.line import health_page
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, proof_of
from tests.ray.sites import RaySite, states
from tests.waiting import eventually_async

KEY = "k" * 43


class Answers:
    """A ledger that proves `key` with the page of `url`, and notes its requests and the keys that it was sent."""

    def __init__(self, url: str) -> None:
        self.url, self.key, self.page = url, KEY, health_page(url)
        self.requests, self.keys = list[str](), list[str]()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Answers]:
    """A server at the place that is noted in the folder, with its key."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.requests.append(self.requestline)
            answers.keys += self.headers.get_all("Authorization", [])
            self.send_response(200)
            nonce = self.headers[NONCE_HEADER].encode()
            self.send_header(PROOF_HEADER, proof_of(answers.key, nonce, answers.page))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        answers = Answers(f"http://127.0.0.1:{server.server_port}")
        place.note(tmp_path, Place.of(answers.url, KEY, "team", "10.0.0.1:6379"))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answers
        server.shutdown()
        thread.join()


def test_a_ledger_that_runs_is_found(tmp_path: Path, ledger: Answers) -> None:
    """Fails if its address or key is not returned, or if it gets the key."""
    assert place.find(tmp_path, "team", "10.0.0.1:6379") == {"url": ledger.url, "key": KEY}
    assert (ledger.requests, ledger.keys) == (["GET /healthz HTTP/1.1"], [])


@pytest.mark.parametrize(
    ("namespace", "cluster"),
    [("other", "10.0.0.1:6379"), ("team", "10.0.0.2:6379"), ("team", "")],
    ids=["namespace", "cluster", "unknown cluster"],
)
def test_the_ledger_of_another_cluster_is_not_found(tmp_path: Path, ledger: Answers, namespace: str, cluster: str) -> None:
    """Two clusters of one user may have the same folder, one after the other; the key stays here."""
    assert place.find(tmp_path, namespace, cluster) is None
    assert ledger.requests == []


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found | {"start_ticks": found["start_ticks"] + 1},
        lambda found: found | {"start_ticks": 0},
        lambda found: found | {"pid": 2**22 + 1},
        lambda found: found | {"pid": 10**400},
        lambda found: found | {"pid": None},
        lambda found: found | {"pid": float("nan")},
        lambda found: found | {"url": "http://127.0.0.1"},
        lambda found: found | {"url": "https://127.0.0.1:1"},
        lambda found: found | {"url": None},
        lambda found: found | {"url": "http://[::1"},
        lambda found: found | {"more": 1},
        lambda found: {"url": found["url"]},
        lambda found: [found],
    ],
    ids=[
        "other process",
        "no start",
        "no process",
        "huge",
        "null",
        "NaN",
        "no port",
        "TLS",
        "no URL",
        "half",
        "more",
        "less",
        "list",
    ],
)
def test_nothing_is_sent_to_what_a_wrong_file_names(tmp_path: Path, ledger: Answers, change: Callable[[Any], Any]) -> None:
    """A port that a ledger has left may be that of any process."""
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))

    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None
    assert ledger.requests == []


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o644),
        lambda path: (path.rename(path.with_suffix(".other")), path.symlink_to(path.with_suffix(".other"))),
        lambda path: path.with_suffix(".other").hardlink_to(path),
        make_pipe,
    ],
    ids=["missing", "empty", "readable", "link", "hard link", "pipe"],
)
def test_a_file_that_others_can_have_written_is_not_used(tmp_path: Path, ledger: Answers, spoil: Callable[[Path], Any]) -> None:
    """The Ray job then asks Ray, as without these files."""
    spoil(tmp_path / "ledger.json")

    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None
    assert ledger.requests == []


def test_a_program_without_the_key_is_no_ledger(tmp_path: Path, ledger: Answers) -> None:
    """Fails if a port is that of the ledger without its proof, or with one that a ledger at another address has made."""
    ledger.key = "another"
    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None

    ledger.key, ledger.page = KEY, health_page("http://10.0.0.1:41000")
    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None

    assert (len(ledger.requests), ledger.keys) == (2, [])


@pytest.mark.parametrize(
    "plant",
    [
        lambda path, known: path.write_bytes(known.read_bytes()),
        lambda path, known: path.symlink_to(known),
        lambda path, known: path.hardlink_to(known),
        lambda path, _: os.mkfifo(path, 0o666),
    ],
    ids=["readable", "link", "hard link", "pipe"],
)
def test_the_key_is_in_a_new_file(tmp_path: Path, plant: Callable[[Path, Path], Any]) -> None:
    """Fails if the key is written into a file that another user has put into an open folder."""
    home, known = tmp_path / "ledger", tmp_path / "known"
    home.mkdir()
    known.write_text("{}")
    plant(home / "ledger.json", known)

    place.note(home, Place.of("http://127.0.0.1:1", KEY, "team", "10.0.0.1:6379"))

    found = (home / "ledger.json").lstat()
    assert (stat.S_IMODE(found.st_mode), stat.S_ISREG(found.st_mode), found.st_nlink) == (0o600, True, 1)
    assert (known.read_text(), [path.name for path in home.iterdir()]) == ("{}", ["ledger.json"])


@pytest.mark.extended
@pytest.mark.may_block("the hands of a test read /proc")
async def test_only_the_first_ray_job_connects_to_ray(site: RaySite) -> None:
    """To connect takes more than a second of CPU time. After the ledger was killed, a Ray job asks Ray again."""
    dashboard = Cluster(Access(address=site.cluster.url, namespace=site.namespace))
    backend = site.open()

    async def submit(name: str) -> int:
        """Submit a job, wait until its Ray job has ended, and return how many Ray jobs have connected so far."""
        await submit_or_adopt(backend, backend.plan(site.job(name=name)), owner="test")
        uid = await site.uid(name)
        own: dict[str, Any] = {}

        async def has_ended() -> Any:
            jobs = [one for one in await dashboard.jobs() if one["metadata"].get("rallypoint") == site.namespace]
            own.update({one["submission_id"]: one for one in jobs})
            return own.get(uid, {}).get("status") == "SUCCEEDED"

        await eventually_async(has_ended, timeout=120.0, why=lambda: f"the Ray job {uid} should succeed: {own}")
        return len([one for one in own.values() if one["driver_info"] is not None])

    try:
        counts = [await submit("first"), await submit("second")]
        os.kill((await asyncio.to_thread(states, site.namespace))[LEDGER], signal.SIGKILL)
        counts.append(await submit("third"))
        names = await backend.names()
        for name in names:
            await delete(backend, name, holder="test", timeout=60.0)
    finally:
        await backend.close()
        await dashboard.close()

    assert counts[:2] == [1, 1]
    assert counts[2] > 1
    assert sorted(names) == ["first", "second", "third"]
