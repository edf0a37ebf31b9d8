"""`launch_agent` with real processes: what it returns, what it raises, and what it leaves behind: nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent import Events, LaunchConfig, Std, launch_agent
from rallypoint.agent.errors import ConfigError
from rallypoint.compat.launch_agent.events import StopAllTasks
from tests.compat.launch_agent.etcd_server import needs_etcd, serving
from tests.live.agent_processes import alive, free_port
from tests.live.rank_functions import die, double, fail_on_1
from tests.live.stop_soak import stopped
from tests.optional import needs
from tests.scale import sized
from tests.waiting import PATIENCE, eventually

needs("torch")


def config(workers: int = 2, **fields: Any) -> LaunchConfig:
    """A node by itself, unless it is said. Its workers need no torch, so nothing is warmed up for them."""
    mine = {"min_nodes": 1, "max_nodes": 1, "run_id": "job", "rdzv_backend": "c10d", "start_method": "spawn"}
    return LaunchConfig(nproc_per_node=workers, **{**mine, **fields})


def test_values_come_back_by_global_rank() -> None:
    """L1: a function's own values."""
    assert launch_agent(config(3), double, [21]) == {0: (0, 42), 1: (1, 42), 2: (2, 42)}


def test_closures_and_macros_reach_the_workers() -> None:
    """A function that no module has; `${local_rank}` in arguments as in torch's."""
    offset = 40

    def add(text: str) -> str:
        return f"{offset + int(os.environ['RANK'])} {text}"

    assert launch_agent(config(), add, ["r${local_rank}"]) == {0: "40 r0", 1: "41 r1"}


def test_a_command_has_no_values(capfd: pytest.CaptureFixture[str]) -> None:
    """L2: its ranks have None; its lines reach our console."""
    assert launch_agent(config(), sys.executable, ["-c", "print('said')"]) == {0: None, 1: None}
    assert capfd.readouterr().out == "said\nsaid\n"


def test_a_run_without_a_name_is_given_one(caplog: pytest.LogCaptureFixture) -> None:
    """Random, with a warning, and stored back; the default backend falls back with a word."""
    given = LaunchConfig(1, 1, 1, start_method="spawn")

    assert launch_agent(given, os.getenv, ["TORCHELASTIC_RUN_ID"]) == {0: given.run_id}

    assert given.run_id.isdecimal()
    assert f"uses the random run_id {given.run_id}" in caplog.text
    assert "rdzv_backend: etcd" in caplog.text


@pytest.mark.extended
def test_a_failure_is_torchs_own(tmp_path: Path) -> None:
    """L3: after the restarts, by global rank, with the traceback of the worker; logs and counters are where they should be."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    metrics = tmp_path / "metrics"
    cfg = {"destination": "file", "path": str(metrics)}

    with pytest.raises(ChildFailedError) as caught:
        launch_agent(config(max_restarts=1, log_dir=str(tmp_path), redirects=Std.ERR, metrics_cfg=cfg), fail_on_1, [])

    assert (caught.value.name, set(caught.value.failures)) == ("fail_on_1", {1})
    failure = caught.value.failures[1]
    assert (failure.local_rank, failure.exitcode) == (1, 1)
    message: Any = failure.message  # torch says that it is a text
    assert message["message"] == "ValueError: loss is nan"
    callstack = message["extraInfo"]["py_callstack"]
    assert ("fail_on_1" in callstack, "launched.py" in callstack) == (True, False), callstack
    assert {path.name for path in tmp_path.glob("job_*/round-*")} == {"round-1", "round-2"}
    assert "ValueError: loss is nan" in next(tmp_path.glob("job_*/round-2/rank-1.err")).read_text()
    told = {line["name"]: line["value"] for line in map(json.loads, metrics.read_text().splitlines())}
    assert (told["workers.default_role.run_failed_with_retries"], told["workers.default_role.rounds"]) == (1, 2)


def test_a_signal_is_an_exit_code_below_zero() -> None:
    """As torch tells it."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with pytest.raises(ChildFailedError) as caught:
        launch_agent(config(1, max_restarts=0), die, [])

    assert caught.value.failures[0].exitcode == -signal.SIGKILL


def test_a_value_that_cannot_travel_is_a_failure(tmp_path: Path) -> None:
    """Of the rank that returned it, and no further try would return another one."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with pytest.raises(ChildFailedError, match=r"the return value \(a lock\) cannot be pickled"):
        launch_agent(config(1, max_restarts=3, log_dir=str(tmp_path)), threading.Lock, [])

    assert [path.name for path in tmp_path.glob("job_*/round-*")] == ["round-1"]


def test_what_cannot_be_used_is_refused_before_anything_starts() -> None:
    """The error names the field or the argument, its value and what is allowed."""
    with pytest.raises(
        ValueError,
        match="run_id: 5 is not allowed; expected a string",
    ):
        launch_agent(config(1, run_id=5), double, [1])
    with pytest.raises(
        ValueError,
        match="args: 'abc' is not allowed; expected a list",
    ):
        launch_agent(config(1), double, "abc")
    with pytest.raises(ConfigError, match=r"script /no/such\.py: file not found"):
        launch_agent(config(1), sys.executable, ["/no/such.py"])


def test_nodes_that_do_not_come_are_a_timeout() -> None:
    """Two are wanted, and one is here."""
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    lonely = config(1, min_nodes=2, max_nodes=2, rdzv_endpoint=f"127.0.0.1:{free_port()}", rdzv_timeout=1)

    with pytest.raises(RendezvousTimeoutError):
        launch_agent(lonely, double, [1])


def two_nodes(**fields: Any) -> dict[int, dict[int, Any]]:
    """Let two threads of this program be two nodes, and return what each was returned."""
    values = {}

    def node(number: int) -> None:
        values[number] = launch_agent(config(min_nodes=2, max_nodes=2, **fields), double, [number])

    threads = [threading.Thread(target=node, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return values


def test_two_nodes_meet_and_threads_may_call() -> None:
    """Each gets its own workers' values; where it is called in a thread no signal handler is touched."""
    before = signal.getsignal(signal.SIGTERM)

    values = two_nodes(rdzv_endpoint=f"127.0.0.1:{free_port()}")

    assert sorted(rank for found in values.values() for rank in found) == [0, 1, 2, 3]
    assert all(value == (rank, 2 * number) for number, found in values.items() for rank, value in found.items())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.extended
