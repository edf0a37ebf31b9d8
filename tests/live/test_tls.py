"""Jobs whose parts speak mutual TLS, for real: on this machine with `tls: auto`, and by hand with files of one's own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.backends.certificates import renewed
from rallypoint.supervision.record import Phase
from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import STATUS_PATH
from rallypoint.wire.tls import AUTHORITY, AUTHORITY_KEY, PEER_FILES, peer_name
from tests.certificates import left, write
from tests.live.agent_processes import OBEY, Agents, agents, free_port, said
from tests.live.jobs import Job, cli
from tests.waiting import eventually

pytestmark = pytest.mark.live

#: The first 1,009 bytes of a TLS client's first message, which has 16,000.
HELLO = b"\x16\x03\x01\x03\xee\x01" + (16_000).to_bytes(3, "big") + b"\x03\x03" + bytes(1000)


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def asks(port: int, token: str, context: ssl.SSLContext | None) -> int:
    """Return the HTTP status of a request for the job's status."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("GET", STATUS_PATH, headers={TOKEN_HEADER: token})
        return connection.getresponse().status
    finally:
        connection.close()


def trusting(folder: Path) -> ssl.SSLContext:
    """Return a context that accepts the job's authority, at any address."""
    context = ssl.create_default_context(cafile=str(folder / AUTHORITY))
    context.check_hostname = False
    return context


@pytest.mark.extended
@pytest.mark.usefixtures("light")
def test_a_local_job_with_tls_trains_through_faults(tmp_path: Path, home: Path) -> None:
    """An agent and the coordinator are lost and replaced; the port takes no plain request; keys are the owner's alone."""
    job = Job.write(tmp_path, home, 3, 0.01, endless=True, nodes=2, tls="auto").submit()
    job.trains(ranks=2)
    place = home / "jobs" / "counter"
    (coordinator,) = job.agents("coordinator")
    endpoint = json.loads((place / "endpoint.json").read_text())
    token = (place / "secret").read_text().strip()

    assert asks(endpoint["port"], token, None) == 400
    assert asks(endpoint["port"], token, trusting(place / "tls")) == 200
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place / "tls").iterdir()}
    assert modes == dict.fromkeys((*PEER_FILES, AUTHORITY_KEY), 0o600)
    coordinator.kill()
    eventually(lambda: json.loads((place / "endpoint.json").read_text())["term"] == 2)
    job.agents("node")[0].kill()
    job.trains(ranks=2, round_=2)
    job.may_end()
    record = job.ends()

    assert record.phase is Phase.SUCCEEDED, job.tell()
    texts = [path for path in place.rglob("*") if path.is_file() and path.parent.name != "tls"]
    assert not [path for path in texts if b"PRIVATE KEY" in path.read_bytes()]


@pytest.mark.extended
def test_a_certificate_that_expires_does_not_end_a_job(by_hand: Agents) -> None:
    """Everybody who is connected goes on; once it is renewed a new coordinator is found, and the job ends well."""
    folder = left(by_hand.folder / "tls", "job", seconds=8.0)
    by_hand.tls = folder
    by_hand.write_plan(tls="auto")
    first, node = by_hand.coordinator(), by_hand.node()
    by_hand.drain()
    pids = by_hand.running(1, 2)
    began = time.time()
    eventually(lambda: time.time() > began + 10.0, every=0.5)
    assert (first.poll(), node.poll()) == (None, None)

    files = {name: (folder / name).read_text() for name in (*PEER_FILES, AUTHORITY_KEY)}
    write(folder, renewed(files, "job", time.time()))
    os.kill(first.pid, signal.SIGKILL)
    by_hand.coordinator(term=2)
    eventually(lambda: (status := by_hand.status()) is not None and status.fence.term == 2 and status.world)
    assert by_hand.running(1, 2) == pids
    by_hand.finish()

    assert node.wait(timeout=300) == Exit.OK


def test_agents_by_hand_meet_over_tls(by_hand: Agents) -> None:
    """One port serves TLS and the store of the workers, which torch does not encrypt."""
    folder, port = left(by_hand.folder / "tls", "train"), free_port()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "train", "--tls", folder)
    runs = [by_hand.run("--nnodes", 2, *where, OBEY, by_hand.work) for _ in range(2)]
    by_hand.running(1, 2)
    stranger = by_hand.run("--nnodes", 2, *where[:-2], OBEY, by_hand.work)
    code, told = said(stranger)

    assert code == Exit.CONFIG
    assert "this port uses TLS: start the agent with --tls" in told
    by_hand.finish()
    assert [said(run)[0] for run in runs] == [Exit.OK, Exit.OK]


