from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.compat.kubeflow import protocol
from rallypoint.compat.kubeflow.node import StatusServer
from rallypoint.compat.kubeflow.protocol import (
    BODY_LIMIT,
    TOKEN,
    URL,
    Refused,
    Request,
    TrainerStatus,
    merged,
    place_of,
    read_head,
    read_status,
    told_env,
    url_path,
)
from rallypoint.wire.codec import WireError
from rallypoint.wire.progress import METRICS_BYTES, ProgressSlot

MESSAGE = {
    "trainerStatus": {
        "lastUpdatedTime": "2026-01-01T00:00:00+00:00",
        "progressPercentage": 40,
        "estimatedRemainingSeconds": 90,
        "metrics": [
            {"name": "loss", "value": "0.31"},
            {"name": "current_step", "value": "200"},
            {"name": "current_epoch", "value": "1.5"},
            {"name": "run", "value": "first"},
        ],
    }
}
SAID = TrainerStatus(step=200, metrics={"loss": 0.31, "epoch": 1.5, "progress_percent": 40.0, "eta_seconds": 90.0})


def head(*, method: str = "POST", path: str = url_path(3, 1), token: str = "sesame", length: str | None = "17") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:8080", f"Authorization: Bearer {token}"]
    return "\r\n".join([*lines, *([] if length is None else [f"Content-Length: {length}"])]).encode()


def test_a_message_is_a_step_and_numbers_by_name():
    """Numbers come as text; the step is no metric, and what is not a number is left out."""
    assert read_status(json.dumps(MESSAGE).encode()) == SAID


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff", id="no-text"),
        pytest.param(b"[" * 9000, id="too-deep"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b'{"trainerStatus": 4}', id="no-object"),
        pytest.param(b'{"trainerStatus": {"metrics": {"loss": 1}}}', id="metrics-by-name"),
        pytest.param(b'{"trainerStatus": {"metrics": ["loss"]}}', id="metrics-without-value"),
    ],
)
def test_what_is_no_message_is_an_error(body):
    """It names what is wrong."""
    with pytest.raises(WireError):
        read_status(body)


@pytest.mark.parametrize("value", ["nan", "inf", "-1e999", 1e308, "1e16"])
def test_a_step_that_cannot_be_one_is_refused(value):
    """It would end as an integer of a thousand bits in every message."""
    body = {"trainerStatus": {"metrics": [{"name": "current_step", "value": value}]}}

    with pytest.raises(
        WireError,
        match=r"current_step: .* is not allowed; expected a whole number from 0 to 9007199254740991",
    ):
        read_status(json.dumps(body).encode())


@pytest.mark.parametrize("value", ["nan", "inf", "-1e999"])
def test_a_metric_that_is_not_finite_is_reported(value):
    """A loss that is NaN is what somebody must see; estimates that are not finite are none."""
    listed = [{"name": "loss", "value": value}, {"name": "current_epoch", "value": value}]
    body = {"trainerStatus": {"metrics": listed, "estimatedRemainingSeconds": value}}

    told = read_status(json.dumps(body).encode()).metrics

    assert {name: str(number) for name, number in told.items()} == {"loss": str(float(value))}


@pytest.mark.parametrize("value", ["", "1 loss", None, True, [1]])
def test_what_is_no_number_is_left_out(value):
    """A name without a number says nothing."""
    body = {"trainerStatus": {"metrics": [{"name": "loss", "value": value}], "estimatedRemainingSeconds": value}}
    assert read_status(json.dumps(body).encode()) == TrainerStatus()


@given(st.dictionaries(st.text(max_size=40), st.floats(allow_nan=False, allow_infinity=False), max_size=100))
def test_metrics_have_as_much_room_as_those_of_a_report(metrics):
    """Whatever is told, the time that is left and a loss are the last to go."""
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()] + [{"name": "loss", "value": "2"}]
    body = {"trainerStatus": {"metrics": listed, "estimatedRemainingSeconds": 7}}

    told = read_status(json.dumps(body).encode()).metrics

    assert len(json.dumps(told)) <= METRICS_BYTES
    assert (told["eta_seconds"], told["loss"]) == (7, 2)


def test_what_a_message_leaves_out_keeps_its_value():
    """The last message of a training has no step any more."""
    later = merged(SAID, TrainerStatus(metrics={"eta_seconds": 0.0, "train_loss": 0.4}))
    assert later == TrainerStatus(step=200, metrics={**SAID.metrics, "eta_seconds": 0.0, "train_loss": 0.4})


