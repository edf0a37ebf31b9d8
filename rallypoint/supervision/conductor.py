"""The conductor: from the states of all roles of a job to what is started, restarted, reset and stopped. Pure.

Theory of operation
===================

A job has roles, a role has *units*. A unit of a simple role is one instance; an elastic role is a single unit, because its
coordinator and supervisor recover its workers by the ladder without touching any other role. What is seen of an elastic unit is
how its supervisor's record stands: running, succeeded, or failed once the whole ladder is exhausted.

A unit has a key: the attempt of the job, the number of resets of its role, its index, and its incarnation. Each failure climbs:

    instance    the same unit again, as its next incarnation; at most `node_max_restart` times for each node
    role        all units of the role are ended, then started again; at most `role_max_reset` times in an attempt
    job         all roles are ended, then started again as the next attempt; at most `job_max_restart` times

`on_failure` of a role says where it begins; an elastic unit that failed begins at the job. The job succeeds when all units of
all drivers have succeeded; every other role is then ended: gracefully, and after its grace period by force.

Every turn compares what is wanted with what is seen, and repeats an action until it has had its effect. The record is saved
before the actions are performed, by compare-and-swap; a unit reads the record when it starts and ends if `wants` denies it. So
a conductor may be killed, overtaken or started twice: no failure is charged twice, and no two attempts of a job live at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rallypoint.supervision.role_records import (
    ConductorPolicy,
    ConductorRecord,
    Decision,
    Level,
    Outcome,
    Phase,
    RolePolicy,
    RoleRecord,
    StartUnit,
    Step,
    StopUnit,
    UnitKey,
    UnitSeen,
    UnitState,
)

__all__ = [
    "conduct",
    "delete",
    "new_record",
    "renew",
    "resume",
    "suspend",
    "take_over",
    "wants",
]

_HISTORY = 200


def new_record(policy: ConductorPolicy, *, attempt: int = 1) -> ConductorRecord:
    """Return the record of a job that was just submitted; one that had attempts before begins with the next."""
    return ConductorRecord(attempt=attempt, first=attempt, roles=tuple(_fresh(role) for role in policy.roles))


def take_over(record: ConductorRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record under the next conductor; a job that has lost too many of them fails."""
    if record.finished:
        return record
    taken = dataclasses.replace(record, term=record.term + 1)
    if record.phase is not Phase.STOPPING and taken.term > policy.master_max_restart + 1:
        told = f"the master was replaced {policy.master_max_restart} times; master_max_restart allows no more"
        return _stopping(taken, policy, now, Outcome.FAILED, told)
    return taken