def shakes_hands(port: int, folder: Path, newest: ssl.TLSVersion) -> str | None:
    """Return the version of TLS of a connection with the job's certificate, None where it is refused."""
    context = trusting(folder)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.maximum_version = newest
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain) as secured:
                return secured.version()
        except OSError:
            return None


def test_no_port_of_a_coordinator_takes_an_older_version(by_hand: Agents) -> None:
    """Of HTTP and of gRPC, whose library has no option for that; with the job's own certificate."""
    by_hand.tls = left(by_hand.folder / "tls", "job")
    by_hand.write_plan(tls="auto", service_type="grpc")
    by_hand.coordinator()
    place = by_hand.folder / "endpoint.json"
    eventually(place.exists)
    endpoint = json.loads(place.read_text())

    ports = (endpoint["port"], endpoint["grpc"])
    assert [shakes_hands(port, by_hand.tls, ssl.TLSVersion.TLSv1_3) for port in ports] == ["TLSv1.3"] * 2
    assert [shakes_hands(port, by_hand.tls, ssl.TLSVersion.TLSv1_2) for port in ports] == [None] * 2


def test_failed_handshakes_fill_no_log(by_hand: Agents) -> None:
    """The library of gRPC would log a line for each of them; our own lines are limited."""
    by_hand.tls = left(by_hand.folder / "tls", "job")
    by_hand.write_plan(tls="auto", service_type="grpc")
    coordinator, strange = by_hand.coordinator(), left(by_hand.folder / "strange", "job")
    place = by_hand.folder / "endpoint.json"
    eventually(place.exists)
    by_hand.drain()
    port = json.loads(place.read_text())["grpc"]
    for _ in range(100):
        fails_to_shake_hands(port, strange)
    assert shakes_hands(port, by_hand.tls, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    coordinator.kill()

    assert by_hand.drained() < 5000


@pytest.mark.parametrize(("agents", "closed"), [(410, False), (1, True)])
def test_a_coordinator_accepts_as_many_handshakes_as_agents(by_hand: Agents, agents: int, *, closed: bool) -> None:
    """Over HTTP; 400 unfinished handshakes use more than the 64 MiB that other jobs have."""
    by_hand.tls = left(by_hand.folder / "tls", "job")
    by_hand.write_plan(tls="auto", service_type="http", max_nodes=agents)
    by_hand.coordinator()
    place = by_hand.folder / "endpoint.json"
    eventually(place.exists)
    port = json.loads(place.read_text())["port"]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(400)]
        # The beginning of a first message, then a part of its rest: from then on, OpenSSL may allocate all of it.
        for part in (HELLO, b"\x16\x03\x01\x00\x01\x00"):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(part)
            assert shakes_hands(port, by_hand.tls, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"

        assert any(is_closed(client) for client in clients) == closed


def is_closed(client: socket.socket) -> bool:
    """Return whether the other end has closed a connection over which it sends nothing."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def fails_to_shake_hands(port: int, folder: Path) -> None:
    """Connect with a certificate of another authority, and read until the server closes the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        contextlib.suppress(OSError),
        context.wrap_socket(plain) as secured,
    ):
        secured.recv(100)


def test_another_runs_certificate_is_refused(by_hand: Agents) -> None:
    """Before anything is started; the error says for whom it is."""
    folder = left(by_hand.folder / "tls", "other")
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "train", "--tls", folder)

    code, told = said(by_hand.run("--nnodes", 2, *where, OBEY, by_hand.work))

    assert code == Exit.CONFIG
    assert f"tls.crt is for the DNS names {peer_name('other')}; expected the DNS name {peer_name('train')}" in told


@pytest.mark.parametrize(
    ("value", "why"),
    [
        pytest.param(
            "on",
            "tls: 'on' is not allowed; expected off, auto, or {secret: NAME}",
            id="no such word",
            marks=pytest.mark.extended,
        ),
        pytest.param({"secret": "No Name"}, "tls: ", id="no name of a Secret", marks=pytest.mark.extended),
        pytest.param({"secrets": "x"}, "tls: ", id="no such key", marks=pytest.mark.extended),
        pytest.param(
            {"secret": "mine"}, "the local backend has no Kubernetes Secrets; expected off or auto", id="no Secret here"
        ),
    ],
)
def test_a_wrong_value_is_refused_at_submission(tmp_path: Path, home: Path, value: object, why: str) -> None:
    """With the field, its value and what is allowed."""
    Job.write(tmp_path, home, tls=value)
    done = cli("submit", tmp_path / "job.json", check=False)

    assert done.returncode != 0
    assert why in done.stderr
