"""`rallypoint-agent run` on real processes: torchrun's place by hand."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from rallypoint.wire.exits import Exit
from tests.live.agent_processes import OBEY, Agents, agents, alive, free_port, said
from tests.waiting import eventually

TWO = ("--nproc-per-node", 2)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def killed(pids: dict[int, int], rank: int) -> None:
    os.kill(pids[rank], signal.SIGKILL)


def test_workers_that_end_well_end_the_run_well(job: Agents) -> None:
    """Without --log-dir they write to the console, as under torchrun."""
    job.finish()

    code, output = said(job.run("--standalone", *TWO, OBEY, job.work))

    assert code == Exit.OK, output
    assert all(f"round 1 rank {rank} of 2" in output for rank in (0, 1))


def test_a_killed_worker_is_restarted_with_its_peers(job: Agents) -> None:
    """The next round starts with all ranks, and none of the last round is left."""
    run = job.run("--standalone", *TWO, "--max-restarts", 1, OBEY, job.work)
    first = job.running(1, 2)
    killed(first, 1)
    job.running(2, 2)
    assert not any(map(alive, first.values()))
    job.finish()

    assert said(run)[0] == Exit.OK


def test_a_run_that_always_fails_says_who_and_why(job: Agents) -> None:
    """Exit code 1, the rank, its error, and the last lines of its log; the budget is what was asked for."""
    run = job.run("--standalone", *TWO, "--max-restarts", 1, "-r", 3, "--log-dir", job.folder / "logs", OBEY, job.work, "fail")

    code, output = said(run)

    assert code == Exit.JOB_FAILED
    assert "rank 1 (local rank 1) on node 0" in output
    assert "no restarts left (limit: 1)" in output
    assert "error:   ValueError: loss is nan" in output
    assert "    about to fail" in output
    logs = {path.name for path in (job.folder / "logs").glob("*/round-2/*")}
    assert logs == {"rank-0.out", "rank-0.err", "rank-1.out", "rank-1.err"}


def test_torchs_error_file_is_believed(job: Agents) -> None:
    """What the script records with @record is the error that is told."""
    code, output = said(job.run("--standalone", *TWO, OBEY, job.work, "record"))

    assert (code, "error:   KeyError: 'recorded'" in output) == (Exit.JOB_FAILED, True), output


def test_a_log_folder_alone_gets_everything_that_the_console_gets(job: Agents) -> None:
    """Both streams of every rank, as with dlrover-run; the console is as it is without the folder."""
    folder, script = job.folder / "logs", "echo out $RANK; echo err $RANK >&2"

    code, output = said(job.run("--standalone", *TWO, "--log-dir", folder, "--no-python", "sh", "-c", script))

    assert code == Exit.OK, output
    assert {"out 0", "out 1", "err 0", "err 1"} <= set(output.splitlines())
    files = {path.name: path.read_text() for path in folder.glob("*/round-1/*")}
    assert files == {"rank-0.out": "out 0\n", "rank-0.err": "err 0\n", "rank-1.out": "out 1\n", "rank-1.err": "err 1\n"}


def test_no_log_folder_is_torchruns_null_device(job: Agents) -> None:
    """As in torchrun: everything goes to the console, whatever is asked of the files."""
    code, output = said(job.run("--standalone", "--log-dir", os.devnull, "-r", 3, "--no-python", "sh", "-c", "echo out $RANK"))

    assert code == Exit.OK, output
    assert "out 0" in output.splitlines()


def test_a_surplus_agent_says_that_it_is_a_spare(job: Agents) -> None:
    """While it waits, and when the job is over without it."""
    line = ("--nnodes", 1, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", OBEY, job.work)
    host = job.run(*line)
    job.running(1, 1)
    spare = job.run(*line)
    early = b""

    def waits() -> bool:
        nonlocal early
        assert spare.stdout is not None
        with contextlib.suppress(BlockingIOError):
            early += os.read(spare.stdout.fileno(), 1 << 16)
        return b"round 1 started without this node; this node waits for the next round" in early

    assert spare.stdout is not None
    os.set_blocking(spare.stdout.fileno(), False)
    eventually(waits, why="it says so")
    os.set_blocking(spare.stdout.fileno(), True)
    job.finish()

    assert said(host)[0] == Exit.OK
    code, late = said(spare)
    assert code == Exit.OK
    assert "the job ended before this node joined a round: " in late
    assert "waiting for the next round" not in late


def test_tee_prefixes_each_line(job: Agents) -> None:
    """With torchrun's form, to the console and to the file."""
    job.finish()

    code, output = said(job.run("--standalone", *TWO, "--tee", 3, "--role", "trainer", OBEY, job.work))

    assert code == Exit.OK
    assert {"[trainer0]:round 1 rank 0 of 2", "[trainer1]:rank 1 is done"} <= set(output.splitlines())


def test_who_ignores_the_signal_is_killed_after_the_grace(job: Agents) -> None:
    """And so is every process it started."""
    run = job.run("--standalone", *TWO, "--max-restarts", 1, "--shutdown-timeout", 0.3, OBEY, job.work, "stubborn")
    first = job.running(1, 2)
    children = [int((job.work / f"child.{rank}").read_text()) for rank in (0, 1)]
    killed(first, 0)
    second = job.running(2, 2)
    assert not any(map(alive, [*first.values(), *children]))
    run.send_signal(signal.SIGTERM)

    assert said(run)[0] == 128 + signal.SIGTERM
    assert not any(map(alive, second.values()))


