"""Calls between the processes of two roles, through kills, stops, restarts and strangers."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket

import pytest

from rallypoint.training.roles import frames
from rallypoint.wire import env
from tests.certificates import left, other_job
from tests.live.cut import wire
from tests.live.role_processes import Instance, RoleJob, role_job
from tests.waiting import eventually

SERVER = """
    import os, time
    from rallypoint.training.roles import current, rpc, serve

    @rpc
    def add(a, b=0):
        return a + b

    @rpc
    def place():
        return [current().rank, current().incarnation, os.getpid()]

    @rpc
    def slow(seconds):
        print("slow begins", flush=True)
        time.sleep(seconds)

    @rpc(concurrent=True)
    def echo(value):
        return value

    @rpc
    def fail(kind):
        raise {"value": ValueError, "exit": SystemExit}[kind]("wrong \\x1b[2J" + "x" * 100_000)

    serve().wait()
    print("ended by SIGTERM", flush=True)
"""

CLIENT = """
import pathlib, sys, time
from rallypoint.training.roles import *

def until(name):
    while not pathlib.Path(__file__).with_name(name).exists():
        time.sleep(0.01)

begun = time.monotonic()
group = RoleGroup("rollout", timeout=20)
"""

FIRST_CALLS = """
assert [peer.state.value for peer in wait_for("rollout", 20)] == ["running", "running"]
assert group.call("add", 1, b=2) == [3, 3]
assert [place[0] for place in group.call("place")] == [0, 1]
assert group.call_rank0("place")[0] == 0
assert group.call_batch("add", [1, 2, 3], [10, 20, 30]) == [11, 22, 33]
assert group.call_batch("add", []) == []
for kind, name in (("value", "ValueError"), ("exit", "SystemExit")):
    try:
        group.call_rank(1, "fail", kind)
    except RemoteError as error:
        assert (error.rank, error.type_name, "\\x1b" in error.message) == (1, name, False)
        assert len(error.traceback) <= 16384 and len(error.message) < 5000
    else:
        raise AssertionError(kind)
assert [reply.error.type_name for reply in group.try_call("nothing")] == ["LookupError", "LookupError"]
try:
    group.call("add", {1})
except ValueTypeError as error:
    assert "builtins.set" in str(error)
assert not {"torch", "numpy"} & set(sys.modules)
assert current().config == {"lr": 0.5}
"""


@pytest.fixture
def job(tmp_path):
    """A trainer that calls two rollouts."""
    with role_job(tmp_path, trainer=("simple", 1), rollout=("simple", 2)) as job:
        yield job


def call(job: RoleJob, script: str, **more: str) -> Instance:
    """Start the trainer with a script."""
    return job.start(CLIENT + script, "trainer", 0, 0, **more)


def line(instance: Instance, pattern: str) -> re.Match[str]:
    """Wait for a line of an instance."""
    return eventually(lambda: re.search(pattern, instance.log.read_text()), why=instance.log.read_text)


def test_calls_reach_all_instances_without_torch_or_numpy(job):
    """Values and errors come back by rank; texts of errors are bounded; SIGTERM ends a server role with success."""
    rollouts = [job.start(SERVER, "rollout", rank) for rank in (0, 1)]

    call(job, FIRST_CALLS).finish()
    for one in rollouts:
        one.signal(signal.SIGTERM)
        assert "ended by SIGTERM" in one.finish()


def test_a_restarted_instance_raises_once(job):
    """A call after the restart raises `Restarted` with the new incarnation; the next call reaches the new process."""
    first = job.start(SERVER, "rollout", 0)
    caller = call(
        job,
        """
print("pid", group.call_rank0("place")[2])
try:
    while True:
        group.call_rank0("add", 1)
except Restarted as error:
    assert (error.role, error.rank, error.incarnation) == ("rollout", 0, 4), error
assert group.call_rank0("place")[1] == 4
assert group.with_timeout(5).call_rank0("add", 2) == 2
""",
    )
    line(caller, r"pid \d+")
    first.kill()
    job.start(SERVER, "rollout", 0, incarnation=4)

    caller.finish()


@pytest.mark.extended
def test_an_idle_group_notices_a_restart(job):
    """The instance was restarted between two calls, and its port was taken by another instance."""
    first = job.start(SERVER, "rollout", 0)
    caller = call(
        job,
        """
assert group.call_rank0("add", 1) == 1
print("called")
until("restarted")
try:
    group.call_rank0("add", 1)
except Restarted as error:
    print("incarnation", error.incarnation)
""",
    )
    line(caller, "called")
    first.kill()
    second = job.start(SERVER + "    # the second\n", "rollout", 0, incarnation=1)
    entry = job.folder / "directory" / "rollout.0.json"
    eventually(lambda: json.loads(entry.read_text())["incarnation"] == 1, why=second.log.read_text)
    (job.folder / "restarted").touch()

    assert "incarnation 1" in caller.finish()


def test_an_instance_that_dies_in_a_call_raises_restarted(job):
    """The call ends as soon as the new life is announced, long before its timeout."""
    first = job.start(SERVER, "rollout", 0)
    caller = call(
        job,
        """
