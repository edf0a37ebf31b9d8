"""The tuned batch: when it is measured, how nodes and coordinator agree on it, and the file in which scripts find it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.capabilities.tuned_batch import parallel_config
from rallypoint.capabilities.tuned_batch.coordinator import TunedBatch
from rallypoint.capabilities.tuned_batch.node import GpuPeak, HostPeak, Measuring, Now, Tuner, peak_of
from rallypoint.capabilities.tuned_batch.parallel_config import ParallelConfig
from rallypoint.capabilities.tuned_batch.wire import (
    AssignmentSection,
    NodeTuning,
    ReplySection,
    Tuned,
    Tuning,
)
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit, FaultKind
from rallypoint.wire.messages import AgentState, Assignment, Continue, WorkerReport
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import replaced
from tests.agent.fakes import TWO, new_state, report
from tests.waiting import eventually_async

MIB = 1 << 20
REGISTERED = (TunedBatch(),)


def running(state: rendezvous.State, *tunings: NodeTuning | None, sequence: int = 10, **more: object) -> rendezvous.State:
    for node, tuning in enumerate(tunings):
        one = report(node, AgentState.RUNNING, round=1, tuning=tuning, sequence=sequence, **more)
        state = rendezvous.receive(state, one, 2.0)
    return state


def known(state: rendezvous.State) -> Tuning:
    """Return what the coordinator knows of the batch."""
    tuning: Tuning | None = state.capabilities.state_of("tuned_batch").tuning
    assert tuning is not None
    return tuning


def begun() -> rendezvous.State:
    state = new_state(TWO, now=0.0, registered=REGISTERED)
    for node in range(2):
        state = rendezvous.receive(state, report(node), 1.0)
    return state


def measured(batch: int, memory: int, version: int = 0, limit: int = 1000) -> NodeTuning:
    return NodeTuning(version=version, batch=batch, memory=memory * MIB, limit=limit * MIB)


def test_the_next_batch_is_told_when_all_have_measured() -> None:
    """The node with the most memory in use counts, and the one with the least to give."""
    state = running(begun(), measured(10, 100), None)
    assert rendezvous.answer(state, "agent-0") is None

    state = running(state, measured(10, 100), measured(10, 300, limit=800), sequence=11)

    assert (known(state).version, known(state).batch) == (1, 20)
    assert [(one.batch, one.memory // MIB) for one in known(state).seen] == [(10, 300)]
    for agent in ("agent-0", "agent-1"):
        reply = rendezvous.answer(state, agent)
        assert isinstance(reply, Continue)
        assert ReplySection.of(reply).tuned == Tuned(version=1, batch=20)
    assert "batch size per worker set to 20; reason: batch size 10 used 300 of 800 MiB of memory" in state.events[-1].detail


def test_who_has_heard_is_asked_no_more_and_measures_anew() -> None:
    """With the second observation the line is known."""
    state = running(begun(), measured(10, 300), measured(10, 300))
    state = running(state, NodeTuning(version=1, batch=20), NodeTuning(version=1, batch=20), sequence=11)
    assert rendezvous.answer(state, "agent-0") is None

    state = running(state, measured(20, 400, 1), measured(20, 400, 1), sequence=12)

    assert (known(state).version, known(state).batch) == (2, 40)


def test_a_batch_that_is_as_large_as_it_can_be_stays() -> None:
    """It is said once, and nothing is asked for."""
    state = running(begun(), measured(10, 890), measured(10, 890))

    assert (known(state).version, known(state).settled) == (0, "the memory limit is reached")
    assert rendezvous.answer(state, "agent-0") is None
    assert [event.kind for event in state.events].count("tuned") == 1


@pytest.mark.argument("auto_tunning")
def test_the_next_attempt_begins_with_it() -> None:
    """The status carries it from one attempt to the next, and the place in the first round tells it."""
    state = running(begun(), measured(10, 300), measured(10, 300))
    previous = rendezvous.status(state, 3.0)

    after = rendezvous.new(TWO, job="digits", uid="u1", attempt=2, term=2, now=4.0, previous=previous, registered=REGISTERED)
    for node in range(2):
        after = rendezvous.receive(after, report(node, tuning=NodeTuning(limit=1)), 5.0)
    reply = rendezvous.answer(after, "agent-0")

    assert isinstance(reply, Assignment)
    assert AssignmentSection.of(reply).tuned == Tuned(version=1, batch=20)
    other = rendezvous.new(TWO, job="digits", uid="u2", attempt=1, term=1, now=4.0, previous=previous, registered=REGISTERED)
    assert other.capabilities.state_of("tuned_batch").tuning is None


def test_memory_that_runs_out_takes_it_back() -> None:
    """The batch before it is used again, and none that is larger is tried."""
    state = running(begun(), measured(10, 300), measured(10, 300))
    oom = Culprit(
        node=0, incarnation=1, host="h", rank=0, local_rank=0, pid=1, error="killed", at=2.0, kind=FaultKind.OOM, signal=9
    )
    failed = report(0, AgentState.FAILED, round=1, tuning=NodeTuning(version=1, batch=20), failures=(oom,), sequence=12)
    state = rendezvous.receive(state, failed, 3.0)

    assert (known(state).version, known(state).batch, known(state).ceiling) == (2, 10, 19)
    assert known(state).settled


# --- When it is measured ---------------------------------------------------------------------------------------------------


def test_it_is_measured_after_some_steps_of_everybody() -> None:
    """The peak begins anew first; a worker that lags behind holds it up."""
    measuring, now = Measuring().looked(32, {0: 100, 1: 100})
    assert now is Now.NOTHING
    measuring, now = measuring.looked(32, {0: 150, 1: 109})
    assert now is Now.NOTHING
    measuring, now = measuring.looked(32, {0: 150, 1: 110})
    assert now is Now.FORGET_PEAK
    measuring, now = measuring.looked(32, {0: 160, 1: 119})
    assert now is Now.NOTHING
    measuring, now = measuring.looked(32, {0: 160, 1: 120})
    assert now is Now.READ_PEAK
    assert measuring.looked(32, {0: 999, 1: 999})[1] is Now.NOTHING


@pytest.mark.parametrize("batch", [0, 64])
def test_another_batch_or_other_workers_begin_anew(batch: int) -> None:
    """Steps that were taken with something else say nothing; without a batch there is nothing to measure."""
    measuring, _ = Measuring().looked(32, {0: 0})
    changed, now = measuring.looked(batch, {0: 50})
    assert (changed.since, now) == ({0: 50}, Now.NOTHING)
    restarted, _ = measuring.looked(32, {0: 50})[0].looked(32, {0: 3})
    assert restarted.since == {0: 3}
    assert Measuring().looked(0, {0: 50})[0].looked(0, {0: 500})[1] is Now.NOTHING


# --- The file --------------------------------------------------------------------------------------------------------------


def test_the_file_has_the_form_that_dlrover_reads(tmp_path: Path) -> None:
    """All of its fields, and what a script wrote beside them stays."""
    path = tmp_path / "config.json"
    parallel_config.write(path, ParallelConfig())
    content = json.loads(path.read_text())
    assert set(content) == {"dataloader", "optimizer", "restart"}
    assert set(content["dataloader"]) == {
        *("version", "dataloader_name", "last_batch_size", "batch_size", "num_workers", "pin_memory")
    }
    assert set(content["optimizer"]) == {"version", "optimizer_name", "learning_rate", "weight_decay"}

    content["dataloader"] |= {"batch_size": 32, "num_workers": 4}
    path.write_text(json.dumps(content))
    assert parallel_config.read(path) == ParallelConfig(version=0, batch=32)
    parallel_config.write(path, ParallelConfig(version=1, batch=64))

    content = json.loads(path.read_text())["dataloader"]
    assert {name: content[name] for name in ("version", "batch_size", "last_batch_size", "num_workers")} == {
        "version": 1,
        "batch_size": 64,
        "last_batch_size": 32,
        "num_workers": 4,
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dataloader": 1}', '{"dataloader": {"version": "1", "batch_size": 2}}'])
def test_a_file_that_is_being_written_says_nothing(tmp_path: Path, text: str) -> None:
    """It is looked at again."""
    path = tmp_path / "config.json"
    path.write_text(text)
    assert parallel_config.read(path) is None
    assert parallel_config.read(tmp_path / "absent") is None


# --- The node --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class FakePeak:
    most: int = 1000 * MIB
    used: int = 0
    forgot: int = 0

    def limit(self) -> int:
        return self.most

    def forget(self, pids) -> None:
        self.forgot += 1

    def read(self, pids) -> int:
        return self.used


def workers(steps: int) -> tuple[WorkerReport, ...]:
    return (WorkerReport(local_rank=0, pid=1, liveness=steps),)


def reported(tuner: Tuner, steps: int) -> NodeTuning | None:
    section = tuner.report(workers(steps))
    return None if section is None else section.tuning


def reply(tuned: Tuned) -> Continue:
    return replaced(Continue(fence=Fence(attempt=1)), tuned=tuned)


@pytest.mark.argument("auto_tunning")
@pytest.mark.may_block("the file is a few hundred bytes in shared memory")
async def test_a_node_measures_and_writes(tmp_path: Path) -> None:
    """From the script's own batch to a tuned one; a script that begins anew with its own is overruled."""
    news: list[int] = []
    peak = FakePeak(used=300 * MIB)
    tuner = Tuner(tmp_path, peak, pids=lambda: {0: 1}, changed=lambda: news.append(1))
    await tuner.begin()
    path = Path(tuner.environment()["DLROVER_PARAL_CONFIG_PATH"])
    assert reported(tuner, 0) == NodeTuning(limit=1000 * MIB)

    parallel_config.write(path, ParallelConfig(batch=32))
    reported(tuner, 0)
    reported(tuner, 10)
    await eventually_async(lambda: peak.forgot)
    await eventually_async(lambda: reported(tuner, 20) and news)
    assert reported(tuner, 20) == NodeTuning(batch=32, memory=300 * MIB, limit=1000 * MIB)

    tuner.on_reply(reply(Tuned(version=1, batch=64)), waiting=False)
    assert parallel_config.read(path) == ParallelConfig(version=1, batch=64)
    assert reported(tuner, 21) == NodeTuning(version=1, batch=64, limit=1000 * MIB)
    tuner.on_reply(reply(Tuned(version=1, batch=999)), waiting=False)
    parallel_config.write(path, ParallelConfig(version=1, batch=32))  # as DLRover's loader does when it begins
    reported(tuner, 0)
    assert parallel_config.read(path) == ParallelConfig(version=2, batch=64)
    await tuner.close()
    assert parallel_config.read(path) is None


