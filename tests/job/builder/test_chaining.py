"""What editors and type checkers know of a chain of calls: each line is checked by mypy, and runs."""

from __future__ import annotations

from typing_extensions import assert_type

from rallypoint.job.builder import DLJobBuilder, Job, JobBuilder, RLJobBuilder, RoleBuilder, TrainBuilder
from rallypoint.job.builder.rl import RLRoleBuilder, RLTrainBuilder

JOB_METHODS = [name for name in vars(JobBuilder) if not name.startswith("_")]


class OwnBuilder(JobBuilder):
    """A builder with a method of its own."""

    def twice(self) -> int:
        """Return a number."""
        return 2


def test_chains_have_types() -> None:
    """With and without end(), and of a subclass."""
    builder = JobBuilder().node_num(2).device_per_node(8).device_type("GPU").config({}).global_env({"A": "1"})
    assert_type(builder, JobBuilder)
    assert_type(builder.train("m.a"), TrainBuilder[JobBuilder])
    assert_type(builder.role("b").run("m.b"), RoleBuilder[JobBuilder])
    without_end = builder.role("c").run("m.c").total(2).resource(cpu=1).envs({"B": "2"}).role("d").train("m.d").nnodes(1)
    assert_type(without_end, TrainBuilder[JobBuilder])
    assert_type(without_end.nproc_per_node(1).not_driver().end().workload("e", "m.e"), RoleBuilder[JobBuilder])
    assert_type(without_end.build(), Job)
    assert_type(OwnBuilder().train("m.a").end().twice(), int)
    assert_type(OwnBuilder().train("m.a").skip_node_check().twice(), int)
    assert_type(DLJobBuilder().by_dlrover_run_cmd("torchrun x.py"), JobBuilder)


def test_chains_of_reinforcement_learning_have_types() -> None:
    """Each role offers the next one."""
    trainer = RLJobBuilder().trainer("m.t")
    assert_type(trainer, RLRoleBuilder)
    assert_type(trainer.actor("m.a").nnodes(1), RLTrainBuilder)
    assert_type(trainer.rollout("m.r").with_collocation("actor", "rollout"), RLJobBuilder)
    assert_type(trainer.build(), Job)


def test_a_role_has_every_method_of_the_job() -> None:
    """As a method that is written out, so that editors complete it."""
    assert [name for name in JOB_METHODS if name not in vars(RoleBuilder)] == []
