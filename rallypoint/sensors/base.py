"""`JobSensor`: wait for a condition of a job, in a worker or in the triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from rallypoint.provider.errors import ConditionImpossible, OptionError, SupervisionFailed, one_of, positive
from rallypoint.provider.place import PLACE_FIELDS, place_of
from rallypoint.provider.placed import PlacedOperator
from rallypoint.provider.sensing.conditions import Condition

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.backends.contract import Backend
    from rallypoint.provider.sensing.finding import Finding
    from rallypoint.provider.sensing.observation import Memory
    from rallypoint.provider.sensing.whose import Asking

__all__ = ["ENDS", "JobSensor"]

#: Values of `on_job_end`.
ENDS = ("fail", "skip", "succeed")

#: XCom key under which a sensor in mode `reschedule` stores its observations between two pokes.
_MEMORY = "rallypoint_sensor"

_TRIGGER = "rallypoint.provider.sensing.watching.JobConditionTrigger"


class JobSensor(PlacedOperator, BaseSensorOperator):
    """Wait for a condition of one job. The sensor changes nothing, and also waits for a job that does not exist yet.

    :param job_name: name of the job. (templated)
    :param job_task_id: instead of `job_name`: the task of the same DAG run that owns the job. The sensor reads the XCom
        `job_name` of that task as soon as it exists, so both tasks can run at the same time. (templated)
    :param job_map_index: map index of the task `job_task_id`, if this task is mapped. Default: the map index of the sensor.
    :param role: in a job with several roles: the name of the role that the sensor observes. `JobStateSensor` accepts any role,
        and without `role` observes the whole job; all other sensors require an elastic role. (templated)
    :param on_job_end: result if the job ends or is deleted first: `fail`, `skip` or `succeed`.
    :param conn_id, backend, home, namespace, kubeconfig, cluster_context: the place of the job, as in the operators.
    :param deferrable: wait in the triggerer, where all sensors of a job share one watch; False polls in a worker.
    :param start_from_trigger: with `deferrable`: start in the triggerer and use a worker only at the end. Not possible for
        mapped tasks, or with arguments that are outputs of other tasks.
    :param poke_interval: seconds between two checks; in the triggerer, seconds without an event until the next check.
    """

    template_fields: Sequence[str] = ("job_name", "job_task_id", "role", *PlacedOperator.template_fields)
    ui_color = "#eef3e6"

    def __init__(
        self,
        *,
        condition: Condition,
        job_name: str | None = None,
        job_task_id: str | None = None,
        job_map_index: int | None = None,
        role: str | None = None,
        on_job_end: str = "fail",
        deferrable: bool = True,
        start_from_trigger: bool = False,
        poke_interval: timedelta | float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.job_name = job_name
        self.job_task_id = job_task_id
        self.job_map_index = job_map_index
        self.role = role
        self.on_job_end = on_job_end
        self.deferrable = deferrable
        self.start_from_trigger = start_from_trigger
        self._condition = condition
        self._memory: Memory | None = None
        self._check_arguments()
        if start_from_trigger:
            self.start_trigger_args = self._start_args()

    def _check_arguments(self) -> None:
        """Raise `OptionError` for errors that do not depend on the templates."""
        _check_job(self.job_name, self.job_task_id, self.job_map_index)
        one_of("on_job_end", self.on_job_end, ENDS)
        positive("poke_interval", self.poke_interval)
        if self.start_from_trigger and not self.deferrable:
            raise OptionError("start_from_trigger", self.start_from_trigger, "False, because deferrable is not set")

    def open_backend(self) -> Backend:
        """Return the backend of the job."""
        from rallypoint.provider.backend_access import open_backend  # noqa: PLC0415  a DAG file only names the sensor

        return open_backend(place_of(self))

    def ask(self, context: Context) -> Asking:
        """Return the source of the state of the task that owns the job."""
        from rallypoint.provider.sensing.whose import FromAirflow  # noqa: PLC0415  as above

        return FromAirflow(ti=context["ti"])

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once; end the task if the condition is no longer possible."""
        memory = self._recalled(context)
        finding, self._memory = asyncio.run(self._look(context, memory))
        self._keep(context)
        self.log.info("%s", finding.text)
        return PokeReturnValue(is_done=self._is_done(finding), xcom_value=finding.values)

    def execute(self, context: Context) -> Any:
        """Poke, or defer if the condition is not true yet and `deferrable` is set."""
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if first.is_done:
            return first.xcom_value
        from rallypoint.provider.sensing.watching import JobConditionTrigger  # noqa: PLC0415  as above

        ti = context["ti"]
        asked_by = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
        trigger = JobConditionTrigger(**self._trigger_arguments(), asked_by=asked_by)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return None

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Finish the task with the result of the trigger."""
        from rallypoint.provider.sensing.finding import Finding  # noqa: PLC0415  as above

        finding = Finding.from_event(event)
        self.log.info("%s", finding.text)
        self._is_done(finding)
        return finding.values

    def conclude(self, finding: Finding) -> None:
        """Called when the condition is true, before the task succeeds; may raise."""

    async def _look(self, context: Context, memory: Memory) -> tuple[Finding, Memory]:
        from rallypoint.provider.sensing.finding import Finding  # noqa: PLC0415  as above
        from rallypoint.provider.sensing.streams import look  # noqa: PLC0415
        from rallypoint.provider.sensing.whose import Whose, find_name  # noqa: PLC0415

        whose = Whose(name=self.job_name or "", task_id=self.job_task_id or "", index=self.job_map_index)
        own = context["ti"].map_index
        name = await find_name(whose, -1 if own is None else own, self.ask(context))
        if isinstance(name, Finding):
            return name, memory
        role, poll = self.role or "", self.poke_interval
        finding, memory = await look(self.open_backend, name, self._condition, memory, now=time.time(), poll=poll, role=role)
        # In the form of a trigger event: cleaned for XCom.
        return Finding.from_event(finding.to_event()), memory

    def _is_done(self, finding: Finding) -> bool:
        if finding.found == "error":
            raise SupervisionFailed(finding.text)
        if finding.found == "impossible":
            self._end_early(finding.text)
            return True
        if finding.found == "met":
            self.conclude(finding)
        return finding.found == "met"

    def _end_early(self, text: str) -> None:
        if self.on_job_end == "succeed":
            return
        # `soft_fail` handles only Airflow's own timeouts.
        if self.on_job_end == "skip" or self.soft_fail or self.never_fail:
            raise AirflowSkipException(text)
        raise ConditionImpossible(text)

    def _trigger_arguments(self) -> dict[str, Any]:
        fields = ("job_name", "job_task_id", "job_map_index", "role", "backend", *PLACE_FIELDS)
        given = {field: getattr(self, field) for field in fields}
        return {"condition": self._condition.words(), "poll_interval": self.poke_interval, **given}

    def _start_args(self) -> Any:
        from airflow.triggers.base import StartTriggerArgs  # noqa: PLC0415  only where it is asked for

        return StartTriggerArgs(
            trigger_cls=_TRIGGER,
            trigger_kwargs=self._trigger_arguments(),
            next_method="execute_complete",
            next_kwargs=None,
            timeout=timedelta(seconds=self.timeout),
        )

    # --- What is kept between two pokes: here, and where each poke has a process of its own, in the task's state store.

    def _recalled(self, context: Context) -> Memory:
        from rallypoint.provider.sensing.observation import Memory  # noqa: PLC0415  as above

        store: Any = context.get("task_state_store") if self.reschedule else None
        kept = None if store is None else store.get(_MEMORY)
        if not isinstance(kept, dict) or kept.get("try") != str(context["ti"].id):
            return self._memory or Memory()
        return Memory.from_json(kept["memory"])

    def _keep(self, context: Context) -> None:
        store: Any = context.get("task_state_store") if self.reschedule else None
        if store is not None and self._memory is not None:
            store.set(_MEMORY, {"try": str(context["ti"].id), "memory": self._memory.to_json()})


def _check_job(name: object, task: object, index: object) -> None:
    if (name is None) is (task is None):
        raise OptionError("job_name", name, "a value for exactly one of the arguments job_name and job_task_id")
    if index is not None and task is None:
        raise OptionError("job_map_index", index, "no value, because the field job_task_id is not set")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        raise OptionError("job_map_index", index, "a whole number of 0 or more")
