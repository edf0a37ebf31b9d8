"""`@task.elastic_training`: run a Python function on every rank of an elastic training job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from rallypoint.operators.training import ElasticTrainingOperator
from rallypoint.provider.errors import OptionError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.provider.function import FunctionJob

__all__ = ["elastic_training_task"]

#: What the function takes the place of.
_TAKEN = ("entrypoint", "args")


class _ElasticTrainingDecoratedOperator(DecoratedOperator, ElasticTrainingOperator):
    """Run a function on every rank of an elastic training job, and return the result of rank 0.

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
        for field in _TAKEN:
            if kwargs.get(field) is not None:
                raise OptionError(
                    field, kwargs[field], "no value with @task.elastic_training, because the function is the entrypoint"
                )
        super().__init__(**kwargs)

    def build_work(self, context: Context) -> FunctionJob:
        """Return the job with the function that its workers call; raises `JobError`."""
        from rallypoint.provider.function import FunctionJob, pack  # noqa: PLC0415  brings pydantic, which a DAG file need not pay
        from rallypoint.wire.function import FUNCTION_MODULE, function_args  # noqa: PLC0415

        sent = pack(self.python_callable, self.op_args, self.op_kwargs)
        self.entrypoint, self.args = f"-m {FUNCTION_MODULE}", function_args(sent)
        return FunctionJob(job=self.build_job(context), function=sent)

    def returned(self, summary: dict[str, Any]) -> Any:
        """Return what the function returned on rank 0."""
        return summary["result"]


def elastic_training_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,  # noqa: FBT001  Airflow calls every decorator so
    **kwargs: Any,
) -> TaskDecorator:
    """Run a function on every rank of an elastic job: `@task.elastic_training(nodes=2)`.

    :param python_callable: the function to decorate.
    :param multiple_outputs: push each key of a dictionary returned by rank 0 as a separate XCom.

    Takes all arguments of `ElasticTrainingOperator` except `entrypoint` and `args`.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_ElasticTrainingDecoratedOperator,
        **kwargs,
    )
