"""MindCluster's parameters of process-level recovery: what reaches the plan, and the environment of the workers."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.agent.workers.worker_env import worker_env
from rallypoint.compat.mindcluster.scheduling import strategies
from rallypoint.compat.mindcluster.strategy import Strategy
from rallypoint.job import ElasticJob, JobError, compile_plan
from rallypoint.wire.plan import Plan, Profile
from tests.agent.test_worker_env import PLACE

GRACE = {"fault-scheduling": "grace"}
ALL = "retry,recover-in-place,recover,elastic-training,dump,exit"
HA, REPAIR, REBOOT, ELASTIC = (
    f"--enable-{name}" for name in ("high-availability", "hbmfault-repair", "worker-reboot", "elastic-training")
)


def job_of(labels: dict[str, str] | None = None, strategy: str | None = None, **fields: Any) -> ElasticJob:
    annotations = {} if strategy is None else {"recover-strategy": strategy}
    document = {"name": "digits", "entrypoint": "train.py", "profile": "mindcluster", **fields}
    return ElasticJob.model_validate({**document, "labels": {**GRACE, **(labels or {})}, "annotations": annotations})


def plan_of(labels: dict[str, str] | None = None, strategy: str | None = None, **fields: Any) -> Plan:
    (plan,) = compile_plan(job_of(labels, strategy, **fields))
    return plan


def tried(plan: Plan) -> str:
    return ",".join(word.value for word in strategies(plan.scheduling))


def in_worker(plan: Plan) -> dict[str, str]:
    return worker_env({}, plan, PLACE)


def test_the_variables_arrive_in_the_workers() -> None:
    """Those of all six words, and the label of the job."""
    job = job_of(strategy=ALL)
    (plan,) = compile_plan(job)

    expected = {
        "PROCESS_RECOVER": "on",
        "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
        "ENABLE_RESTART_FAULT_PROCESS": "on",
        "HIGH_AVAILABILITY": "dump,elastic-training,recover,retry",
    }
    assert expected.items() <= in_worker(plan).items()
    assert job.labels["process-recover-enable"] == job.roles[0].labels["process-recover-enable"] == "on"


@pytest.mark.parametrize(
    ("fields", "labels", "expected"),
    [
        pytest.param({}, {"framework": "mindspore"}, {"MS_ENABLE_TFT": "{ARF:1}"}, id="a label"),
        pytest.param(
            {"mindcluster": {"framework": "mindspore", "pod_rescheduling": True}},
            {},
            {"MS_ENABLE_TFT": "{ARF:1,RSC:1}"},
            id="the block",
        ),
        pytest.param(
            {"mindcluster": {"variables": "operator"}}, {}, {"HCCL_ASYNC_ERROR_HANDLING": "0"}, id="the operator's table"
        ),
    ],
)
def test_whose_variables_they_are(fields: dict[str, Any], labels: dict[str, str], expected: dict[str, str]) -> None:
    """The framework's, by one table or the other."""
    assert expected.items() <= plan_of(labels, "recover", **fields).env.items()


def test_a_variable_of_the_job_itself_stays() -> None:
    """It is not written twice; what is said in a command line is left to that."""
    plan = plan_of(strategy="recover,dump", env={"HIGH_AVAILABILITY": "dump"}, setup_commands=["export PROCESS_RECOVER=on"])

    assert plan.env == {"ELASTIC_PROCESS_RECOVER_ENABLE": "1", "HIGH_AVAILABILITY": "dump"}


