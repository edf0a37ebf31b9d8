"""Logs of pods, and the way to their ports."""

from __future__ import annotations

import json
import re

import pytest

from tests.emulator_tests.calls import pod
from tests.emulator_tests.kubelet_fixtures import cluster
from tests.emulator_tests.stage import ended, running, start
from tests.waiting import eventually

__all__ = ["cluster"]

pytestmark = pytest.mark.live

ECHO = """
import http.server, json, os
class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        told = {"path": self.path, "headers": headers, "body": self.rfile.read(size).decode()}
        self.send_response(418); self.end_headers(); self.wfile.write(json.dumps(told).encode())
    do_GET = do_POST
server = http.server.HTTPServer((os.environ["POD_IP"], 29610), Echo)
print("listening", flush=True)
server.serve_forever()
"""


def test_a_log_is_read_in_parts(calls):
    """By its last lines, by time, by size, with and without timestamps."""
    name = start(calls, pod("one", "sh", "-c", "for i in 1 2 3 4; do echo line $i; sleep 0.1; done; echo bad >&2"))
    ended(calls, name)

    def log(**query):
        return calls.get("pods", name, "log", **query)[1]

    assert log() == "line 1\nline 2\nline 3\nline 4\nbad\n"
    assert log(tailLines=2) == "line 4\nbad\n"
    assert log(limitBytes=6) == "line 1"
    stamped = log(timestamps="true").splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z .*", line) for line in stamped)
    assert log(sinceTime=stamped[2].split()[0]) == "line 3\nline 4\nbad\n"
    assert log(sinceSeconds=0) == ""


def test_a_log_is_followed_to_its_end(calls):
    """The stream ends when the container does."""
    name = start(calls, pod("one", "sh", "-c", "echo up; sleep 0.5; echo more; sleep 0.5; printf end"))
    running(calls, name)

    assert calls.get("pods", name, "log", follow="true")[1] == "up\nmore\nend"


def test_a_log_is_of_one_container(calls):
    """Its name must be given where there are several; another is refused."""
    second = {"name": "second", "image": "any", "command": ["echo", "two"]}
    body = pod("one", "echo", "one")
    body["spec"]["containers"].append(second)
    name = start(calls, body)
    ended(calls, name)

    assert calls.get("pods", name, "log", container="second")[1] == "two\n"
    assert calls.get("pods", name, "log")[0] == 400
    assert calls.get("pods", name, "log", container="third")[0] == 400
    assert calls.get("pods", name, "log", container="second", previous="true")[0] == 400


def test_a_container_that_has_not_started_has_no_log(calls):
    """400 with what it waits for."""
    name = start(calls, pod("one", container={"image": "missing:1"}))
    eventually(lambda: "is waiting to start: " in str(calls.get("pods", name, "log")[1].get("message")))

    assert calls.get("pods", name, "log")[0] == 400
    calls.delete("pods", name)


def test_the_proxy_reaches_a_port_of_a_pod(server, calls):
    """Path, query, body, our header and the answer pass; the caller's credentials do not."""
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    name = start(calls, pod("one", "python", "-c", ECHO, container={"env": env}))
    running(calls, name, "listening")
    path = calls.path("pods", f"{name}:29610", "proxy") + "/v1/roster?a=b"

    code, told = server.request("POST", path, {"x": 1}, token=server.admin_token)

    assert (code, told["path"], json.loads(told["body"])) == (418, "/v1/roster?a=b", {"x": 1})
    assert "authorization" not in told["headers"]
    assert told["headers"]["content-type"] == "application/json"
    assert server.request("GET", calls.path("pods", f"{name}:1", "proxy") + "/")[0] == 503
    calls.delete("pods", name, gracePeriodSeconds=0)
