"""From a job to the plans that agents and supervisors read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.job import ElasticJob, compile_plan
from rallypoint.wire.codec import dumps, loads
from rallypoint.wire.incident import Answer
from rallypoint.wire.plan import EndRule, Entry, OrphanPolicy, Plan, Refill
from rallypoint.wire.sections import build

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}


def plan_of(**fields):
    (plan,) = compile_plan(ElasticJob(**{**GOOD, **fields}))
    return plan


def test_defaults_of_the_job_are_those_of_the_plan():
    """The plan of a bare job differs from a bare plan in nothing but its digest."""
    bare = Plan(name="digits", role="trainer", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="train.py")

    assert dataclasses.replace(plan_of(), digest="") == bare


#: A job in which every field has a value of its own.
WHOLE = {
    "entrypoint": "-m pkg.train",
    "args": ["--epochs", 3],
    "nodes": "2:4",
    "node_unit": 2,
    "nproc_per_node": 8,
    "numa_affinity": "socket",
    "env": {"A": True},
    "workdir": "/src",
    "setup_commands": ["git clone a", "cd a"],
    "checkpoint_dir": "/ckpt",
    "fault_tolerance": {
        "retry_limit": 1,
        "admission_grace_period": "2s",
        "warmup_grace_period": "3s",
        "failure_grace_period": "4s",
        "retry_pause_period": "5s",
        "forceful_deletion_grace_period": "6s",
        "deletion_on_failure_grace_period": "7s",
        "success_ttl": "8d",
        "terminal_exit_codes": [3, 10],
        "retryable_exit_codes": "137, 143",
        "no_progress_limit": 9,
        "pending_timeout": "10m",
        "pending_fail_strategy": 2,
        "rules": [{"exit_code": 17, "signal": "KILL", "log_pattern": "Xid (48|79)", "answer": "retry-elsewhere"}],
        "dynamic_failover_extension": "pkg.failover::Mine",
        "lease": "12m",
        "orphan_policy": "stop",
    },
    "recovery": {
        "max_restarts": 7,
        "node_replacements": 8,
        "max_hangs": 9,
        "replace_delay": "9s",
        "stop_grace_period": "10.5s",
        "exit_grace_period": "11.5s",
        "standby": 3,
        "preload": ["numpy", "pkg.data"],
        "start_method": "fork",
        "refill": {
            "process": {"window": "1h"},
            "node": {"healthy_for": "2h"},
            "hang": {"on_checkpoint": True},
            "reset": {"window": "3h", "healthy_for": "4h", "on_checkpoint": "true"},
        },
    },
    "rendezvous": {"join_timeout": "11s", "last_call_timeout": "12s", "fence_timeout": "13s", "port": 14},
    "health": {
        "node_lease": "16s",
        "report_interval": "2s",
        "hang_downtime": 5,
        "hang_detection": 2,
        "hang_learning": False,
        "metrics_port": 15,
    },
    "logs": {"dir": "/logs", "redirects": "none", "tee": "stderr", "tail_lines": 17},
}


#: What it is compiled to, but for the digest.
WHOLE_PLAN = build(
    Plan,
    numa_binding="socket",
    name="digits",
    role="trainer",
    min_nodes=2,
    max_nodes=4,
    node_unit=2,
    nproc_per_node=8,
    entry=Entry.MODULE,
    entrypoint="pkg.train",
    args=("--epochs", "3"),
    env={"A": "true"},
    workdir="/src",
    setup=("git clone a", "cd a"),
    checkpoint_dir="/ckpt",
    retry_limit=1,
    admission_grace=2.0,
    warmup_grace=3.0,
    failure_grace=4.0,
    retry_pause=5.0,
    forceful_deletion_grace=6.0,
    deletion_on_failure_grace=7.0,
    success_ttl=8 * 86400.0,
    terminal_exit_codes=(3, 10),
    retryable_exit_codes=(137, 143),
    no_progress_limit=9,
    pending_timeout=600.0,
    pending_fail_strategy=2,
    end_rules=(EndRule(exit_codes=(17,), signals=(9,), log_pattern="Xid (48|79)", answer=Answer.RETRY_ELSEWHERE),),
    failover_extension="pkg.failover::Mine",
    lease=720.0,
    orphan_policy=OrphanPolicy.STOP,
    max_restarts=7,
    node_replacements=8,
    max_hangs=9,
    process_refill=Refill(window=3600.0),
    node_refill=Refill(healthy_for=7200.0),
    hang_refill=Refill(on_checkpoint=True),
    reset_refill=Refill(window=10800.0, healthy_for=14400.0, on_checkpoint=True),
    replace_delay=9.0,
    stop_grace=10.5,
    exit_grace=11.5,
    standbys=3,
    preload=("numpy", "pkg.data"),
    start_method="fork",
    join_timeout=11.0,
    last_call=12.0,
    fence_timeout=13.0,
    coordinator_port=14,
    metrics_port=15,
    node_lease=16.0,
    report_interval=2.0,
    hang_downtime=300.0,
    hang_detection=2,
    hang_learning=False,
    log_dir="/logs",
    redirects=2,
    tee=2,
    log_tail=17,
)


def test_every_field_of_a_job_reaches_its_place_in_the_plan():
    """No policy is written in vain."""
    assert dataclasses.replace(plan_of(**WHOLE), digest="") == WHOLE_PLAN


@pytest.mark.parametrize(
    ("fields", "entry", "entrypoint", "args"),
    [
        pytest.param({}, Entry.SCRIPT, "train.py", ("x",), id="script without workdir"),
        pytest.param({"workdir": "/src"}, Entry.SCRIPT, "/src/train.py", ("x",), id="script below workdir"),
        pytest.param({"workdir": "/src", "entrypoint": "/a/b.py"}, Entry.SCRIPT, "/a/b.py", ("x",), id="absolute script"),
        pytest.param(
            {"workdir": "/src", "setup_commands": ["cd a"]}, Entry.SCRIPT, "train.py", ("x",), id="where setup commands end"
        ),
        pytest.param({"workdir": "/src", "entrypoint": "-m pkg"}, Entry.MODULE, "pkg", ("x",), id="module"),
        pytest.param({"workdir": "/src", "entrypoint": ["sh", "-c", "a"]}, Entry.COMMAND, "sh", ("-c", "a", "x"), id="command"),
    ],
)
def test_what_runs_is_told_in_one_entrypoint_and_its_arguments(fields, entry, entrypoint, args):
    """A script is found from anywhere; a command's further words come before the arguments."""
    plan = plan_of(args=["x"], **fields)

    assert (plan.entry, plan.entrypoint, plan.args) == (entry, entrypoint, args)


