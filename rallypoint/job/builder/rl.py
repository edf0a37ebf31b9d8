"""`RLJobBuilder`: the roles of reinforcement learning by name."""

from __future__ import annotations

from rallypoint.job.builder.builder import JobBuilder, RoleBuilder, TrainBuilder
from rallypoint.job.builder.calls import JobCalls

__all__ = ["RLJobBuilder", "RLRoleBuilder", "RLTrainBuilder"]

_ROLES = ("trainer", "actor", "rollout", "reference", "reward", "critic")


class RLJobBuilder(JobBuilder):
    """A job with the roles trainer, actor (required), rollout, reference, reward and critic.

    Actor and critic are elastic. Only the trainer is a driver.
    """

    def __init__(self) -> None:
        super().__init__(JobCalls(required=("actor",), allowed=_ROLES, never_collocated=("trainer",)))

    def trainer(self, entrypoint: str) -> RLRoleBuilder:
        """Define the role that drives the others; 4 cores and 8192 MiB by default."""
        trainer = self._simple("trainer", entrypoint)
        trainer.resource(cpu=4, memory=8192)
        return trainer

    def actor(self, entrypoint: str) -> RLTrainBuilder:
        """Define the elastic role of the policy."""
        return self._elastic("actor", entrypoint)

    def rollout(self, entrypoint: str) -> RLRoleBuilder:
        """Define the role that generates samples."""
        return self._simple("rollout", entrypoint).not_driver()

    def reference(self, entrypoint: str) -> RLRoleBuilder:
        """Define the role of the reference model."""
        return self._simple("reference", entrypoint).not_driver()

    def reward(self, entrypoint: str) -> RLRoleBuilder:
        """Define the role of the reward model."""
        return self._simple("reward", entrypoint).not_driver()

    def critic(self, entrypoint: str) -> RLTrainBuilder:
        """Define the elastic role of the value model."""
        return self._elastic("critic", entrypoint)

    def _simple(self, role: str, entrypoint: str) -> RLRoleBuilder:
        return self._add(RLRoleBuilder(self, role, entrypoint))

    def _elastic(self, role: str, entrypoint: str) -> RLTrainBuilder:
        return self._add(RLTrainBuilder(self, role, entrypoint)).not_driver()


class _Forwards(RoleBuilder[RLJobBuilder]):
    """The methods of `RLJobBuilder` on each of its roles."""

    def trainer(self, entrypoint: str) -> RLRoleBuilder:
        """Define the trainer."""
        return self._parent.trainer(entrypoint)

    def actor(self, entrypoint: str) -> RLTrainBuilder:
        """Define the actor."""
        return self._parent.actor(entrypoint)

    def rollout(self, entrypoint: str) -> RLRoleBuilder:
        """Define the rollout."""
        return self._parent.rollout(entrypoint)

    def reference(self, entrypoint: str) -> RLRoleBuilder:
        """Define the reference."""
        return self._parent.reference(entrypoint)

    def reward(self, entrypoint: str) -> RLRoleBuilder:
        """Define the reward."""
        return self._parent.reward(entrypoint)

    def critic(self, entrypoint: str) -> RLTrainBuilder:
        """Define the critic."""
        return self._parent.critic(entrypoint)


class RLRoleBuilder(_Forwards):
    """A role of independent instances in a job of reinforcement learning."""


class RLTrainBuilder(_Forwards, TrainBuilder[RLJobBuilder]):
    """An elastic role in a job of reinforcement learning."""
