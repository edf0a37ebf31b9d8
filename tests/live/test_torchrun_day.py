"""A torchrun user's day: the same lines with `rallypoint-agent run` in the place of `torchrun`, on real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.workers.affinity import Binding, cpus_for, parse_cpus
from rallypoint.wire.exits import Exit
from tests.live.agent_processes import OBEY, SCRIPTS, Agents, agents, free_port, said
from tests.waiting import eventually

DDP = SCRIPTS / "elastic_ddp.py"

#: What a worker tells of itself in one line; `sh` is any program.
TELL = (
    'echo "told $RANK of $WORLD_SIZE local $LOCAL_RANK sees ${CUDA_VISIBLE_DEVICES-all} '
    'on $(sed -n s/^Cpus_allowed_list:.//p /proc/self/status)"'
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


@pytest.fixture
def torch_job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def told(job: Agents, *args: object) -> set[str]:
    code, output = said(job.run(*args))
    assert code == Exit.OK, output
    return {line.removeprefix("told ") for line in output.splitlines() if line.startswith("told ")}


@pytest.mark.extended
def test_an_elastic_script_shrinks_and_goes_on(torch_job: Agents) -> None:
    """DDP on two agents of `--nnodes=1:2`; one is killed, and the other trains to the end from the last checkpoint."""
    port = free_port()
    where = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=day")
    line = ("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", *where, DDP, 8, torch_job.work)
    host = torch_job.run(*line)
    eventually(lambda: _listens(port))
    other = torch_job.run(*line)
    eventually((torch_job.work / "step.4.2").exists, why="four steps of both")
    os.kill(other.pid, signal.SIGKILL)
    eventually((torch_job.work / "started.4.1.0").exists, why="one goes on alone")

    code, output = said(host)

    assert code == Exit.OK, output
    assert (torch_job.work / "step.8.1").exists()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.extended
def test_a_standalone_script_comes_back_by_default(torch_job: Agents) -> None:
    """Without a word of restarts, a killed rank is no end: three are allowed."""
    run = torch_job.run("--standalone", "--nproc_per_node=2", DDP, 4, torch_job.work)
    eventually((torch_job.work / "step.2.2").exists, why="two steps")
    pid = (torch_job.work / "started.0.2.1").read_text()
    os.kill(int(pid), signal.SIGKILL)
    eventually((torch_job.work / "started.2.2.1").exists, why="both go on from the checkpoint")

    # torch's own end of a DDP script can stand for ever, each of two threads waiting for the other: no ten minutes for that.
    assert said(run, timeout=12.0)[0] == Exit.OK
    assert (torch_job.work / "step.4.2").exists()


@pytest.mark.extended
@pytest.mark.parametrize("nodes", [pytest.param(1, id="one node"), pytest.param(2, id="two nodes")])
def test_the_given_port_has_the_store_of_each_round(torch_job: Agents, nodes: int) -> None:
    """A script that knows the port finds the store after a fault as well; on two nodes the coordinator has that port, too."""
    port = free_port()
    where = (f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", "--master-addr=localhost", f"--master-port={port}")
    script = (
        SCRIPTS / "launched.py",
        f"--init-method=tcp://localhost:{port}",
        "--die-once",
        "--touch-file-dir",
        torch_job.work,
    )
    runs = [torch_job.run(*where, f"--node-rank={node}", *script) for node in range(nodes)]

    for run in runs:
        code, output = said(run)
        assert code == Exit.OK, output
    found = [json.loads((torch_job.work / str(rank)).read_text()) for rank in (0, 1)]
    told = {(one["MASTER_ADDR"], one["MASTER_PORT"], one["TORCHELASTIC_RESTART_COUNT"], one["total"]) for one in found}
    assert told == {("localhost", str(port), "1", "1")}


def test_a_given_port_that_is_taken_is_an_error(job: Agents) -> None:
    """Before any worker starts; the flag and the port are named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = said(job.run(f"--master-port={port}", OBEY, job.work))

    assert code == Exit.CONFIG, output
    assert f"--master-port {port}: cannot open the port of the TCPStore on 127.0.0.1: " in output
    assert "choose another port" in output


def test_any_program(job: Agents) -> None:
    """`--no-python`; the macro for the local rank, and a variable in the place of a flag."""
    os.environ["PET_NPROC_PER_NODE"] = "2"
    try:
        lines = told(job, "--standalone", "--no-python", "sh", "-c", f"{TELL}; test $LOCAL_RANK = ${{local_rank}}")
    finally:
        del os.environ["PET_NPROC_PER_NODE"]

    assert {line.partition(" sees")[0] for line in lines} == {"0 of 2 local 0", "1 of 2 local 1"}


