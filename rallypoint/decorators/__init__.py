"""The TaskFlow decorator for training functions."""

from __future__ import annotations

from rallypoint.decorators.elastic_training import elastic_training_task

__all__ = ["elastic_training_task"]