def test_who_has_the_token_may_speak_for_its_place():
    """The path names the round and the worker."""
    assert read_head(head(), "sesame") == Request(round=3, local_rank=1, length=17)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(head(token="open"), 401, id="wrong-token"),
        pytest.param(head(token=""), 401, id="empty-token"),
        pytest.param(head(token="open", path="/nowhere"), 401, id="a-stranger-learns-no-paths"),
        pytest.param(b"POST / HTTP/1.1", 401, id="no-headers"),
        pytest.param(head(path="/nowhere"), 404, id="wrong-path"),
        pytest.param(head(path=url_path(3, 1) + "/more"), 404, id="longer-path"),
        pytest.param(head(method="GET"), 405, id="get"),
        pytest.param(head(length=None), 411, id="no-length"),
        pytest.param(head(length="-1"), 411, id="negative-length"),
        pytest.param(head(length="9" * 40), 411, id="absurd-length"),
        pytest.param(head(length=str(BODY_LIMIT + 1)), 413, id="too-long"),
        pytest.param(b"\x16\x03\x01\x02\x00", 400, id="tls"),
    ],
)
def test_who_may_not_is_refused(request_, status):
    """Each with HTTP's word for why."""
    with pytest.raises(Refused) as refused:
        read_head(request_, "sesame")
    assert refused.value.status == status


@given(st.binary(max_size=300))
def test_no_bytes_are_obeyed_by_chance(noise):
    """A head is read or refused, and nothing else happens."""
    with pytest.raises(Refused):
        read_head(noise, "sesame")


@pytest.mark.parametrize("path", ["/v1/rounds/³/workers/0/status", "/v1/rounds/03/workers/0/status", "//////", ""])
def test_a_place_has_one_name(path):
    """What only looks like a path of ours is none."""
    with pytest.raises(Refused):
        place_of(path)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, {URL: "http://u", TOKEN: "/t"}, id="told"),
        pytest.param({URL: "https://kubeflow"}, {}, id="somebody-else-listens"),
        pytest.param({"DISABLE_KUBEFLOW_INTEGRATION": "true"}, {}, id="not-wanted"),
        pytest.param({"http_proxy": "p"}, {URL: "http://u", TOKEN: "/t", "no_proxy": "127.0.0.1"}, id="around-a-proxy"),
        pytest.param(
            {"HTTP_PROXY": "p", "NO_PROXY": "a,b"}, {URL: "http://u", TOKEN: "/t", "no_proxy": "a,b,127.0.0.1"}, id="and-others"
        ),
    ],
)
def test_what_a_worker_is_told(environ, expected):
    """Where Kubeflow itself listens, it goes on doing so."""
    assert told_env(environ, "http://u", "/t") == expected


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[StatusServer]:
    server = StatusServer(tmp_path / "agent", 2)
    await server.begin_round(3)
    yield server
    await server.close()


async def say(environment: dict[str, str], body: bytes = json.dumps(MESSAGE).encode(), token: str | None = None) -> int:
    """Say something as a training process does; returns the status."""

    def post() -> int:
        said = Path(environment[TOKEN]).read_text() if token is None else token
        headers = {"Authorization": f"Bearer {said}", "Content-Type": "application/json"}
        request = urllib.request.Request(environment[URL], data=body, headers=headers, method="POST")
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(post)


async def test_what_a_trainer_says_is_its_progress(server):
    """What the script reports otherwise counts more; another worker's progress stays as it is."""
    assert await say(server.worker_environment({}, 3, 1)) == 200

    assert server.progress(1, ProgressSlot()) == ProgressSlot(step=200, metrics=SAID.metrics)
    reported = server.progress(1, ProgressSlot(step=7, metrics={"loss": 9.0}))
    assert (reported.step, reported.metrics["loss"], reported.metrics["epoch"]) == (7, 9.0, 1.5)
    assert server.progress(0, ProgressSlot()) == ProgressSlot()


async def test_another_round_or_worker_is_not_heard(server):
    """A worker that was left over, one that there is not, and a word of the round before."""
    environment = server.worker_environment({}, 3, 0)
    assert await say(server.worker_environment({}, 2, 0)) == 409
    assert await say(server.worker_environment({}, 3, 2)) == 404
    assert await say(environment, token="guessed") == 401
    assert await say(environment, b"{") == 400
    assert await say(environment, b"0" * (BODY_LIMIT + 1)) == 413
    assert server.progress(0, ProgressSlot()) == ProgressSlot()

    assert await say(environment) == 200
    await server.begin_round(4)
    assert server.progress(0, ProgressSlot()) == ProgressSlot()
    assert await say(environment) == 409


async def test_the_token_is_its_users_alone_and_goes_with_the_agent(server):
    """Nobody else may read it, and nothing of it stays."""
    token = Path(server.worker_environment({}, 3, 0)[TOKEN])
    assert (await asyncio.to_thread(token.stat)).st_mode & 0o777 == 0o600
    await server.close()
    assert not await asyncio.to_thread(token.exists)


async def test_a_head_without_an_end_is_refused(server):
    """It takes no more room than it may."""
    host, port = server.worker_environment({}, 3, 0)[URL].split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"x" * (3 * protocol.HEAD_LIMIT))
    assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
    writer.close()
