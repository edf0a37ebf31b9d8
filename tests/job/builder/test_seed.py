"""Every example of DLRover's page about its builder runs as it is printed."""

from __future__ import annotations

import omegaconf

from rallypoint.job import ElasticJob, compile_plan, load_job
from rallypoint.job.builder import DLJobBuilder, Job, JobBuilder


def plan_of(document):
    (plan,) = compile_plan(load_job(document, based=False))
    return plan


def test_single_role():
    """The first example, whose `args.__dict__` of a dict is `args`; the plan is that of the document written by hand."""
    job = (
        DLJobBuilder()
        .config({"data_dir": "data/nanogpt/", "batch_size": 16})
        .node_num(2)
        .device_per_node(2)
        .device_type("CPU")
        .train("examples.unified.elastic.nanogpt.train.run")
        .nnodes(2)
        .nproc_per_node(2)
        .end()
        .build()
    )
    by_hand = {
        "name": "nanogpt",
        "config": {"data_dir": "data/nanogpt/", "batch_size": 16},
        "entrypoint": "examples.unified.elastic.nanogpt.train:run",
        "nodes": 2,
        "nproc_per_node": 2,
        "resources": {"cpu": 2},
        "cluster": {"nodes": 2, "devices_per_node": 2, "device_type": "cpu"},
    }

    assert plan_of(job.to_document("nanogpt")) == plan_of(by_hand)
    assert plan_of(by_hand).args == ("--process-group", "examples.unified.elastic.nanogpt.train:run")


def test_dict_config():
    """A DictConfig is resolved, and its numbers keep their kind."""
    args = {"lr": 1e-5, "steps": 10, "half": "${steps}", "name": "1.10"}

    job = JobBuilder().config(omegaconf.DictConfig(args)).train("train.run").build()

    assert ElasticJob.model_validate(job.to_document()).config == {"lr": 1e-5, "steps": 10, "half": 10, "name": "1.10"}


def test_command_line():
    """The second example."""
    cmd = "dlrover-run --nnodes=1 --nproc_per_node=1 /src/dlrover/python/unified/tests/integration_test/dummy_run.py --test 0"

    document = DLJobBuilder().by_dlrover_run_cmd(cmd).build().to_document("test_cmd_api", master_cpu=1, master_memory=128)

    assert document["name"] == "test-cmd-api"
    assert document["entrypoint"].endswith("/dummy_run.py")
    assert document["args"] == ["--test", "0"]
    assert (document["nodes"], document["nproc_per_node"]) == (1, 1)
    assert document["master"] == {"cpu": "1", "memory": "128Mi"}


def test_outline_of_several_roles():
    """The third example, with its `role` after `run`, and without end()."""
    job = (
        DLJobBuilder()
        .node_num(2)
        .device_per_node(8)
        .device_type("GPU")
        .config({})
        .global_env({"DLROVER_LOG_LEVEL": "INFO"})
        .role("learner")
        .run("pkg.learner.run")
        .resource(gpu=1)
        .total(2)
        .role("evaluator")
        .run("pkg.evaluator.run")
        .workload("store", "pkg.store.run")
        .build()
    )

    assert isinstance(job, Job)
    assert list(job.to_document()["roles"]) == ["learner", "evaluator", "store"]
    assert all(role["env"] == {"DLROVER_LOG_LEVEL": "INFO"} for role in job.to_document()["roles"].values())


def test_reinforcement_learning():
    """The fourth example, under a name with an underscore."""
    job = (
        DLJobBuilder()
        .config({"lr": 0.1})
        .role("trainer")
        .train("module.trainer.run")
        .total(2)
        .resource(gpu=1)
        .end()
        .role("rollout")
        .run("module.rollout.run")
        .total(4)
        .resource(cpu=4)
        .end()
        .workload("reward", "module.reward.run")
        .total(1)
        .resource(cpu=2)
        .end()
        .build()
    )

    read = load_job(job.to_document("rl_job"))
    trainer, rollout, reward = read.roles
    assert read.name == "rl-job"
    assert (trainer.launch, trainer.nodes.min, trainer.resources.gpus) == ("elastic", 2, 1)
    assert (rollout.launch, rollout.total, rollout.instance_resources.cpu) == ("simple", 4, "4")
    assert (reward.launch, reward.total, reward.instance_resources.gpus) == ("simple", 1, None)


def test_the_isolation_example():
    """The last example: two arguments of submit, or two variables."""
    job = JobBuilder().train("train.run").build()

    document = job.to_document(
        master_isolation_schedule_resource="MASTER_RESOURCE", worker_isolation_schedule_resource="WORKER_RESOURCE"
    )

    assert document["master"] == {"isolation": "MASTER_RESOURCE"}
    assert document["worker_isolation"] == "WORKER_RESOURCE"
