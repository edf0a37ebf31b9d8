"""Who may join a run by hand: agents that know its secret, and nobody who knows its id alone."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import TOKEN_HEADER
from rallypoint.wire.paths import STATUS_PATH
from tests.live.agent_processes import OBEY, Agents, agents, free_port, said

#: An address of the documentation's networks (RFC 5737): other machines could be there, and nothing is sent to it.
ELSEWHERE = "192.0.2.1:29400"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def status_as(token: str, port: int) -> int:
    """Return the HTTP status of a request for the job's status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", STATUS_PATH, headers={TOKEN_HEADER: token})
        return connection.getresponse().status


def test_a_run_of_several_machines_needs_a_secret(job: Agents) -> None:
    """Without one it is refused at once, and the error names the variable, the flag and what each is for."""
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", ELSEWHERE, "--rdzv-id", "train")

    code, output = said(job.run("--nnodes", 2, *where, OBEY, job.work))

    assert code == Exit.CONFIG
    assert "RALLYPOINT_SECRET: is not set, so any process that knows the run id 'train' could join this run" in output
    assert "--secret-file" in output
    assert "--insecure-token" in output


def test_who_knows_the_id_alone_learns_nothing(job: Agents, home: Path) -> None:
    """The hash of the run's id was the token; on one machine it is not, and the key lies where only its user can read it."""
    port = free_port()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "train")
    runs = [job.run("--nnodes", 2, *where, OBEY, job.work) for _ in range(2)]
    job.running(1, 2)

    derived = hashlib.sha256(b"rallypoint run train").hexdigest()
    assert status_as(derived, port) == 401
    assert stat.S_IMODE((home / "run-key").stat().st_mode) == 0o600
    job.finish()
    assert [said(run)[0] for run in runs] == [Exit.OK, Exit.OK]


@pytest.mark.parametrize("flag", ["--insecure-token", "--rdzv-conf=insecure_token=true"])
def test_a_run_without_a_secret_is_one_that_asks_for_it(job: Agents, flag: str) -> None:
    """Then the hash is the token, and the log says what that means."""
    port = free_port()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "train")
    run = job.run("--nnodes", 1, *where, flag, OBEY, job.work)
    job.running(1, 1)

    assert status_as(hashlib.sha256(b"rallypoint run train").hexdigest(), port) == 200
    job.finish()
    code, output = said(run)
    assert (code, "any process that knows the run id 'train' can join" in output) == (Exit.OK, True), output


def test_a_file_holds_the_secret(job: Agents) -> None:
    """As a mounted Secret does; a file that is empty is refused."""
    port, file = free_port(), job.folder / "secret"
    file.write_text("a secret of our own\n")
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--secret-file", file)
    run = job.run("--nnodes", 1, *where, OBEY, job.work)
    job.running(1, 1)

    assert (status_as("a secret of our own", port), status_as("another", port)) == (200, 401)
    job.finish()
    assert said(run)[0] == Exit.OK
    file.write_text("\n")
    assert "is empty; expected the job's secret" in said(job.run("--nnodes", 1, *where, OBEY, job.work))[1]


def test_a_key_that_others_can_read_is_refused(job: Agents, home: Path) -> None:
    """Whoever left it there could have read it before."""
    home.mkdir(mode=0o700)
    (home / "run-key").write_bytes(b"x" * 32)
    (home / "run-key").chmod(0o644)
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")

    code, output = said(job.run("--nnodes", 2, *where, OBEY, job.work))

    assert (code, "mode 0644" in output) == (Exit.CONFIG, True), output


def test_a_pipe_in_the_place_of_the_key_is_an_error(job: Agents, home: Path) -> None:
    """Another user may have created it; to open it must not wait for a writer."""
    home.mkdir(mode=0o700)
    os.mkfifo(home / "run-key", 0o600)
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")

    code, output = said(job.run("--nnodes", 2, *where, OBEY, job.work))

    assert (code, "the file has 0 bytes; expected 32" in output) == (Exit.CONFIG, True), output


def test_one_node_needs_no_place_for_a_key(job: Agents, home: Path) -> None:
    """Nobody has to agree with it: a home that cannot be written, as in many containers, is no reason to refuse."""
    home.write_text("no folder")
    port = free_port()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "train")
    run = job.run("--nnodes", 1, *where, OBEY, job.work)
    job.running(1, 1)

    assert status_as(hashlib.sha256(b"rallypoint run train").hexdigest(), port) == 401
    job.finish()
    assert said(run)[0] == Exit.OK