def test_a_signal_reaches_the_workers(job: Agents) -> None:
    """They may save what they have before they end."""
    run = job.run("--standalone", *TWO, OBEY, job.work, "polite")
    job.running(1, 2)
    run.send_signal(signal.SIGINT)

    assert said(run)[0] == 128 + signal.SIGINT
    assert {path.name for path in job.work.glob("polite.*")} == {"polite.0", "polite.1"}


def test_no_worker_outlives_its_agent(job: Agents) -> None:
    """Kill -9 of the agent is kill -9 of its workers."""
    run = job.run("--standalone", *TWO, OBEY, job.work)
    workers = job.running(1, 2)
    run.kill()

    assert eventually(lambda: not any(map(alive, workers.values())))


def meeting(job: Agents, port: int, *more: object, fence_timeout: int = 30) -> subprocess.Popen[str]:
    conf = f"last_call_timeout=600,join_timeout=600,fence_timeout={fence_timeout}"
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", conf, "--rdzv-id", "meet")
    return job.run("--nnodes", "1:2", *where, *more, OBEY, job.work)


def test_agents_meet_shrink_and_grow(job: Agents) -> None:
    """Two agents find each other by one address; one is killed, the other goes on alone; one comes back, both go on."""
    port = free_port()
    host = meeting(job, port)
    eventually(lambda: _listens(port))
    other = meeting(job, port)
    both = job.running(1, 2)
    os.kill(other.pid, signal.SIGKILL)
    alone = job.running(2, 1)
    assert not any(map(alive, both.values()))
    again = meeting(job, port)
    job.running(3, 2)
    assert not any(map(alive, alone.values()))
    job.finish()

    assert [said(agent)[0] for agent in (host, again)] == [Exit.OK, Exit.OK]


def test_a_lost_host_ends_the_others_with_one_sentence(job: Agents) -> None:
    """The agent with the coordinator is killed: the other ends its worker, says why once, and has the exit code for it."""
    port = free_port()
    host = meeting(job, port, fence_timeout=1)
    eventually(lambda: _listens(port))
    other = meeting(job, port, fence_timeout=1)
    workers = job.running(1, 2)

    os.kill(host.pid, signal.SIGKILL)
    code, output = said(other)

    assert code == Exit.LOST_CONTACT, output
    assert output.count("the coordinator did not respond for 1 s") == 1, output
    assert "Traceback" not in output
    assert "never retrieved" not in output
    said(host)
    assert not any(map(alive, workers.values()))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_run_that_nobody_joins_gives_up(job: Agents) -> None:
    """After the join time-out, with the reason."""
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")

    code, output = said(job.run("--nnodes", 2, *where, "--rdzv-conf", "join_timeout=0.3", OBEY, job.work))

    assert (code, "RendezvousTimeout" in output) == (Exit.JOB_FAILED, True), output


def test_a_port_of_somebody_else_is_named(job: Agents) -> None:
    """One clear line, and nothing is started."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        code, output = said(meeting(job, stranger.getsockname()[1]))

    assert code == Exit.CONFIG
    assert "is in use by another program" in output
    assert not (job.work / "started").exists()


class _Impostor(http.server.BaseHTTPRequestHandler):
    """Answers as a coordinator does, without the secret of a run."""

    heads: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.heads.append(str(self.headers))
        body = b'{"service": "rallypoint-coordinator"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  as above

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_another_program_at_the_rendezvous_gets_no_token(job: Agents) -> None:
    """Another user of the machine was first at the port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Impostor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        code, output = said(job.run("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", address, __file__))
        server.shutdown()

    assert (code, "is in use by another program" in output) == (Exit.CONFIG, True), output
    assert _Impostor.heads
    assert "X-Rallypoint-Token" not in "".join(_Impostor.heads)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        pytest.param(["--nnodes", "2:1", "x.py"], Exit.USAGE, "--nnodes 2:1: not allowed", id="wrong flag"),
        pytest.param(["--log-dir", "/dev/null/logs", "x.py"], Exit.CONFIG, "/dev/null/logs: cannot write", id="log folder"),
        pytest.param(["--no-python", "/no/such/program"], Exit.CONFIG, "program /no/such/program: was not found", id="program"),
        pytest.param(["--no-python", "/dev/null"], Exit.CONFIG, "/dev/null: is not an executable file", id="no program"),
        pytest.param(["/no/such/script.py"], Exit.CONFIG, "script /no/such/script.py: file not found", id="script"),
        pytest.param([""], Exit.CONFIG, "the name of the script is empty", id="empty variable"),
        pytest.param(["/dev"], Exit.CONFIG, "script /dev: is a folder without __main__.py", id="folder"),
        pytest.param(["-m", "no.such.module"], Exit.CONFIG, "module no.such.module: not found", id="module"),
        pytest.param(["-m", "this.py"], Exit.CONFIG, "expected -m this, or the script this.py without -m", id="module.py"),
    ],
)
def test_what_cannot_run_is_told_in_a_line(job: Agents, args: list[str], code: Exit, text: str) -> None:
    """The flag, the folder or the file, and what is wrong with it."""
    ended, output = said(job.run(*args))

    assert (ended, text in output) == (code, True), output
