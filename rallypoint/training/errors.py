"""What can go wrong in the helpers, named by what the catcher should do."""

from __future__ import annotations

from rallypoint.wire.errors import RallypointError

__all__ = ["CheckpointError", "DamagedCheckpointError"]


class CheckpointError(RallypointError):
    """A checkpoint could not be written or read; the complete ones are as they were."""


class DamagedCheckpointError(CheckpointError):
    """One checkpoint is torn or damaged; an earlier one may be good."""
