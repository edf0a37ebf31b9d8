"""The scenarios: three victims at ten points, five deeds in four states, and what else was seen to go wrong elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from tests.airflow.scenario import KILLS, Deed, Fate, Mode, Moment, Scenario

__all__ = ["MATRIX", "POINTS", "STATES", "SUBSET"]

#: The ten points of a job's life at which Airflow's processes are killed.
POINTS = (
    Moment.BEFORE_SUBMISSION,
    Moment.INTENT_WRITTEN,
    Moment.SUBMITTED,
    Moment.ROUND_FORMING,
    Moment.RUNNING_SYNC,
    Moment.DEFERRING,
    Moment.DEFERRED,
    Moment.RESUMING,
    Moment.FINISHING,
    Moment.COLLECTED,
)

#: The states in which a user acts.
STATES = (Moment.QUEUED, Moment.RUNNING_SYNC, Moment.DEFERRED, Moment.TRIGGERER_DOWN)

#: Seconds: short, so that a job that nobody could tell of its end is seen to end by itself.
_SHORT = 20.0

_ACTS = (Deed.CLEAR, Deed.MARK_FAILED, Deed.MARK_SUCCESS, Deed.DELETE_RUN, Deed.PAUSE)

#: Deeds that end the task, and its state then.
_ENDS = {Deed.MARK_FAILED: "failed", Deed.MARK_SUCCESS: "success", Deed.DELETE_RUN: None}


def _kills() -> Iterator[Scenario]:
    for point in POINTS:
        for deed in KILLS:
            # A round forms under the eyes of whoever is killed.
            sync = point is Moment.RUNNING_SYNC or (point is Moment.ROUND_FORMING and deed is Deed.KILL_WORKER)
            yield Scenario(mode=Mode.SYNC if sync else Mode.DEFERRED, at=point, deed=deed)


def _acts() -> Iterator[Scenario]:
    for state in STATES:
        mode = Mode.SYNC if state is Moment.RUNNING_SYNC else Mode.DEFERRED
        for deed in _ACTS:
            if deed in _ENDS:
                fate = _fate(state)
                yield Scenario(
                    mode=mode, at=state, deed=deed, task=_ENDS[deed], fate=fate, lease=_SHORT if fate is Fate.LEASE else 600.0
                )
            else:
                # A clear ends the old attempt, where there is one, before the next begins.
                again = deed is Deed.CLEAR and state is not Moment.QUEUED
                yield Scenario(mode=mode, at=state, deed=deed, trainings=2 if again else 1)


def _fate(state: Moment) -> Fate:
    if state is Moment.QUEUED:
        return Fate.NEVER
    return Fate.LEASE if state is Moment.TRIGGERER_DOWN else Fate.DELETED


def _others() -> Iterator[Scenario]:
    yield Scenario(mode=Mode.SYNC, at=Moment.RUNNING_SYNC, deed=Deed.KILL_MACHINE)
    yield Scenario(mode=Mode.DEFERRED, at=Moment.SUBMITTED, deed=Deed.KILL_MACHINE)
    yield Scenario(mode=Mode.DEFERRED, at=Moment.DEFERRED, deed=Deed.KILL_TRIGGERERS)
    yield Scenario(mode=Mode.DEFERRED, at=Moment.DEFERRED, deed=Deed.STALL_TRIGGERER)


MATRIX = (*_kills(), *_acts(), *_others())

_NAMED = (
    (Deed.KILL_WORKER, Moment.RUNNING_SYNC),
    (Deed.KILL_TRIGGERER, Moment.DEFERRED),
    (Deed.KILL_SCHEDULER, Moment.DEFERRED),
    (Deed.CLEAR, Moment.DEFERRED),
    (Deed.MARK_FAILED, Moment.DEFERRED),
    (Deed.MARK_FAILED, Moment.TRIGGERER_DOWN),
)

#: Those that every change is tried with.
SUBSET = tuple(one for deed, at in _NAMED for one in MATRIX if (one.deed, one.at) == (deed, at))
