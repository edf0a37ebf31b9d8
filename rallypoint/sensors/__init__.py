"""Tasks that wait for a training job to come somewhere."""

from __future__ import annotations

from rallypoint.sensors.job import JobPhaseSensor, RendezvousSensor

__all__ = ["JobPhaseSensor", "RendezvousSensor"]
