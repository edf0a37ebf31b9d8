"""What can go wrong in the helpers, named by what the catcher should do."""

from __future__ import annotations

from rallypoint.checkpoint.errors import CheckpointError, DamagedCheckpointError, NoRoomError

__all__ = ["CheckpointError", "DamagedCheckpointError", "NoRoomError"]