def delete(record: ConductorRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record of a job that is to end now, whatever it is doing."""
    if record.finished or record.outcome is Outcome.DELETED:
        return record
    return _stopping(record, policy, now, Outcome.DELETED, "the job was deleted")


def suspend(record: ConductorRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record of a job of which nothing is to run until it is resumed. This costs nothing."""
    if record.phase not in {Phase.RUNNING, Phase.RESETTING}:
        return record
    return dataclasses.replace(record, phase=Phase.SUSPENDING, stop_at=now + _grace(policy))


def resume(record: ConductorRecord) -> ConductorRecord:
    """Return the record of a suspended job that goes on: all units that have not succeeded begin their next life."""
    if record.phase is not Phase.SUSPENDED:
        return record
    roles = tuple(_next_lives(role) for role in record.roles)
    return dataclasses.replace(record, phase=Phase.RUNNING, roles=roles)


def renew(record: ConductorRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record of a job whose owner wants another attempt instead of the one that runs. This costs nothing."""
    if record.phase is not Phase.RUNNING:
        return record
    told = "its owner restarts it"
    return dataclasses.replace(record, phase=Phase.RESETTING, stop_at=now + _grace(policy), reason=told, first=record.first + 1)


def _next_lives(role: RoleRecord) -> RoleRecord:
    done = frozenset(role.done)
    lives = tuple(number + (index not in done) for index, number in enumerate(role.incarnations))
    return dataclasses.replace(role, stop_at=None, incarnations=lives)


def wants(record: ConductorRecord, key: UnitKey) -> bool:
    """Return whether a unit that has just been started may run."""
    role = _role(record, key.role)
    return role is not None and _Lives(role).wants(record, key)


def conduct(record: ConductorRecord, seen: Iterable[UnitSeen], policy: ConductorPolicy, now: float) -> Decision:
    """Return what follows from the record and from what is seen."""
    units = tuple(seen)
    if record.finished:
        return Decision(record=record)
    record = _settled(record, units, policy)
    if record.phase is Phase.RUNNING:
        record = _judged(record, units, policy, now)
        record = _with_outcome(record, policy, now)
    record = _bounded_stops(record, policy, now)
    return Decision(record=record, actions=tuple(_actions(record, units, now)), wake_at=_wake_at(record, units, now))


# --- what has come to its end --------------------------------------------------------------------------------------------


def _settled(record: ConductorRecord, units: tuple[UnitSeen, ...], policy: ConductorPolicy) -> ConductorRecord:
    """Return the record once what was being ended is gone."""
    present = [unit for unit in units if unit.present]
    if record.phase is Phase.STOPPING and not present and record.outcome is not None:
        return dataclasses.replace(record, phase=Phase(record.outcome.value), stop_at=None)
    if record.phase is Phase.SUSPENDING and not present:
        return dataclasses.replace(record, phase=Phase.SUSPENDED, stop_at=None)
    if record.phase is Phase.RESETTING and not present:
        fresh = tuple(_fresh(role) for role in policy.roles)
        return dataclasses.replace(record, phase=Phase.RUNNING, attempt=record.attempt + 1, roles=fresh, stop_at=None)
    if record.phase is not Phase.RUNNING:
        return record
    roles = tuple(_reset_over(role, present, policy) for role in record.roles)
    return dataclasses.replace(record, roles=roles)


def _reset_over(role: RoleRecord, present: list[UnitSeen], policy: ConductorPolicy) -> RoleRecord:
    if role.stop_at is None or any(unit.key.role == role.name for unit in present):
        return role
    return dataclasses.replace(_fresh(_policy_of(policy, role.name)), reset=role.reset + 1)


def _with_outcome(record: ConductorRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record of a job that stops, where all drivers have succeeded."""
    if record.phase is not Phase.RUNNING:
        return record
    drivers = [role for role in policy.roles if role.driver]
    if all(len(_known(record, role.name).done) == role.units for role in drivers):
        return _stopping(record, policy, now, Outcome.SUCCEEDED, "all drivers succeeded")
    return record


# --- failures climb --------------------------------------------------------------------------------------------------------


def _judged(record: ConductorRecord, units: tuple[UnitSeen, ...], policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record with every end of a current unit, in the order of time: a success is noted, a failure climbs."""
    lives = _lives(record)
    for unit in sorted(units, key=lambda unit: (_ended_at(unit, now), unit.key)):
        role = lives.get(unit.key.role)
        if role is None or unit.state is UnitState.RUNNING or not role.wants(record, unit.key):
            continue
        if unit.state is UnitState.SUCCEEDED:
            role.done.add(unit.key.index)
        else:
            record = _failed(record, unit, policy, now, lives)
    return dataclasses.replace(record, roles=tuple(lives[role.name].record() for role in record.roles))


def _ended_at(unit: UnitSeen, now: float) -> float:
    """Return when a unit ended; one that does not say so ended now, and no clock of another machine is later than ours."""
    at = unit.ended_at
    return at if at is not None and at < now else now


class _Lives:
    """A role during one turn: a job may have thousands of instances that all end in it."""

    def __init__(self, role: RoleRecord) -> None:
        self._role, self.stop_at = role, role.stop_at
        self.incarnations, self.done, self.restarts = list(role.incarnations), set(role.done), list(role.restarts)

    def wants(self, record: ConductorRecord, key: UnitKey) -> bool:
        return (
            record.phase is Phase.RUNNING
            and self.stop_at is None
            and key.index < len(self.incarnations)
            and key.index not in self.done
            and (key.attempt, key.reset, key.incarnation) == (record.attempt, self._role.reset, self.incarnations[key.index])
        )

    def restart(self, index: int, group: int) -> None:
        self.incarnations[index] += 1
        if group < len(self.restarts):
            self.restarts[group] += 1

    def record(self) -> RoleRecord:
        done = self._role.done if self.done == set(self._role.done) else tuple(sorted(self.done))
        return dataclasses.replace(
            self._role,
            stop_at=self.stop_at,
            incarnations=tuple(self.incarnations),
            done=done,
            restarts=tuple(self.restarts),
        )


def _lives(record: ConductorRecord) -> dict[str, _Lives]:
    return {role.name: _Lives(role) for role in record.roles}


def _failed(
    record: ConductorRecord, unit: UnitSeen, policy: ConductorPolicy, now: float, lives: Mapping[str, _Lives]
) -> ConductorRecord:
    role = _policy_of(policy, unit.key.role)
    level = Level.JOB if role.elastic and role.on_failure in {Level.INSTANCE, Level.ROLE} else role.on_failure
    reason = unit.reason or f"{unit.key.role} {unit.key.index} {unit.state.value}"
    level, reason = (Level.NONE, f"{reason}; {unit.final}") if unit.final else (level, reason)
    if level is Level.INSTANCE and _restarts_on_node(lives, policy, unit.key) >= policy.node_max_restart:
        level, reason = Level.ROLE, f"{reason}; no restarts of {_sharing(role)} left (limit: {policy.node_max_restart})"
    if level is Level.ROLE and _known(record, role.name).reset >= policy.role_max_reset:
        level, reason = Level.JOB, f"{reason}; no restarts of role {role.name} left (limit: {policy.role_max_reset})"
    if level is Level.JOB and record.attempt - record.first >= policy.job_max_restart:
        level, reason = Level.NONE, f"{reason}; no resets of the job left (limit: {policy.job_max_restart})"
    ended: dict[str, Any] = {"lost": unit.state is UnitState.LOST, "exit_code": unit.exit_code}
    step = Step(level=level, role=role.name, index=unit.key.index, attempt=record.attempt, reason=reason, at=now, **ended)
    record = dataclasses.replace(record, history=(*record.history, step)[-_HISTORY:])
    if level is Level.INSTANCE:
        lives[role.name].restart(unit.key.index, unit.key.index // role.per_group)
        return record
    if level is Level.ROLE:
        lives[role.name].stop_at = now + role.grace
        return record
    if level is Level.JOB:
        return dataclasses.replace(record, phase=Phase.RESETTING, stop_at=now + _grace(policy), reason=reason)
    return _stopping(record, policy, now, Outcome.FAILED, reason)


def _sharing(role: RolePolicy) -> str:
    """Return which instances share a budget of restarts, as text."""
    return "its group" if role.place or role.per_group > 1 else "the instance"


def _restarts_on_node(lives: Mapping[str, _Lives], policy: ConductorPolicy, key: UnitKey) -> int:
    """Return the restarts of instances on the node of a unit: those of all roles that share it."""
    mine = _policy_of(policy, key.role)
    group = key.index // mine.per_group
    sharing = [role for role in policy.roles if role.name == mine.name or (mine.place and role.place == mine.place)]
    found = [lives[role.name].restarts for role in sharing]
    return sum(restarts[group] for restarts in found if group < len(restarts))


def _stopping(record: ConductorRecord, policy: ConductorPolicy, now: float, outcome: Outcome, reason: str) -> ConductorRecord:
    return dataclasses.replace(record, phase=Phase.STOPPING, stop_at=now + _grace(policy), outcome=outcome, reason=reason)


def _grace(policy: ConductorPolicy) -> float:
    return max((role.grace for role in policy.roles), default=0.0)


def _bounded_stops(record: ConductorRecord, policy: ConductorPolicy, now: float) -> ConductorRecord:
    """Return the record with no deadline further away than its grace period, whatever the clock did."""
    if record.stop_at is not None and record.stop_at > now + _grace(policy):
        record = dataclasses.replace(record, stop_at=now + _grace(policy))
    for role in record.roles:
        grace = _policy_of(policy, role.name).grace
        if role.stop_at is not None and role.stop_at > now + grace:
            record = _with_role(record, dataclasses.replace(role, stop_at=now + grace))
    return record


# --- actions ---------------------------------------------------------------------------------------------------------------


def _actions(record: ConductorRecord, units: tuple[UnitSeen, ...], now: float) -> Iterator[StartUnit | StopUnit]:
    """Yield the end of all that is present and not wanted, then the start of what is wanted and was never started."""
    lives = _lives(record)
    for unit in sorted(units, key=lambda unit: unit.key):
        if not unit.present:
            continue
        if unit.state is not UnitState.RUNNING:
            yield StopUnit(key=unit.key, force=True)  # it has ended, and something of it is left
        elif (role := lives.get(unit.key.role)) is None or not role.wants(record, unit.key):
            yield StopUnit(key=unit.key, force=_is_due(record, unit.key, now))
    if record.phase is not Phase.RUNNING:
        return
    for wanted in record.roles:
        if wanted.stop_at is None:
            yield from _starts(record, wanted, units)


def _is_due(record: ConductorRecord, key: UnitKey, now: float) -> bool:
    """Return whether a unit that is not wanted is ended by force: its grace is over, or it belongs to an earlier life."""
    role = _role(record, key.role)
    stop_at = record.stop_at if record.stop_at is not None else None if role is None else role.stop_at
    return stop_at is None or now >= stop_at


def _starts(record: ConductorRecord, role: RoleRecord, units: tuple[UnitSeen, ...]) -> Iterator[StartUnit]:
    known, done = {unit.key for unit in units}, frozenset(role.done)
    busy = {unit.key.index for unit in units if unit.present and unit.key.role == role.name}
    for index in range(len(role.incarnations)):
        key = _key(record, role, index)
        if index not in done and index not in busy and key not in known:
            yield StartUnit(key=key)


def _wake_at(record: ConductorRecord, units: tuple[UnitSeen, ...], now: float) -> float | None:
    if not any(unit.present for unit in units):
        return None if record.finished or record.phase in {Phase.RUNNING, Phase.SUSPENDED} else now
    times = [stop_at for stop_at in (record.stop_at, *(role.stop_at for role in record.roles)) if stop_at is not None]
    return min((at for at in times if at > now), default=None)


# --- small readers ---------------------------------------------------------------------------------------------------------


def _fresh(role: RolePolicy) -> RoleRecord:
    groups = -(-role.units // role.per_group)
    return RoleRecord(name=role.name, incarnations=(1,) * role.units, restarts=(0,) * groups)


def _key(record: ConductorRecord, role: RoleRecord, index: int) -> UnitKey:
    return UnitKey(role=role.name, attempt=record.attempt, reset=role.reset, index=index, incarnation=role.incarnations[index])


def _role(record: ConductorRecord, name: str) -> RoleRecord | None:
    return next((role for role in record.roles if role.name == name), None)


def _known(record: ConductorRecord, name: str) -> RoleRecord:
    return next(role for role in record.roles if role.name == name)


def _policy_of(policy: ConductorPolicy, name: str) -> RolePolicy:
    return next(role for role in policy.roles if role.name == name)


def _with_role(record: ConductorRecord, changed: RoleRecord) -> ConductorRecord:
    roles = tuple(changed if role.name == changed.name else role for role in record.roles)
    return dataclasses.replace(record, roles=roles)