@pytest.mark.parametrize("module", [pytest.param(False, id="script"), pytest.param(True, id="module")])
def test_the_scripts_flags_are_its_own(job: Agents, module: bool) -> None:
    """Whatever they look like: whole flags of ours, beginnings of one and of several, and two hyphens."""
    words = ["--save", "3", "--train", "--auto", "--network", "--comm", "--pre", "--hang", "--exclude", "--dynamic", "--"]
    words += ["--service", "--replica", "--nproc-per-node", "7", "--max_restarts=9", "--=3", "-m", "-r", "--help", "--version"]
    script = job.folder / "nnodes.py"
    # One write: both workers share one pipe, and `print` without a buffer writes word by word.
    script.write_text("import sys; sys.stdout.write(' '.join(['told', *sys.argv[1:]]) + '\\n')")
    job.path = os.pathsep.join((job.path, str(job.folder)))

    lines = told(job, "--standalone", "--nproc", 2, *(("-m", "nnodes") if module else (script,)), *words)

    assert lines == {" ".join(words)}


def test_agents_with_a_node_rank_form_a_round(job: Agents) -> None:
    """`--rdzv-backend` is static by default, as in torchrun: each agent has a place in the job."""
    where = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--rdzv-id=ranks")
    nodes = [job.run(*where, f"--node-rank={rank}", "--no-python", "sh", "-c", TELL) for rank in range(2)]

    for rank, node in enumerate(nodes):
        code, output = said(node)
        assert code == Exit.OK, output
        assert f"told {rank} of 2 local 0" in output


def test_a_module(job: Agents) -> None:
    """`-m`, with the module's own arguments; `localhost:0` is torchrun's way to be alone."""
    job.finish()
    alone = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=1")

    code, output = said(job.run(*alone, "-m", "tests.live.agent_scripts.obey", job.work))

    assert (code, "round 1 rank 0 of 1" in output) == (Exit.OK, True), output


def test_devices_and_cpus(job: Agents) -> None:
    """A virtual local rank, and workers near their GPUs (or, without any, dealt out)."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        bound = told(job, "--standalone", "--nproc-per-node=2", "--numa-binding=node", "--no-python", "sh", "-c", TELL)
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,7"
        virtual = told(job, "--standalone", "--nproc-per-node=2", "--virtual-local-rank", "--no-python", "sh", "-c", TELL)
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]

    allowed = os.sched_getaffinity(0)
    near = [cpus_for(Binding.NODE, rank, [], allowed, workers=2) for rank in range(2)]
    found = {int(line.split()[0]): parse_cpus(line.rpartition(" on ")[2]) for line in bound}
    assert found == dict(enumerate(near))
    assert {line.partition(" on")[0] for line in virtual} == {"0 of 2 local 0 sees 4", "1 of 2 local 0 sees 7"}


def test_lines_of_interest_have_a_file(job: Agents) -> None:
    """And only the ranks that are asked for reach the console."""
    script = "echo loss $RANK; echo other $RANK; echo bad $RANK >&2"
    filters = ("--tee=3", "--duplicate-stdout-filters=loss", "--duplicate-stderr-filters=bad", "--local-ranks-filter=1")
    folder = job.folder / "logs"

    code, output = said(
        job.run("--standalone", "--nproc-per-node=2", f"--log-dir={folder}", *filters, "--no-python", "sh", "-c", script)
    )

    assert code == Exit.OK, output
    assert {line for line in output.splitlines() if line.startswith("[default")} == {
        "[default1]:loss 1",
        "[default1]:other 1",
        "[default1]:bad 1",
    }
    files = {path.name: path.read_text() for path in folder.glob("*/round-1/filtered_*")}
    assert files == {"filtered_stdout.log": "[default1]:loss 1\n", "filtered_stderr.log": "[default1]:bad 1\n"}


def test_another_signal_reaches_the_workers_as_it_is(job: Agents) -> None:
    """As a scheduler sends it before it ends a job; the agent ends with it."""
    script = job.folder / "warned.py"
    script.write_text(
        "import pathlib, signal, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "signal.signal(signal.SIGUSR1, lambda *_: ((folder / 'warned').touch(), sys.exit(0)))\n"
        "(folder / 'ready').touch()\n"
        "signal.pause()\n"
    )
    run = job.run("--standalone", "--signals-to-handle=SIGTERM,SIGUSR1", script, job.work)
    eventually((job.work / "ready").exists)
    run.send_signal(signal.SIGUSR1)

    code, output = said(run)

    assert (code, (job.work / "warned").exists()) == (128 + signal.SIGUSR1, True), output


def test_what_has_no_effect_is_told(job: Agents) -> None:
    """By name, and the run goes on."""
    code, output = said(job.run("--standalone", "--rdzv-conf=read_timeout=60", "--no-python", sys.executable, "-c", "0"))

    assert (code, "--rdzv-conf read_timeout: ignored; " in output) == (Exit.OK, True), output
