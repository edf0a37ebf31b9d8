"""Sensors on a training job: its phase, and its rendezvous."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from rallypoint.provider.conditions import Condition, Finding, Found
from rallypoint.provider.doors import open_backend
from rallypoint.provider.errors import ConditionImpossible, at_least_one
from rallypoint.provider.place import PLACE_FIELDS, check_place, site_of, site_words

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.backends.contract import Backend

__all__ = ["JobPhaseSensor", "RendezvousSensor"]


class _JobSensor(BaseSensorOperator):
    """Waits for a condition of one job, by poking or in the triggerer. A job that does not exist yet is waited for."""

    template_fields: Sequence[str] = ("job_name", *PLACE_FIELDS)
    ui_color = "#eef3e6"

    def __init__(
        self,
        *,
        job_name: str,
        condition: Condition,
        backend: str = "local",
        home: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        cluster_context: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        check_place(backend, home=home, namespace=namespace, kubeconfig=kubeconfig, cluster_context=cluster_context)
        self.job_name = job_name
        self.backend = backend
        self.home = home
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self.cluster_context = cluster_context
        self.deferrable = deferrable
        self._condition = condition

    def open_backend(self) -> Backend:
        """Return the backend that holds the job."""
        return open_backend(site_of(self))

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once; raises `ConditionImpossible` when waiting has become useless."""
        finding = asyncio.run(self._look())
        self.log.info("%s", finding.text)
        return PokeReturnValue(is_done=self._done(finding), xcom_value=finding.values)

    def execute(self, context: Context) -> Any:
        """Poke, or wait in the triggerer when deferrable and not there yet."""
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        from rallypoint.provider.watching import JobConditionTrigger  # noqa: PLC0415  brings backends, and they pydantic

        trigger = JobConditionTrigger(
            **site_words(site_of(self)),
            name=self.job_name,
            condition=dataclasses.asdict(self._condition),
            poll_interval=float(self.poke_interval),
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return None

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Finish with what the trigger found."""
        finding = Finding.from_event(event)
        self._done(finding)
        self.log.info("%s", finding.text)
        return finding.values

    async def _look(self) -> Finding:
        from rallypoint.provider.watching import look  # noqa: PLC0415  as in `execute`

        backend = self.open_backend()
        try:
            return await look(backend, self.job_name, self._condition)
        finally:
            await backend.close()

    @staticmethod
    def _done(finding: Finding) -> bool:
        if finding.found is Found.IMPOSSIBLE:
            raise ConditionImpossible(finding.text)
        return finding.found is Found.MET


class JobPhaseSensor(_JobSensor):
    """Wait until a job is in a phase; fail as soon as it can no longer come there.

    :param job_name: the job's name, for example `{{ ti.xcom_pull(task_ids="train", key="job_name") }}`. (templated)
    :param phase: `Resuming`, `Running`, `Resetting`, `Succeeded`, `Failed`, or `Ended` for either end.
    :param backend: where the job is: `local` or `kubernetes`.
    :param home: local: folder of the backend's state; by default $RALLYPOINT_HOME or `~/.rallypoint`. (templated)
    :param namespace, kubeconfig, cluster_context: kubernetes: as those of the operators. (templated)
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks.
    """

    def __init__(self, *, phase: str = "Succeeded", **kwargs: Any) -> None:
        super().__init__(condition=Condition(phase=phase), **kwargs)
        self.phase = phase


class RendezvousSensor(_JobSensor):
    """Wait until a round of a job trains on at least `min_nodes` nodes; fail when the job is over.

    :param job_name: the job's name. (templated)
    :param min_nodes: nodes of the round, at least 1.
    :param backend: where the job is: `local` or `kubernetes`.
    :param home: local: folder of the backend's state; by default $RALLYPOINT_HOME or `~/.rallypoint`. (templated)
    :param namespace, kubeconfig, cluster_context: kubernetes: as those of the operators. (templated)
    :param deferrable: wait in the triggerer.
    :param poke_interval: seconds between two looks.
    """

    def __init__(self, *, min_nodes: int = 1, **kwargs: Any) -> None:
        at_least_one("min_nodes", min_nodes)
        super().__init__(condition=Condition(min_nodes=min_nodes), **kwargs)
        self.min_nodes = min_nodes