@pytest.mark.may_block("the file is a few hundred bytes in shared memory")
async def test_without_a_limit_nothing_is_tuned(tmp_path: Path, caplog) -> None:
    """It is said once, and nothing is told to the coordinator."""
    tuner = Tuner(tmp_path, FakePeak(most=0), pids=dict, changed=lambda: None)
    await tuner.begin()

    assert reported(tuner, 0) is None
    assert "tuning of the batch size is off, because this node has no GPU" in caplog.text
    await tuner.close()


def test_the_peak_of_a_process_begins_anew() -> None:
    """The kernel counts from where the process is, and a process that is gone has none."""
    script = "import sys; b = b'x' * (96 << 20); del b; print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        peak, pids = HostPeak(7), {0: process.pid}
        before = peak.read(pids)
        peak.forget(pids)
        after = peak.read(pids)
        process.communicate()

    assert before > 96 << 20
    assert after <= before  # less where the kernel lets it begin anew
    assert peak.read(pids) == 0
    assert peak.limit() == 7


def test_a_gpu_is_asked_by_its_place(tmp_path: Path, monkeypatch) -> None:
    """What is used on the GPU of each local rank, and the least that one of them has."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU-a, 100, 1000'\necho 'GPU-b, 700, 2000'\necho 'GPU-c, 300, 3000'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    plan = Plan(name="a", role="b", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="c")

    peak = peak_of(plan, {"CUDA_VISIBLE_DEVICES": "2,0"})
    assert isinstance(peak, GpuPeak)
    assert (peak.limit(), peak.read({0: 5, 1: 6})) == (1000 * MIB, 300 * MIB)
    assert peak_of(plan, {"CUDA_VISIBLE_DEVICES": "GPU-c"}).read({0: 5}) == 300 * MIB
    assert isinstance(peak_of(plan, {"CUDA_VISIBLE_DEVICES": "-1"}), HostPeak)
    assert peak.read({5: 5}) == 0
    assert isinstance(peak_of(replaced(plan, accelerator="cpu"), {}), HostPeak)
    assert peak_of(replaced(plan, tuning_memory=5), {}).limit() == 5