try:
    group.with_timeout(600).call_rank0("slow", 500)
except Restarted as error:
    print("incarnation", error.incarnation)
""",
    )
    line(first, "slow begins")
    first.kill()
    job.start(SERVER, "rollout", 0, incarnation=1)

    assert "incarnation 1" in caller.finish()


@pytest.mark.extended
def test_an_instance_without_successor_is_unreachable(job):
    """The call ends at its timeout and names the instance; so does a call to one that never started."""
    first = job.start(SERVER, "rollout", 0)
    caller = call(
        job,
        """
group = RoleGroup("rollout", timeout=2)
for rank, method, args in ((0, "slow", [50]), (1, "add", [1])):
    try:
        group.call_rank(rank, method, *args)
    except UnreachableError as error:
        print(error)
""",
    )
    line(first, "slow begins")
    first.kill()

    text = caller.finish()
    assert "rollout/0: not reachable within 2 s: has ended during the call" in text
    assert "rollout/1: not reachable within 2 s: has not called rallypoint.training.roles.serve()" in text


def test_a_stopped_instance_times_out(job):
    """A process under SIGSTOP accepts connections and reads nothing; small and large calls end at their timeout."""
    first = job.start(SERVER, "rollout", 0)
    caller = call(
        job,
        """
group.call_rank0("add", 1)
print("called")
until("stopped")
for method, value in (("add", 1), ("echo", b"x" * (64 << 20))):
    try:
        group.with_timeout(1.5).call_rank0(method, value)
    except CallTimeoutError as error:
        print(error)
""",
    )
    line(caller, "called")
    first.signal(signal.SIGSTOP)
    (job.folder / "stopped").touch()

    assert len(re.findall(r"rollout/0.*within 1.5 s", caller.finish())) == 2


def test_a_machine_that_vanishes_without_a_word_raises_restarted(job):
    """No packet arrives any more, not even the end of the connection; the directory names the new life."""
    first = job.start(SERVER, "rollout", 0)
    entry = job.folder / "directory" / "rollout.0.json"
    told = eventually(lambda: entry.exists() and json.loads(entry.read_text()), why=first.log.read_text)
    with wire(told["port"]) as relay:
        entry.write_text(json.dumps({**told, "port": relay.port}))
        caller = call(
            job,
            """
try:
    group.with_timeout(600).call_rank0("slow", 500)
except Restarted as error:
    print("incarnation", error.incarnation)
""",
        )
        line(first, "slow begins")
        relay.cut()
        job.start(SERVER, "rollout", 0, incarnation=1)

        assert "incarnation 1" in caller.finish()


def test_an_instance_killed_in_the_middle_of_a_transfer_raises_restarted(job):
    """The callee dies while 512 MiB arrive; nothing of the half value is returned."""
    first = job.start(SERVER, "rollout", 0)
    caller = call(
        job,
        """
data = bytes(512 << 20)
group.call_rank0("add", 1)
print("called")
try:
    while True:
        assert group.call_rank0("echo", data) == data
        print("echoed")
except Restarted as error:
    print("incarnation", error.incarnation)
""",
    )
    line(caller, "called")
    grown = job.folder / "grown"
    eventually(lambda: _resident(first.process.pid) > 128 << 20, every=0.001, why=lambda: str(grown))
    first.kill()
    job.start(SERVER, "rollout", 0, incarnation=1)

    assert "incarnation 1" in caller.finish()


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123  read a thousand times a second
        return int(file.read().split()[1]) * 4096


@pytest.mark.extended
def test_tensors_of_64_mib_arrive_unchanged(job):
    """Torch tensors and numpy arrays, with NaN, in both directions."""
    job.start(SERVER.replace("import os", "import torch, os"), "rollout", 0)

    call(
        job,
        """
import numpy, torch
sent = torch.arange(16 << 20, dtype=torch.float32)
sent[3] = float("nan")
found = group.with_timeout(60).call_rank0("echo", {"w": sent, "n": sent.numpy(), "h": sent[:5].bfloat16()})
assert torch.equal(found["w"].view(torch.int32), sent.view(torch.int32))
assert found["n"].tobytes() == sent.numpy().tobytes() and found["h"].dtype is torch.bfloat16
""",
    ).finish()


def test_a_stranger_without_the_secret_gets_no_answer(job):
    """A wrong secret is refused by both sides, before anything is stored; 300 silent connections do not stop calls."""
    server = job.start(SERVER, "rollout", 0)
    wrong = job.folder / "wrong"
    wrong.write_text("6" * 64)
    caller = call(
        job,
        """
try:
    group.with_timeout(1).call_rank0("add", 1)
except UnreachableError as error:
    print(error)
