"""What can go wrong with what is kept, named by what the catcher should do."""

from __future__ import annotations

from rallypoint.wire.errors import RallypointError

__all__ = ["CheckpointError", "DamagedCheckpointError", "NoRoomError"]


class CheckpointError(RallypointError):
    """A checkpoint could not be written or read; the complete ones are as they were."""


class DamagedCheckpointError(CheckpointError):
    """One checkpoint is torn or damaged; an earlier one may be good."""


class NoRoomError(CheckpointError):
    """There is no room for it; the message says how many bytes are missing, and where."""
