"""The reset file as an agent sees it while it is written, replaced and removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rallypoint.agent.node.profile import node_rules
from rallypoint.compat.mindcluster.node import ResetWatch
from rallypoint.wire.plan import Entry, Plan, Profile, Scheduling


def put(path: Path, policy: str) -> None:
    """Put a new file into its place, as a kubelet does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"RankList": [{"RankId": 1, "Policy": policy}]}))
    fresh.replace(path)


def test_what_the_file_says_now_is_told(tmp_path: Path) -> None:
    """A file that comes, is replaced, and goes."""
    path = tmp_path / "reset.json"
    watch = ResetWatch(str(path))
    assert watch.foreign() == ""
    put(path, "reset")
    assert watch.foreign() == "rank 1 has the policy reset"
    put(path, "ignore")
    assert watch.foreign() == ""
    put(path, "restart")
    assert watch.foreign() == "rank 1 has the policy restart"
    path.unlink()
    assert watch.foreign() == ""


def test_one_that_is_half_written_says_what_it_said_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which the log tells once, with what is wrong."""
    path = tmp_path / "reset.json"
    put(path, "reset")
    watch = ResetWatch(str(path))
    assert watch.foreign()
    path.write_text('{"RankList": [')
    assert [watch.foreign(), watch.foreign()] == ["rank 1 has the policy reset"] * 2
    [said] = caplog.messages
    assert said.startswith(f"the agent cannot read the MindCluster reset file {path}: reset file: ")


def test_it_is_read_only_when_it_is_another_one(tmp_path: Path) -> None:
    """A look at what has not changed reads nothing."""
    path = tmp_path / "reset.json"
    put(path, "reset")
    watch = ResetWatch(str(path))
    watch.foreign()
    known = path.stat()
    path.write_text(path.read_text().replace("reset", "empty"))  # as long as it was
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert watch.foreign() == "rank 1 has the policy reset"


def plan(profile: Profile, scheduling: Scheduling | None) -> Plan:
    return Plan(
        name="job",
        role="trainer",
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        entry=Entry.SCRIPT,
        entrypoint="x",
        profile=profile,
        scheduling=scheduling,
    )


def test_only_a_job_of_mindcluster_has_one(tmp_path: Path) -> None:
    """At MindCluster's place, or where the job says."""
    path = tmp_path / "reset.json"
    put(path, "reset")
    scheduling = Scheduling(reset_file=str(path))
    assert tolerance(plan(Profile.MINDCLUSTER, scheduling)) == "rank 1 has the policy reset"
    assert node_rules(plan(Profile.LADDER, scheduling)) is None
    assert not tolerance(plan(Profile.MINDCLUSTER, Scheduling(reset_file="")))
    assert Scheduling().reset_file == "/user/restore/reset/config/reset.json"


def tolerance(plan: Plan) -> str:
    """Return what an agent of a plan reports."""
    rules = node_rules(plan)
    assert rules is not None
    return rules.tolerance()
