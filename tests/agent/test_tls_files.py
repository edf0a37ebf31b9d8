"""The files with the certificates of a process: wrong, renewed while they are read, and about to expire."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.tls import Tls, job_tls, read_tls
from rallypoint.backends.certificates import renewed
from rallypoint.backends.local.certificates import renew
from rallypoint.backends.local.layout import JobFolder
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.tls import AUTHORITY_KEY, CERTIFICATE, KEY, PEER_FILES
from tests.certificates import left

JOB = "digits"


@pytest.fixture
def ours(tmp_path: Path) -> Tls:
    return read_tls(left(tmp_path / "ours", JOB), JOB)


def test_files_that_are_wrong_leave_all_as_it_was(ours: Tls, caplog: pytest.LogCaptureFixture) -> None:
    """Half of a renewal is one of these."""
    (ours.folder / KEY).write_text("no key\n")

    assert not ours.refresh()
    assert "it keeps its present TLS certificate" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        pytest.param(lambda folder: (folder / KEY).unlink(), "tls.key cannot be read: No such file", id="a missing file"),
        pytest.param(lambda folder: (folder / CERTIFICATE).write_text("x"), "tls.crt", id="no certificate"),
        pytest.param(
            lambda folder: left(folder, "letters"), "is for the DNS names letters.rallypoint.internal", id="another job's"
        ),
    ],
)
def test_a_wrong_folder_is_an_error_that_names_it(tmp_path: Path, spoil, why: str) -> None:
    """Before anything is started."""
    folder = left(tmp_path / "ours", JOB)
    spoil(folder)

    with pytest.raises(ConfigError, match=rf"--tls {folder}: .*") as refused:
        read_tls(folder, JOB)
    assert why in str(refused.value)


def test_an_agent_that_starts_during_a_renewal_waits_for_the_rest_of_it(tmp_path: Path) -> None:
    """The key is new already, the certificate is written a moment later."""
    folder = left(tmp_path / "ours", JOB)
    files = {name: (folder / name).read_text() for name in (*PEER_FILES, AUTHORITY_KEY)}
    new = renewed(files, JOB, time.time())
    (folder / KEY).write_text(new[KEY])
    rest = threading.Timer(0.3, lambda: (folder / CERTIFICATE).write_text(new[CERTIFICATE]))
    rest.start()

    assert read_tls(folder, JOB).pem[1] == new[CERTIFICATE].encode()
    rest.join()


def test_a_plan_that_wants_tls_is_not_carried_out_without() -> None:
    """Whatever an agent was started with."""
    plan = Plan(name=JOB, role="trainer", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="x", tls="auto")

    with pytest.raises(ConfigError, match="--tls: is missing"):
        job_tls(None, plan)


def test_the_end_of_a_certificate_is_told_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A day before, once an hour."""
    ours = read_tls(left(tmp_path / "ours", JOB, seconds=86400 * 2), JOB)
    now = time.time()
    for at in (now, now + 86400 * 1.5, now + 86400 * 1.5 + 60, now + 86400 * 3):
        ours.warn(at)

    told = [record.getMessage().partition("tls.crt ")[2] for record in caplog.records]
    assert [line.partition(" ")[0] for line in told] == ["expires", "expired"]


def test_a_certificate_that_is_not_valid_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A machine issued it whose clock is two days ahead: agents say so, and a supervisor replaces it."""
    home = JobFolder(path=tmp_path)
    now = time.time()
    folder = left(home.tls, JOB, seconds=4 * 86400, ago=-2 * 86400)
    ours = read_tls(folder, JOB)

    assert "tls.crt becomes valid in 47.9 h; until then, new connections fail" in caplog.text
    assert ours.hint().endswith("tls.crt is not valid yet")
    authority = ours.pem[0]
    assert renew(home, JOB, now)
    assert not renew(home, JOB, now)
    assert ours.refresh()
    assert (ours.hint(), ours.pem[0]) == ("", authority)
    assert _connected(ours) == ""


def _connected(tls: Tls) -> str:
    """Return why a client with the same files is refused, "" if it is not."""
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor() as pool:
        served = pool.submit(tls.server.wrap_socket, near, server_side=True)
        try:
            tls.client.wrap_socket(far, server_hostname=tls.name).close()
        except ssl.SSLError as error:
            far.close()
            return str(error)
        served.result().close()
    return ""