""",
        **{env.ROLES_SECRET_FILE: str(wrong)},
    )
    assert "before it proved that it has the secret of the job" in caller.finish()
    refused = "authentication failed: the caller does not have the secret of this job"
    line(server, refused)

    port = json.loads((job.folder / "directory" / "rollout.0.json").read_text())["port"]
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    try:
        with socket.create_connection(("127.0.0.1", port)) as noisy:
            noisy.sendall(b"\xff" * 100_000)
            assert len(noisy.recv(frames.GREETING_SIZE)) == frames.GREETING_SIZE
            with pytest.raises(OSError):  # noqa: PT012  the reset may come with either
                while True:
                    noisy.sendall(b"\xff" * 1000)
        call(job, 'assert group.call_rank0("add", 1) == 1').finish()
        assert sum(_ended(one) for one in silent) >= 300 - 128  # half of the places are for other addresses
        for _ in range(50):
            _prove_wrong(port)
        call(job, 'assert group.call_rank0("add", 1) == 1').finish()
    finally:
        for one in silent:
            one.close()
    server.signal(signal.SIGTERM)
    text = server.finish()
    assert text.count(refused) < 20
    assert re.search(r"repeated \d+ times in \d+ s, last: closed a connection from 127", text)


def _ended(sock: socket.socket) -> bool:
    """Return whether the other side has closed a connection; it may have sent its greeting before."""
    sock.setblocking(False)
    try:
        while sock.recv(1000):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _prove_wrong(port: int) -> None:
    """Connect, and send an answer that proves nothing."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.recv(frames.GREETING_SIZE)
        sock.sendall(bytes(frames.ANSWER_SIZE))
        with contextlib.suppress(OSError):
            while sock.recv(1000):
                pass


@pytest.mark.extended
def test_a_job_with_tls_calls_over_tls(job, tmp_path):
    """Both sides need a certificate of the job; a caller without TLS and one of another job are refused."""
    folder = left(tmp_path / "tls", "rl")
    foreign = other_job(tmp_path / "other", folder, "another")
    server = job.start(SERVER, "rollout", 0, **{env.ROLES_TLS: str(folder)})

    call(job, 'assert group.call_rank0("echo", b"x" * (9 << 20)) == b"x" * (9 << 20)', **{env.ROLES_TLS: str(folder)}).finish()
    for more in ({}, {env.ROLES_TLS: str(foreign)}):
        script = """
try:
    group.with_timeout(1).call_rank0("add", 1)
except UnreachableError as error:
    print(error)
"""
        assert "rollout/0: not reachable within 1 s" in call(job, script, **more).finish()
    assert server.process.poll() is None


def test_pickles_pass_only_where_the_job_allows_them(job):
    """A set is refused without `rpc: {pickle: true}` and arrives with it."""
    job.start(SERVER, "rollout", 0, **{env.ROLES_PICKLE: "1"})

    call(job, 'assert group.call_rank0("echo", {1, 2}) == {1, 2}', **{env.ROLES_PICKLE: "1"}).finish()
    script = """
try:
    group.call_rank0("echo", {1})
except ValueTypeError as error:
    print(error)
"""
    assert "type builtins.set is not allowed" in call(job, script).finish()


@pytest.mark.extended
def test_calls_wait_for_their_turn_and_do_not_run_late(job):
    """One call at a time; a call whose caller has given up meanwhile is not executed."""
    server = job.start(SERVER.replace("return a + b", 'print("added", a, flush=True); return a + b'), "rollout", 0)
    caller = call(
        job,
        """
import threading
thread = threading.Thread(target=lambda: group.call_rank0("slow", 2))
thread.start()
until("begun")
try:
    RoleGroup("rollout", timeout=0.5).call_rank0("add", 77)
except CallTimeoutError as error:
    print(error)
thread.join()
assert group.call_rank0("add", 1) == 1
""",
    )
    line(server, "slow begins")
    (job.folder / "begun").touch()

    assert "rollout/0" in caller.finish()
    assert "added 77" not in server.log.read_text()


def test_instances_find_each_other_through_the_directory_server(job):
    """`rallypoint-agent roles-directory` is killed: calls go on, and its successor knows all instances after seconds."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    url = {env.ROLES_URL: f"http://127.0.0.1:{port}"}
    directory = (
        "import sys\nfrom rallypoint.agent.main import main\n"
        f"sys.exit(main(['roles-directory', '--job', 'rl', '--port', '{port}', '--secret-file', '{job.folder}/secret']))"
    )
    first = job.start(directory, "trainer", 0, 0)
    job.start(SERVER, "rollout", 0, 0, **url)
    caller = call(
        job,
        """
print("pid", group.call_rank0("place")[2])
until("killed")
print("again", group.call_rank0("add", 1))
until("restarted")
other = RoleGroup("rollout", timeout=20)
print("found", other.call_rank0("add", 2))
""",
        **url,
    )
    line(caller, r"pid \d+")
    first.kill()
    (job.folder / "killed").touch()
    job.start(directory, "trainer", 0, 0)
    line(caller, "again 1")
    (job.folder / "restarted").touch()

    assert "found 2" in caller.finish()
