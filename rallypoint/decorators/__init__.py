"""What `@task.` offers: a function that is the training."""

from __future__ import annotations

from rallypoint.decorators.elastic_training import elastic_training_task

__all__ = ["elastic_training_task"]
