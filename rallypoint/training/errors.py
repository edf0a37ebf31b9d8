"""What can go wrong in the helpers, named by what the catcher should do."""

from __future__ import annotations

from rallypoint.checkpoint.errors import CheckpointError, DamagedCheckpointError, NoRoomError
from rallypoint.wire.errors import RallypointError

__all__ = ["CheckpointError", "DamagedCheckpointError", "NoRoomError", "StateLostError"]


class StateLostError(RallypointError):
    """No rank has the state any more, or a part of it; only a checkpoint does. The process must end, to be started anew."""
