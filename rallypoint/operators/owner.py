"""`JobOwner`: base class of operators whose task owns one training job.

Life of a task
==============

`execute` computes the job's name from the key of the task instance, so that all tries use the same job. It submits the job, or
adopts the job of an earlier try: a running job continues, the result of a finished job is used, and a job whose result was
already used (the task was cleared, or failed and is retried) starts its next attempt. Then the job is supervised by the worker
or by the triggerer.

SIGTERM calls `on_kill` inside the running event loop. A signal handler must not wait, so it only sets an event, and a coroutine
then requests the task's state from Airflow. The job is deleted only if the task has ended (failed, success, skipped, removed).
In every other state (`running` while a worker is redeployed, `restarting` or `queued` after a clear) the job continues and the
next try adopts it. The job also continues if Airflow does not respond: a lost response must not cost a day of training.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout

from rallypoint.backends.site import KUBERNETES, LOCAL, RAY
from rallypoint.operators.reporting import TellsLineage, advice, count_end, growing, mark_outlets, note_job
from rallypoint.provider import backend_access
from rallypoint.provider.claim import Claim, End, Ending
from rallypoint.provider.delivery import ending_event
from rallypoint.provider.errors import (
    InvalidJob,
    OptionError,
    SupervisionFailed,
    TrainingDeleted,
    TrainingFailed,
    TrainingTimedOut,
    one_of,
    positive,
)
from rallypoint.provider.links import ElasticTrainingLink
from rallypoint.provider.place import place_of
from rallypoint.provider.placed import PlacedOperator
from rallypoint.provider.ranks import GetLogs, check_get_logs
from rallypoint.provider.redaction import redacted
from rallypoint.provider.task_state import Bell, task_state
from rallypoint.wire.errors import RallypointError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.backends.contract import Backend
    from rallypoint.provider.conduct import Post
    from rallypoint.provider.publishing import Publication
    from rallypoint.provider.submission import Work

__all__ = ["JobOwner"]

T = TypeVar("T")

_FAILURES = {
    End.DELETED: TrainingDeleted,
    End.TIMEOUT: TrainingTimedOut,
    End.ERROR: SupervisionFailed,
}

#: Default seconds between two checks of the job; backends with watches report each change by themselves.
_POLLS = {LOCAL: 2.0, KUBERNETES: 15.0, RAY: 15.0}

#: The trigger itself reports a timeout of the task; Airflow's own timeout applies only if the triggerer has exited.
_SWEEP_PAD = 60.0


class JobOwner(TellsLineage, PlacedOperator):
    """Run a training job to its end; if it fails, the exception contains the cause. `build_work` returns the job.

    Also takes the arguments of `PlacedOperator`.

    :param supervisor_image: kubernetes: image of the supervisor pod that takes over the job when the task stops. Default: the
        image of the connection; without one, a process on the worker's machine takes over, and it ends with the worker's pod.
        (templated)
    :param deferrable: wait in the triggerer, which frees the worker slot.
    :param poll_interval: maximum seconds between two checks of the job. Default: 2, or 15 with backends that send events, such
        as `kubernetes`.
    :param orphan_policy: action of an orphaned job after its lease (`fault_tolerance.lease`, 1 h): `stop` saves and ends the
        job, `continue` lets it run. A value in the job document takes precedence.
    :param wait_for_completion: False ends the task after submission; a separate supervisor manages the job.
    :param get_logs: write the output of rank 0 to the task log, with the rank in each line; `"all"` for all ranks, or a list of
        ranks. If the job fails, the last lines of the rank that failed first are always included.
    :param durable: True: a retry adopts the running job of an earlier try. False: a retry stops it and starts a new attempt.
        Clearing the task always starts a new attempt.
    :param on_finish_action: record and logs of a finished job: `keep_job`, `delete_job` or `delete_succeeded_job`.
    :param on_kill_action: the job when the task is stopped or reaches its `execution_timeout`: `delete_job` or `keep_job`.

    Returns the summary of the job (`rallypoint.report.summary.summarize`) and pushes the XComs `job_name` and those of
    `rallypoint.report.summary.XCOM_KEYS`. Events of its `outlets` contain the checkpoint and its metrics in
    `extra["rallypoint"]`.
    """

    template_fields: Sequence[str] = (*PlacedOperator.template_fields, "supervisor_image")
    operator_extra_links = (ElasticTrainingLink(),)
    # Empty on purpose: Airflow would load every string of every field that ends so, `args=["--config", "x.yaml"]` among them.
    template_ext: Sequence[str] = ()

    def __init__(
        self,
        *,
        supervisor_image: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | None = None,
        orphan_policy: str = "stop",
        wait_for_completion: bool = True,
        get_logs: GetLogs = True,
        durable: bool = True,
        on_finish_action: str = "keep_job",
        on_kill_action: str = "delete_job",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        one_of("on_finish_action", on_finish_action, ("keep_job", "delete_job", "delete_succeeded_job"))
        one_of("on_kill_action", on_kill_action, ("delete_job", "keep_job"))
        one_of("orphan_policy", orphan_policy, ("stop", "continue"))
        check_get_logs(get_logs)
        if supervisor_image is not None and self.conn_id is None:
            _check_supervisor_image(supervisor_image, self.backend or LOCAL)
        if poll_interval is not None:
            positive("poll_interval", poll_interval)
        self.supervisor_image = supervisor_image
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.orphan_policy = orphan_policy
        self.wait_for_completion = wait_for_completion
        self.get_logs = get_logs
        self.durable = durable
        self.on_finish_action = on_finish_action
        self.on_kill_action = on_kill_action
        self._bell = Bell()

    def open_backend(self) -> Backend:
        """Return the backend that the job runs on."""
        return backend_access.open_backend(place_of(self))

    def spawn_supervisor(self, claim: Claim) -> None:
        """Start a supervisor that supervises the job without this task."""
        backend_access.spawn_supervisor(claim)

    async def ask_state(self, context: Context) -> str | None:
        """Return the present state of this task in Airflow."""
        return await task_state(context["ti"])

    def execute(self, context: Context) -> Any:
        """Submit or adopt the job, and wait for its end here or, when deferrable, in the triggerer."""
        # Imported here, because these modules import pydantic and the backends, which would slow down the parsing of DAG files.
        from rallypoint.provider import submission  # noqa: PLC0415

        work = self._valid_work(context)
        claim = self._claim(context, work.name)
        note_job(context, claim, xcom=self.do_xcom_push, log=self.log)
        if not self.wait_for_completion:
            return self._at(claim, lambda post: submission.submit_and_leave(post, work), context=context)
        if not self.deferrable:
            return self._finish(context, claim, self._wait_here(context, claim, work))
        ending = self._at(claim, lambda post: submission.submit(post, work), context=context)
        if ending is None:
            self._defer(claim)
        return self._finish(context, claim, ending)

    def execute_complete(self, context: Context, event: Any = None) -> Any:
        """Finish the task with the result of the trigger, which is in `event`."""
        ending = Ending.from_event(event)
        return self._finish(context, self._claim(context, ending.name), ending)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume as Airflow does; if the trigger ended without an event, hand the job over here."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            claim = self._claim(context, self._valid_work(context).name)
            text = f"job {claim.name}: execution_timeout expired while no triggerer was running; {self._time_out(claim)}"
            raise TrainingTimedOut(text) from error
        except TaskDeferralError as error:
            claim = self._claim(context, self._valid_work(context).name)
            self._give_up(context, claim)
            raise SupervisionFailed(f"the trigger of job {claim.name} failed: {error}") from error

    def on_kill(self) -> None:
        """Handle SIGTERM or a timeout; see the docstring of the module."""
        self._bell.ring()

    @abc.abstractmethod
    def build_work(self, context: Context) -> Work:
        """Return the job to submit, with rendered templates; raises `JobError` or `SubmitError`."""

    def returned(self, summary: dict[str, Any]) -> Any:
        """Return the result of the task for a job that succeeded: its summary."""
        return summary

    def _valid_work(self, context: Context) -> Work:
        from rallypoint.backends.contract import SubmitError  # noqa: PLC0415  as in `execute`
        from rallypoint.job import JobError  # noqa: PLC0415
        from rallypoint.job.errors import redacting  # noqa: PLC0415

        try:
            with redacting(redacted):
                return self.build_work(context)
        except (JobError, SubmitError) as error:
            raise InvalidJob(redacted("", str(error))) from error

    def _claim(self, context: Context, name: str) -> Claim:
        located = self.locate()
        if self.supervisor_image:
            _check_supervisor_image(self.supervisor_image, located.site.kind)
        return Claim(
            **located.kept(place_of(self)).words(),
            supervisor_image=self.supervisor_image or located.defaults.supervisor_image,
            name=name,
            owner=str(context["ti"].id),
            poll_interval=float(self.poll_interval or _POLLS[located.site.kind]),
            get_logs=self.get_logs if isinstance(self.get_logs, (bool, str)) else list(self.get_logs),
            deadline=self._deadline(context),
            on_kill_action=self.on_kill_action,
            try_number=int(context["ti"].try_number),
            publish=bool(self.do_xcom_push),
        )

    def _deadline(self, context: Context) -> float | None:
        # Airflow enforces no execution_timeout while a task is deferred, so the trigger gets it as a point in time.
        if self.execution_timeout is None:
            return None
        return context["ti"].start_date.timestamp() + self.execution_timeout.total_seconds()

    def _wait_here(self, context: Context, claim: Claim, work: Work) -> Ending:
        from rallypoint.provider import submission  # noqa: PLC0415  as in `execute`

        ask = functools.partial(self.ask_state, context)
        try:
            do = functools.partial(submission.submit_and_wait, work=work, bell=self._bell, ask=ask)
            return self._at(claim, do, context=context, publication=_publication(context, claim))
        except AirflowTaskTimeout:
            # Usually the deadline of the claim expires first; this covers an event loop that was too busy.
            action = self._time_out(claim)
            self.log.warning("Job %s did not end within execution_timeout; %s", claim.name, action)
            raise

    def _defer(self, claim: Claim) -> NoReturn:
        from rallypoint.provider.trigger import ElasticTrainingTrigger  # noqa: PLC0415  as in `execute`

        timeout = None
        if claim.deadline is not None:
            pad = max(_SWEEP_PAD, 2 * claim.poll_interval)
            timeout = timedelta(seconds=max(0.0, claim.deadline - time.time()) + pad)
        self.defer(trigger=ElasticTrainingTrigger.of(claim), method_name="execute_complete", timeout=timeout)

    def _finish(self, context: Context, claim: Claim, ending: Ending) -> Any:
        from rallypoint.provider import submission  # noqa: PLC0415  as in `execute`
        from rallypoint.report.summary import xcoms  # noqa: PLC0415

        # In the form of a trigger event: cleaned for XCom, OpenLineage, asset events and the text of the exception.
        ending = Ending.from_event(ending_event(ending))
        if ending.end is End.TIMEOUT:
            # Airflow's own timeout may interrupt the next lines; then only this line reports the action.
            self.log.warning("%s", ending.text)
        if self.do_xcom_push:
            for key, value in xcoms(ending.summary).items():
                context["ti"].xcom_push(key=key, value=value)
            self._keep_page(context, claim)
        self.finished_with = ending.summary
        ending = self._judged(context, claim, ending)
        if ending.end in (End.SUCCEEDED, End.FAILED):
            advise = advice(self.retry_policy, ending.failure, context["ti"])
            do = functools.partial(submission.settle, ending=ending, on_finish_action=self.on_finish_action, advise=advise)
            self._at(claim, do)
        if ending.end is End.ERROR:
            self._give_up(context, claim, healthy=ending.local_failure)
        count_end(context["ti"], ending, log=self.log)
        if ending.end is End.FAILED:
            raise TrainingFailed(ending.text, ending.failure)
        if ending.end is not End.SUCCEEDED:
            raise _FAILURES[ending.end](ending.text)
        self.log.info("%s", ending.text)
        if self.outlets:
            mark_outlets(self.outlets, context["outlet_events"], ending.summary)
        if self.on_finish_action != "keep_job":
            # Airflow calls these after it has stored the success of the task; until then a retry must find the job.
            self.on_success_callback = [*self.on_success_callback, functools.partial(self._tidy, claim)]
        return self.returned(ending.summary)

    def _tidy(self, claim: Claim, _context: Context) -> None:
        from rallypoint.provider.submission import tidy  # noqa: PLC0415  as in `execute`

        self._at(claim, tidy)

    def _judged(self, context: Context, claim: Claim, ending: Ending) -> Ending:
        """Return the ending; if a retry policy would increase the memory, its failure states whether that is possible."""
        from rallypoint.provider.submission import no_growth  # noqa: PLC0415  as in `execute`

        policy, failure = growing(self.retry_policy, ending.failure), ending.failure
        if policy is None or failure is None:
            return ending
        work, factor, limit = self._valid_work(context), policy.memory_factor, policy.memory_limit
        why = self._at(claim, lambda post: no_growth(post, work, factor=factor, limit=limit))
        return dataclasses.replace(ending, failure=dataclasses.replace(failure, no_growth=why))

    def _keep_page(self, context: Context, claim: Claim) -> None:
        """Store the page of the tab for the time after the job's deletion. An error here does not fail the task."""
        from rallypoint.report.page.published import PAGE_KEY, published_page  # noqa: PLC0415  as in `execute`

        ti = context["ti"]
        tries = {claim.owner: ti.try_number}
        try:
            page = self._at(claim, lambda post: published_page(post.backend, claim.name, tries=tries, place=claim.backend))
        except Exception as error:  # noqa: BLE001  it is a hint, whatever a damaged record makes of it
            self.log.warning(
                'Cannot store the data for the tab "Elastic training" of job %s: %s; the tab cannot show the job after its '
                "deletion",
                claim.name,
                error,
            )
            return
        if page is not None:
            ti.xcom_push(key=PAGE_KEY, value=page)

    def _give_up(self, context: Context, claim: Claim, *, healthy: bool = False) -> None:
        """Hand the job over to the next try, because this task no longer watches it.

        Without a next try, a job that may be `healthy` gets its own supervisor, and any other job is cancelled.
        """
        ti = context["ti"]
        if ti.try_number <= (ti.max_tries or 0):
            self.log.warning("Job %s continues; the next try of this task supervises the job again", claim.name)
            return
        try:
            if healthy:
                self.spawn_supervisor(claim)
                self.log.warning(
                    "Job %s continues with a supervisor process of its own; run `rallypoint status` to see the job", claim.name
                )
            else:
                self._cancel(claim)
        except (OSError, RallypointError):
            # The caller raises the error of the task, which an error here must not replace.
            self.log.exception("Job %s may continue without a supervisor; to stop the job, run `rallypoint delete`", claim.name)

    def _cancel(self, claim: Claim) -> None:
        from rallypoint.provider.conduct import cancel  # noqa: PLC0415  as in `execute`

        if self._at(claim, cancel):
            self.log.warning("Deleting job %s", claim.name)

    def _time_out(self, claim: Claim) -> str:
        from rallypoint.provider.conduct import time_out  # noqa: PLC0415  as in `execute`

        return self._at(claim, time_out)

    def _at(
        self,
        claim: Claim,
        do: Callable[[Post], Awaitable[T]],
        *,
        context: Context | None = None,
        publication: Publication | None = None,
    ) -> T:
        return asyncio.run(self._work(claim, do, context, publication=publication))

    async def _work(
        self,
        claim: Claim,
        do: Callable[[Post], Awaitable[T]],
        context: Context | None,
        *,
        publication: Publication | None = None,
    ) -> T:
        from rallypoint.provider.conduct import Post  # noqa: PLC0415  as in `execute`
        from rallypoint.wire.plan import OrphanPolicy  # noqa: PLC0415

        backend = self.open_backend()
        try:
            post = Post(
                claim=claim,
                backend=backend,
                spawn=self.spawn_supervisor,
                log=self.log,
                orphan_policy=OrphanPolicy(self.orphan_policy),
                durable=self.durable,
                tries=-1 if context is None else _tries(context),
                claimant="" if context is None else _claimant(context),
                publication=publication,
            )
            return await do(post)
        finally:
            await backend.close()


def _tries(context: Context) -> int:
    """Return the number of tries that Airflow allows; a clear increases it, a retry does not."""
    return int(context["ti"].max_tries or 0)


def _publication(context: Context, claim: Claim) -> Publication | None:
    """Return the publisher of the job's page while the worker waits; a trigger has its own."""
    from rallypoint.provider.publishing import Publication, publish_interval  # noqa: PLC0415
    from rallypoint.report.page.published import PAGE_KEY  # noqa: PLC0415  as in `execute`

    if not claim.publish:
        return None
    push = functools.partial(context["ti"].xcom_push, PAGE_KEY)
    return Publication(write=push, interval=publish_interval(), owner=claim.owner, number=claim.try_number, place=claim.backend)


def _claimant(context: Context) -> str:
    """Return the description of the task instance, the same for all tries."""
    ti = context["ti"]
    index = "" if ti.map_index is None or ti.map_index < 0 else f" [{ti.map_index}]"
    return f"task {ti.task_id}{index} of DAG {ti.dag_id}, run {ti.run_id}"


def _check_supervisor_image(image: str, backend: str) -> None:
    if backend != KUBERNETES:
        raise OptionError("supervisor_image", image, f"no value, because the backend is {backend!r}")
