"""The file in which the Ray job of a submission finds a ledger that runs on its machine."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.ray.access import LEDGER, Access
from rallypoint.backends.ray.cluster import place
from rallypoint.backends.ray.cluster.place import Place
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.requests import delete, submit_or_adopt
from tests.ray.sites import RaySite, states
from tests.waiting import eventually_async

KEY = "k" * 43


class Answers:
    """A ledger that answers `ping` with `content`, and notes the keys that it was sent."""

    def __init__(self, url: str) -> None:
        self.url, self.content, self.keys = url, b"", list[str]()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Answers]:
    """A server at the place that is noted in the folder, with its key beside it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answers.keys.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", str(len(answers.content)))
            self.end_headers()
            self.wfile.write(answers.content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        answers = Answers(f"http://127.0.0.1:{server.server_port}")
        answers.content = json.dumps({"value": {"home": str(tmp_path), "pid": 1}}).encode()
        (tmp_path / place.KEY).write_text(KEY)
        (tmp_path / place.KEY).chmod(0o600)
        place.note(tmp_path, Place.of(answers.url, "team", "10.0.0.1:6379"))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answers
        server.shutdown()
        thread.join()


def test_a_ledger_that_runs_is_found(tmp_path: Path, ledger: Answers) -> None:
    """With its address and key."""
    assert place.find(tmp_path, "team", "10.0.0.1:6379") == {"url": ledger.url, "key": KEY}
    assert ledger.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("namespace", "cluster"),
    [("other", "10.0.0.1:6379"), ("team", "10.0.0.2:6379"), ("team", "")],
    ids=["namespace", "cluster", "unknown cluster"],
)
def test_the_ledger_of_another_cluster_is_not_found(tmp_path: Path, ledger: Answers, namespace: str, cluster: str) -> None:
    """Two clusters of one user may have the same folder, one after the other; the key stays here."""
    assert place.find(tmp_path, namespace, cluster) is None
    assert ledger.keys == []


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
def test_no_key_is_sent_to_what_a_wrong_file_names(tmp_path: Path, ledger: Answers, change: Callable[[Any], Any]) -> None:
    """A port that a ledger has left may be that of any process."""
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))

    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None
    assert ledger.keys == []


@pytest.mark.parametrize("name", ["ledger.json", place.KEY])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o644),
        lambda path: (path.rename(path.with_suffix(".other")), path.symlink_to(path.with_suffix(".other"))),
    ],
    ids=["missing", "empty", "readable", "link"],
)
def test_a_file_that_others_can_have_written_is_not_used(
    tmp_path: Path, ledger: Answers, name: str, spoil: Callable[[Path], Any]
) -> None:
    """The Ray job then asks Ray, as without these files."""
    spoil(tmp_path / name)

    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None
    assert ledger.keys == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b'{"value": {"home": "/elsewhere"}}', b'{"error": {}}'],
    ids=["nothing", "list", "half", "deep", "no text", "other folder", "error"],
)
def test_another_answer_is_that_of_no_ledger(tmp_path: Path, ledger: Answers, content: bytes) -> None:
    """Such as that of a proxy."""
    ledger.content = content

    assert place.find(tmp_path, "team", "10.0.0.1:6379") is None


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
