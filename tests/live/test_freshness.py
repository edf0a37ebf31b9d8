"""A job that stands still is never shown as training without since when nothing was heard of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.report.page.values import Page
from tests.live.jobs import Job, cli
from tests.waiting import eventually

#: A lease that no test outlives: the coordinator gives nobody up meanwhile.
LEASE = {"health": {"node_lease": "10m"}, "rendezvous": {"fence_timeout": "20m"}}


@pytest.fixture
def job(tmp_path: Path, home: Path, light: None) -> Iterator[Job]:
    """One node of two workers that count until they may end."""
    job = Job.write(tmp_path, home, 20, 0.05, endless=True, nproc_per_node=2, **LEASE).submit()
    job.trains(ranks=2, beyond=5)
    yield job
    job.discard()


@pytest.mark.parametrize(
    ("part", "words"),
    [
        pytest.param("coordinator", r"last report \d+(\.\d+)? s ago; then: training on 1 of 1 nodes", id="the coordinator"),
        pytest.param("agent", r"last report( of node 0)? \d+(\.\d+)? s ago", id="the agent", marks=pytest.mark.extended),
        pytest.param(
            "worker",
            r"training on 1 of 1 nodes; last sign of life \d+(\.\d+)? s ago",
            id="the workers",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_what_is_stopped_is_shown_with_its_age(job: Job, part: str, words: str) -> None:
    """Also by `explain` and the tab; and once it goes on, nothing of it is said any more."""
    assert "training on 1 of 1 nodes" in (shown := summary(job))
    assert "last " not in shown
    pids = {
        "coordinator": [p.pid for p in job.agents("coordinator")],
        "agent": [p.pid for p in job.agents("node")],
        "worker": [rank.pid for rank in job.trains(ranks=2).ranks],
    }[part]
    assert pids
    try:
        signal_all(pids, signal.SIGSTOP)
        eventually(lambda: re.search(words, summary(job)), timeout=20.0, why=lambda: summary(job))
        age = r"last (report|sign of life)( of node 0)? \d+(\.\d+)? s ago"
        told = cli("explain", job.name).stdout
        assert re.search(age, told), told
        page = asyncio.run(tab(job))
        assert re.search(age, page.title), page.title
        assert re.match(age, page.advice, re.IGNORECASE), page.advice
    finally:
        signal_all(pids, signal.SIGCONT)
    eventually(lambda: "last " not in summary(job), timeout=20.0, why=lambda: summary(job))
    assert "last " not in (title := asyncio.run(tab(job)).title), title


@pytest.mark.extended
def test_another_coordinator_says_it_too(job: Job) -> None:
    """The first report that it receives tells of steps that were made long ago; they are no sign of life."""
    pids = [rank.pid for rank in job.trains(ranks=2).ranks]
    try:
        signal_all(pids, signal.SIGSTOP)
        eventually(lambda: "last sign of life" in summary(job), timeout=20.0, why=lambda: summary(job))
        signal_all([p.pid for p in job.agents("coordinator")], signal.SIGKILL)
        shown: list[str] = []

        def taken_over() -> bool:
            shown.append(summary(job))
            return job.status is not None and job.status.fence.term == 2

        eventually(taken_over, timeout=20.0)
        shown += [summary(job) for _ in range(4)]
        assert [line for line in shown if "training on" in line and "last " not in line] == []
    finally:
        signal_all(pids, signal.SIGCONT)


#: Torch is imported, but no optimizer of it makes a step.
REPORTS = """
import itertools, time
import torch
from rallypoint.training import report_progress
for step in itertools.count():
    report_progress(step)
    time.sleep(0.05)
"""


@pytest.mark.extended
def test_a_worker_that_only_reports_is_not_silent(tmp_path: Path, home: Path) -> None:
    """With torch but without an optimizer, its reports are its signs of life."""
    (tmp_path / "reports.py").write_text(REPORTS)
    job = Job.write(tmp_path, home, entrypoint=str(tmp_path / "reports.py")).submit()
    try:
        begun = job.trains(ranks=1).ranks[0].step or 0
        job.trains(ranks=1, beyond=begun + 160)  # 8 s
        assert "last " not in summary(job)
    finally:
        job.discard()


async def tab(job: Job) -> Page:
    """Return what the tab of the job's task shows: what the API server answers a browser."""
    looker = Looker(access=LiveAccess(home=job.home))
    handle = {"name": job.name, "backend": "local", "owner": job.record.owner}
    try:
        key = TaskKey(dag_id="d", run_id="r", task_id="t")
        return await looker.look(TaskSeen(key=key, tries={job.record.owner: 1}, handle=handle))
    finally:
        await looker.close()


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def summary(job: Job) -> str:
    """Return what `status` says of the phase."""
    lines = cli("status", job.name).stdout.splitlines()
    return next(line for line in lines if line.startswith("phase"))