def test_a_saved_job_is_the_same() -> None:
    """Read back, with what was derived written in full."""
    for job in (
        job_of(strategy="retry,dump"),
        job_of(args=[HA, REBOOT]),
        job_of({"fault-scheduling": "off"}, args=[HA, REPAIR]),
    ):
        again = ElasticJob.model_validate(job.to_document())
        assert (again, compile_plan(again)) == (job, compile_plan(job))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        pytest.param("on", ALL, id="on"),
        pytest.param("pause", "exit", id="V13: pause"),
        pytest.param("off", "exit", id="off"),
        pytest.param(None, ALL, id="set by the strategy"),
    ],
)
def test_process_recover_enable(label: str | None, expected: str) -> None:
    """It switches all that is done for single processes."""
    labels = {} if label is None else {"process-recover-enable": label}

    assert tried(plan_of(labels, ALL)) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({"PROCESS_RECOVER": "on"}, ALL, id="PROCESS_RECOVER on"),
        pytest.param({"PROCESS_RECOVER": "off"}, "exit", id="PROCESS_RECOVER off"),
        pytest.param({"ELASTIC_PROCESS_RECOVER_ENABLE": "1"}, ALL, id="ELASTIC 1"),
        pytest.param({"ELASTIC_PROCESS_RECOVER_ENABLE": "0"}, "elastic-training,exit", id="ELASTIC 0"),
        pytest.param({"ELASTIC_PROCESS_RECOVER_ENABLE": "on"}, "elastic-training,exit", id="ELASTIC anything else"),
        pytest.param({"ENABLE_RESTART_FAULT_PROCESS": "on"}, ALL, id="RESTART on"),
        pytest.param(
            {"ENABLE_RESTART_FAULT_PROCESS": "1"}, "retry,recover,elastic-training,dump,exit", id="RESTART anything else"
        ),
    ],
)
def test_variables_switch_strategies_off(env: dict[str, str], expected: str) -> None:
    """In the job's environment, in a pod's, or exported by a command; they arrive as they are."""
    plan = plan_of(strategy=ALL, env=env)
    exported = [f"export {name}={text}; ./train_start.sh" for name, text in env.items()]

    assert tried(plan) == expected
    assert env.items() <= in_worker(plan).items()
    assert tried(plan_of(strategy=ALL, entrypoint=["bash", "-c", *exported])) == expected
    assert tried(plan_of(strategy=ALL, pod_env=[{"name": name, "value": text} for name, text in env.items()])) == expected


def test_graceful_tolerance_and_another_deletion() -> None:
    """A foreign entry leads to the job's level; without a graceful deletion the world may still shrink."""
    assert tried(plan_of(strategy=ALL, mindcluster={"graceful_tolerance": True})) == "exit"
    assert tried(plan_of({"fault-scheduling": "force"}, "elastic-training,dump")) == "elastic-training,dump,exit"


def test_other_profiles_may_try_everything() -> None:
    """What the processes can do decides there."""
    (plan,) = compile_plan(ElasticJob.model_validate({"name": "digits", "entrypoint": "train.py"}))

    assert strategies(plan.scheduling) == tuple(Strategy)


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        pytest.param([], {}, "exit", id="nothing"),
        pytest.param([HA], {}, "dump,exit", id="high availability brings the last checkpoint"),
        pytest.param([HA, REPAIR], {}, "retry,dump,exit", id="repair"),
        pytest.param([HA, REBOOT], {}, "recover,dump,exit", id="reboot"),
        pytest.param(
            [HA, REBOOT], {"ENABLE_RESTART_FAULT_PROCESS": "on"}, "recover-in-place,recover,dump,exit", id="reboot in place"
        ),
        pytest.param([ELASTIC], {}, "elastic-training,exit", id="elastic"),
        pytest.param([HA, REPAIR, REBOOT, ELASTIC], {}, "retry,recover,elastic-training,dump,exit", id="all"),
        pytest.param([], {"HIGH_AVAILABILITY": "retry"}, "retry,dump,exit", id="the variable implies the flags"),
        pytest.param([], {"HIGH_AVAILABILITY": "recover,elastic-training"}, "recover,elastic-training,dump,exit", id="several"),
        pytest.param([REBOOT], {"HIGH_AVAILABILITY": "dump"}, "recover,dump,exit", id="a flag beside the variable"),
    ],
)
def test_flags_of_the_script_ask_for_strategies(args: list[str], env: dict[str, str], expected: str) -> None:
    """Where no recover-strategy does; they are passed on unchanged, and a command for a shell has them, too."""
    plan = plan_of(args=args, env=env)

    assert (tried(plan), plan.args) == (expected, tuple(args))
    assert tried(plan_of(entrypoint=["bash", "-c", f"python pretrain_gpt.py {' '.join(args)}"], env=env)) == expected
    assert plan.scheduling is not None
    assert (plan.scheduling.process_recover == "on") == (expected != "exit")


