"""`ElasticTrainingOperator`: run one elastic training job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rallypoint.operators.arguments import JobArguments
from rallypoint.operators.owner import JobOwner

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rallypoint.job import ElasticJob
    from rallypoint.provider.function import FunctionJob

__all__ = ["ElasticTrainingOperator"]


class ElasticTrainingOperator(JobArguments, JobOwner):
    """Run an elastic PyTorch training job to its end; if it fails, the exception contains the cause.

    Takes the arguments of `JobArguments` (the job) and `JobOwner` (backend and waiting). On `kubernetes`, the paths of the job
    (script, `workdir`, `checkpoint_dir`) are paths in its image.
    """

    template_fields: Sequence[str] = (*JobArguments.template_fields, *JobOwner.template_fields)
    ui_color = "#e8eef9"

    def build_work(self, context: Context) -> ElasticJob | FunctionJob:
        """Return the job that the arguments describe; raises `JobError`."""
        return self.build_job(context)
