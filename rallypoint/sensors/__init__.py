"""Airflow sensors for training jobs."""

from __future__ import annotations

from rallypoint.sensors.hang import HangSensor
from rallypoint.sensors.progress import ProgressSensor
from rallypoint.sensors.rendezvous import RendezvousSensor
from rallypoint.sensors.state import JobStateSensor

__all__ = ["HangSensor", "JobStateSensor", "ProgressSensor", "RendezvousSensor"]