def test_a_strategy_wins_over_flags() -> None:
    """It says what may be tried."""
    assert tried(plan_of(strategy="dump", args=[HA, REBOOT])) == "dump,exit"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"env": {"MS_ENABLE_TFT": "{ARF:1}"}}, "recover,exit", id="E16 ARF"),
        pytest.param({"env": {"MS_ENABLE_TFT": "'{ UCE:1, HCCE:1}'"}}, "retry,exit", id="E17 UCE and HCCE, as it is printed"),
        pytest.param(
            {"env": {"MS_ENABLE_TFT": "{ARF:1}", "ENABLE_RESTART_FAULT_PROCESS": "on"}},
            "recover-in-place,recover,exit",
            id="E18",
        ),
        pytest.param({"env": {"MS_ENABLE_TFT": "{TTP:1}"}}, "dump,exit", id="E19 TTP"),
        pytest.param({"env": {"MS_ENABLE_TFT": "{RSC:1}"}}, "exit", id="E21 RSC is the label's to say"),
        pytest.param({"setup_commands": ["export MS_ENABLE_TFT='{TTP:1,ARF:1}'"]}, "recover,dump,exit", id="a command line"),
    ],
)
def test_what_a_script_of_mindspore_is_told_asks_for_strategies(fields: dict[str, Any], expected: str) -> None:
    """As flags do; it reaches the workers as it is written, and a recover-strategy says more than it."""
    plan = plan_of({"framework": "mindspore"}, **fields)
    assert tried(plan) == expected
    told = fields.get("env", {}).get("MS_ENABLE_TFT")
    assert told is None or plan.env["MS_ENABLE_TFT"] == told
    assert tried(plan_of({"framework": "mindspore"}, "dump", **fields)) == "dump,exit"


def test_what_needs_a_graceful_deletion_is_not_derived() -> None:
    """A script with such flags runs without as it does in MindCluster."""
    assert tried(plan_of({"fault-scheduling": "off"}, args=[HA, REPAIR, REBOOT, ELASTIC])) == "elastic-training,dump,exit"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"args": [REPAIR]},
            f"args: '{REPAIR}' is not allowed; expected {HA} as well, or HIGH_AVAILABILITY in env",
            id="repair alone",
        ),
        pytest.param(
            {"args": [REBOOT]},
            f"args: '{REBOOT}' is not allowed; expected {HA} as well, or HIGH_AVAILABILITY in env",
            id="reboot alone",
        ),
        pytest.param(
            {"env": {"PROCESS_RECOVER": "yes"}},
            "env.PROCESS_RECOVER: 'yes' is not allowed; expected on or off",
            id="a switch",
        ),
        pytest.param(
            {"env": {"HIGH_AVAILABILITY": "retry,restart"}},
            "env.HIGH_AVAILABILITY: 'restart' is not allowed; expected some of dump, elastic-training, recover, "
            "retry, separated by commas",
            id="an item",
        ),
        pytest.param(
            {"env": {"MS_ENABLE_TFT": "{ARF:1,XYZ:1}"}},
            "env.MS_ENABLE_TFT: 'XYZ:1' is not allowed; expected some of ARF:1, HCCE:1, RSC:1, TTP:1, UCE:1, in "
            "braces and separated by commas",
            id="an item of MindSpore",
        ),
        pytest.param(
            {"mindcluster": {"hot_reset": 1}},
            "mindcluster.hot_reset: 1 is not allowed; expected 2, "
            "0 or -1 (MindCluster no longer supports 1, graceful fault tolerance)",
            id="hotReset 1",
        ),
        pytest.param(
            {"mindcluster": {"hot_reset": 3}},
            "mindcluster.hot_reset: 3 is not allowed; expected one of -1, 0, 2",
            id="3",
        ),
        pytest.param(
            {"labels": {"framework": "tensorflow"}},
            "labels.framework: 'tensorflow' is not allowed; expected one of pytorch, mindspore",
            id="E26: another framework",
        ),
    ],
)
def test_what_cannot_be_is_told_at_submission(fields: dict[str, Any], text: str) -> None:
    """The field, the value, and what is allowed."""
    with pytest.raises(JobError) as caught:
        job_of(**fields)

    assert str(caught.value) == text


@pytest.mark.parametrize("value", [-1, 0, 2])
def test_hot_reset_may_be_offline_or_none(value: int) -> None:
    """The device plugin does it."""
    assert job_of(mindcluster={"hot_reset": value}).to_document()["mindcluster"]["hot_reset"] == value


def test_defaults_of_the_profile() -> None:
    """MindCluster's own."""
    plan = plan_of()

    assert (plan.budgets.max_restarts, plan.rendezvous.report_interval) == (32767, 5.0)


def test_a_label_framework_of_another_job_means_nothing() -> None:
    """Many have one: it chooses no profile, whatever it says."""
    job = ElasticJob.model_validate({"name": "digits", "entrypoint": "train.py", "labels": {"framework": "jax"}})

    assert (job.profile, job.labels) == (Profile.LADDER, {"framework": "jax"})
