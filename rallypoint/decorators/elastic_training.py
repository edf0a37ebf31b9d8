"""`@task.elastic_training`: run a Python function on every rank of an elastic training job, or the job that it builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from rallypoint.operators.arguments import document_of
from rallypoint.operators.training import ElasticTrainingOperator
from rallypoint.provider.errors import OptionError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.job import ElasticJob
    from rallypoint.provider.function import FunctionJob

__all__ = ["elastic_training_task"]

#: Arguments that the function replaces.
_TAKEN = ("entrypoint", "args")

#: Classes of `rallypoint.job.builder` that a function may be declared to return.
_BUILDERS = frozenset({"DLJobBuilder", "Job", "JobBuilder", "RLJobBuilder", "RoleBuilder", "TrainBuilder"})


class _ElasticTrainingDecoratedOperator(DecoratedOperator, ElasticTrainingOperator):
    """Run a function on every rank of an elastic training job, and return the result of rank 0.

    A function that is declared to return a builder (`-> JobBuilder`) or its `build()` (`-> Job`) is called in the task instead,
    which then runs that job. The task returns the result of the job; with several roles, that of each driver role by name.

    :param python_callable: the function. Its own module is pickled by value; the imports of the module must be installed for
        the workers. The arguments and the result of rank 0 are JSON of at most 48 KiB; results of other ranks are ignored.
    """

    custom_operator_name = "@task.elastic_training"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *ElasticTrainingOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **ElasticTrainingOperator.template_fields_renderers,
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(self, **kwargs: Any) -> None:
        self._builds = _is_builder(kwargs.get("python_callable"))
        for field in (*_TAKEN, "job") if self._builds else _TAKEN:
            if kwargs.get(field) is not None:
                if self._builds:
                    raise OptionError(field, kwargs[field], "no value, because the decorated function returns the job")
                raise OptionError(field, kwargs[field], "no value, because the decorated function is the entrypoint")
        super().__init__(**kwargs)

    def build_work(self, context: Context) -> ElasticJob | FunctionJob:
        """Return the job with the function that its workers call, or the job that it builds; raises `JobError`."""
        from rallypoint.provider.function import FunctionJob, pack  # noqa: PLC0415  brings pydantic, which a DAG file need not pay
        from rallypoint.wire.function import FUNCTION_MODULE, function_args  # noqa: PLC0415

        if self._builds:
            self.job = self._built()
            return self.build_job(context)
        sent = pack(self.python_callable, self.op_args, self.op_kwargs)
        self.entrypoint, self.args = f"-m {FUNCTION_MODULE}", function_args(sent)
        return FunctionJob(job=self.build_job(context), function=sent)

    def _built(self) -> Mapping[str, Any]:
        """Call the function; a retry must build the same job, or it cannot adopt the running job."""
        from rallypoint.job.errors import JobError, Problem, show  # noqa: PLC0415  as above

        made = document_of(self.python_callable(*self.op_args, **self.op_kwargs))
        if isinstance(made, Mapping):
            return made
        name = getattr(self.python_callable, "__qualname__", "")
        told = f"{name}() returned {show(made)}; expected a JobBuilder, its build(), or a job document"
        raise JobError([Problem(path="python_callable", text=told)])

    def returned(self, summary: dict[str, Any]) -> Any:
        """Return the result of the function on rank 0, or the result of the job that the function built."""
        return summary["result"]


def elastic_training_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,  # noqa: FBT001  Airflow calls every decorator so
    **kwargs: Any,
) -> TaskDecorator:
    """Run a function on every rank of an elastic job: `@task.elastic_training(nodes=2)`; or run the job that it builds.

    :param python_callable: the function to decorate. If it is declared to return a `JobBuilder` or a `Job`, the task calls it
        and runs the job.
    :param multiple_outputs: push each key of a dictionary returned by rank 0 as a separate XCom.

    Takes all arguments of `ElasticTrainingOperator` except `entrypoint` and `args`.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_ElasticTrainingDecoratedOperator,
        **kwargs,
    )


def _is_builder(function: Any) -> bool:
    """Return whether a function is declared to return a job or a builder; its class may be imported for type checkers only."""
    declared = getattr(function, "__annotations__", {}).get("return")
    try:
        declared = get_type_hints(function).get("return", declared)
    except Exception:  # noqa: BLE001  annotations are any expressions; this one is compared by its name, then
        name = str(declared).partition("[")[0].strip("'\"").rpartition(".")[2]
        return name in _BUILDERS and name != "Job"
    declared = getattr(declared, "__origin__", declared)
    modules = {one.__module__.rpartition(".")[0] for one in getattr(declared, "__mro__", ())}
    return getattr(declared, "__name__", "") in _BUILDERS or "rallypoint.job.builder" in modules