@needs_etcd
def test_two_nodes_meet_through_etcd() -> None:
    """Nobody was told where the coordinator is, and the key is gone when all is over."""
    with serving() as server:
        before = server.index
        values = two_nodes(rdzv_backend="etcd", rdzv_endpoint=f"127.0.0.1:{server.server_port}")

        assert sorted(rank for found in values.values() for rank in found) == [0, 1, 2, 3]
        assert server.index > before
        assert server.value("/rallypoint/job/coordinator") is None


# --- Signals ---------------------------------------------------------------------------------------------------------------


def train(events: Events, folder: str) -> str:
    rank = os.environ["RANK"]
    Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
    try:
        for step in itertools.count():
            time.sleep(0.01)  # a step
            events.poll(step, save=lambda: Path(folder, f"saved-{rank}").write_text("whole"))
    except StopAllTasks:
        Path(folder, f"left-{rank}").touch()
    return "left"


def ended_by_signal(then: Callable[[], Any], function: Any, args: list[Any], events: Events, **fields: Any) -> BaseException:
    """Launch, do `then` in a thread meanwhile, and return what was raised."""
    thread = threading.Thread(target=then)
    thread.start()
    with pytest.raises(Exception, match="the run was stopped by") as caught:
        launch_agent(config(**fields), function, args, events)
    thread.join()
    return caught.value


def there(folder: Path, name: str) -> list[Path]:
    """Both ranks' files of this name, once both are there and have words in them."""
    found = [folder / f"{name}-{rank}" for rank in (0, 1)]
    return eventually(lambda: found if all(path.is_file() and path.stat().st_size for path in found) else [])


@pytest.mark.extended
def test_a_signal_saves_and_stops_by_events(tmp_path: Path) -> None:
    """SIGTERM to the caller: all ranks save and leave their loops; torch's SignalException says which signal."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    def terminate() -> None:
        there(tmp_path, "pid")
        os.kill(os.getpid(), signal.SIGTERM)

    events, before = Events(), signal.getsignal(signal.SIGTERM)
    raised = ended_by_signal(terminate, train, [events, str(tmp_path)], events, shutdown_timeout=30 * PATIENCE)

    assert isinstance(raised, SignalException)
    assert raised.sigval is signal.SIGTERM
    assert len(there(tmp_path, "saved")) == 2
    assert {path.name for path in tmp_path.glob("left-*")} == {"left-0", "left-1"}
    assert signal.getsignal(signal.SIGTERM) is before
    assert not any(alive(int(path.read_text())) for path in there(tmp_path, "pid"))


@pytest.mark.parametrize("collective", [pytest.param("socket", marks=pytest.mark.extended), "none"])
def test_a_signal_loses_no_checkpoint(collective: str, tmp_path: Path) -> None:
    """All ranks save the same step, whenever the signal comes; a hundred of each: `python -m tests.live.stop_soak`."""
    for run, after in enumerate((0.0, 0.013, 0.031, 0.05)[: sized(4, 1)]):
        folder = tmp_path / str(run)
        folder.mkdir()
        saved = stopped(folder, ranks=2, step_seconds=0.02, collective=collective, after=after, grace=30 * PATIENCE)
        assert all(saved)
        assert len(set(saved)) == 1


def test_a_caller_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL: the agent sees its stdin close, and ends the workers."""
    program = (
        "import sys; from rallypoint.agent import LaunchConfig, launch_agent; from tests.live.rank_functions import stay; "
        "launch_agent(LaunchConfig(1, 1, 2, 'job', rdzv_backend='c10d', start_method='spawn'), stay, [sys.argv[1]])"
    )
    caller = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    pids = [int(path.read_text()) for path in there(tmp_path, "pid")]

    caller.kill()
    caller.wait()

    assert eventually(lambda: not any(map(alive, pids)))


def test_our_own_children_are_left_alone() -> None:
    """The agent reaps and kills what is its own: it is another process."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    child = subprocess.Popen(["sleep", "1000"])
    try:
        with pytest.raises(ChildFailedError):
            launch_agent(config(1, max_restarts=1), die, [])
        assert child.poll() is None
    finally:
        child.kill()
        assert child.wait() == -signal.SIGKILL
