"""Snapshots without a line of the script: of every step that it reports, of the state that it gave its checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import torch

from rallypoint.checkpoint.lineage import take_lineage
from rallypoint.checkpoint.manifest import Manifest
from rallypoint.training import reporting
from rallypoint.training.agreement import agree
from rallypoint.training.snapshots.choosing import newer_than_stored
from rallypoint.training.snapshots.crew import Crew
from rallypoint.training.snapshots.loading import load_from_memory
from rallypoint.training.snapshots.snapshots import Snapshots, agent_folder, shared_lineage
from rallypoint.wire import env

__all__ = ["StepSnapshots", "run_name"]

_log = logging.getLogger(__name__)


def run_name(uid: str) -> str:
    """Return what tells this run's checkpoints from those of another: the job's uid, where it has one."""
    folder = agent_folder()
    return uid if uid or folder is None else take_lineage(folder)


class StepSnapshots:
    """What `Checkpoints` has of snapshots; does nothing unless the job wants the last one saved."""

    def __init__(self) -> None:
        self._snapshots: Snapshots | None = None
        self._last: int | None = None

    def load(self, state: MutableMapping[str, Any], newest: Callable[[], Manifest | None]) -> int | None:
        """Take up a snapshot in memory that is not older than the newest checkpoint; a collective where there is an agent."""
        folder = _wanted()
        if folder is None:
            return None
        lineage, stored, crew = shared_lineage(folder), agree(newest), Crew(1)
        try:
            age = load_from_memory(folder, state, crew, wanted=lambda age: newer_than_stored(age, lineage, stored))
        finally:
            crew.close()
        if age is None:
            return None
        self._last = age[1]
        reporting.report_resumed(age[1], "memory")
        return age[1]

    def follow(self, state: MutableMapping[str, Any], directory: Path) -> None:
        """Take a snapshot at each step that is reported from now on, where the job wants the last one saved."""
        if _wanted() is None:
            return
        fixed = [name for name, value in state.items() if not _lives(value)]
        if fixed:
            _log.warning(
                "snapshots of each step are off, because the script can replace these values of its training state: %s",
                ", ".join(fixed),
            )
            return
        if self._snapshots is not None:
            self._snapshots.close()
        self._snapshots = Snapshots(state, storage=directory)
        reporting.follow_steps(self._take)

    def _take(self, step: int) -> None:
        if self._snapshots is not None and step != self._last:
            self._snapshots.save(step)
            self._last = step


def _wanted() -> Path | None:
    """Return where snapshots are kept without a line, None where the job does not want that: they may be another state's."""
    return agent_folder() if os.environ.get(env.SAVE_AT_BREAKPOINT) == "1" else None


def _lives(value: object) -> bool:
    """Return whether an entry of a state is changed in place, so that it can be read at any time."""
    return isinstance(value, torch.Tensor) or (hasattr(value, "state_dict") and hasattr(value, "load_state_dict"))