@pytest.mark.parametrize(
    ("logs", "redirects", "tee"),
    [
        pytest.param({}, 3, 0, id="default: both captured, none shown"),
        pytest.param({"redirects": "none"}, 0, 0, id="nothing"),
        pytest.param({"redirects": "stdout"}, 1, 0, id="stdout captured"),
        pytest.param({"redirects": "stdout", "tee": "stderr"}, 3, 2, id="what is shown is captured, too"),
        pytest.param({"redirects": "none", "tee": "both"}, 3, 3, id="both shown"),
    ],
)
def test_streams_are_numbered_as_torchrun_does(logs, redirects, tee):
    """0 none, 1 stdout, 2 stderr, 3 both; tee implies capture."""
    plan = plan_of(logs=logs)

    assert (plan.logs.redirects, plan.logs.tee) == (redirects, tee)


def test_each_role_has_a_plan():
    """One plan a role, in order, all of the same job and digest."""
    roles = {"learner": {"entrypoint": "l.py"}, "actor": {"entrypoint": "a.py", "nodes": 3}}
    plans = compile_plan(ElasticJob.model_validate({"name": "rl", "roles": roles}))

    assert [(plan.name, plan.role, plan.max_nodes) for plan in plans] == [("rl", "learner", 1), ("rl", "actor", 3)]
    assert len({plan.digest for plan in plans}) == 1


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"nodes": "1:2", "env": {"A": 1}}, id="a small one"),
        pytest.param(WHOLE, id="one in which everything is given"),
        pytest.param({"profile": "mindcluster", "labels": {"fault-scheduling": "force"}}, id="with MindCluster's settings"),
    ],
)
def test_a_plan_travels_as_json(fields):
    """What compile_plan returns is what an agent reads."""
    plan = plan_of(**fields)

    assert loads(Plan, dumps(plan)) == plan


@pytest.mark.parametrize(
    ("tolerance", "submitter", "policy"),
    [
        pytest.param({}, OrphanPolicy.CONTINUE, OrphanPolicy.CONTINUE, id="a submitter that continues"),
        pytest.param({}, OrphanPolicy.STOP, OrphanPolicy.STOP, id="a submitter that stops"),
        pytest.param({"orphan_policy": "continue"}, OrphanPolicy.STOP, OrphanPolicy.CONTINUE, id="a job that says continue"),
        pytest.param({"orphan_policy": "stop"}, OrphanPolicy.CONTINUE, OrphanPolicy.STOP, id="a job that says stop"),
    ],
)
def test_the_orphan_policy_is_the_jobs_or_else_the_submitters(tolerance, submitter, policy):
    """Who submits decides for a job that does not say; the digest, by which jobs are adopted, does not depend on it."""
    job = ElasticJob(**GOOD, fault_tolerance=tolerance)
    (plan,) = compile_plan(job, orphan_policy=submitter)

    assert plan.orphan_policy is policy
    assert plan.digest == compile_plan(job)[0].digest


@pytest.mark.parametrize(
    "same",
    [
        pytest.param({"name": "other"}, id="another name"),
        pytest.param({"env": {"B": "2", "A": 1}}, id="another order and form of values"),
        pytest.param({"recovery": {"max_restarts": 3}}, id="a default written out"),
        pytest.param({"fault_tolerance": {"retry_pause_period": "PT1M30S"}}, id="another form of a duration"),
        pytest.param({"nodes": "1:1"}, id="another form of nodes"),
    ],
)
def test_equal_specs_have_equal_digests(same):
    """The digest names what is asked for, not how it is written."""
    assert plan_of(**{"env": {"A": "1", "B": "2"}, **same}).digest == plan_of(env={"A": "1", "B": "2"}).digest


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"nodes": 2}, id="nodes"),
        pytest.param({"env": {"A": "2"}}, id="environment"),
        pytest.param({"recovery": {"max_restarts": 4}}, id="policy"),
        pytest.param({"image": "other"}, id="pod field"),
        pytest.param({"workdir": "/x"}, id="workdir"),
        pytest.param({"profile": "appwrapper"}, id="profile"),
        pytest.param({"recovery": {"max_hangs": 4}}, id="budget"),
        pytest.param({"recovery": {"refill": {"reset": {"on_checkpoint": True}}}}, id="refill"),
        pytest.param({"fault_tolerance": {"lease": "2h"}}, id="lease"),
        pytest.param({"labels": {"team": "vision"}}, id="label"),
    ],
)
def test_other_specs_have_other_digests(other):
    """Whatever may change what runs changes the digest."""
    assert plan_of(**other).digest != plan_of().digest


def test_a_digest_is_stable():
    """Sixteen hexadecimal digits that no process, machine or hash seed changes; a new one breaks adoption of running jobs."""
    assert plan_of().digest == "c2c51f0ea9e4c0f6"
