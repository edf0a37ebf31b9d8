"""One state of a job of several roles, and what can happen next: conductors and units around one shared record.

`conduct`, `wants` and what its owner asks of a job (`delete`, `suspend`, `resume`, `renew`) are the real thing. Conductors are
cut into steps as supervisors are in world.py; a unit shows itself first, reads the record only then, and runs if it is wanted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rallypoint.supervision.conductor import conduct, delete, new_record, renew, resume, suspend, take_over, wants
from rallypoint.supervision.role_records import (
    ConductorPolicy,
    ConductorRecord,
    Phase,
    StartUnit,
    StopUnit,
    UnitKey,
    UnitSeen,
    UnitState,
)

__all__ = ["Conducted", "Faults", "Move", "check", "moves", "start"]

Move = tuple[str, object]


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How much may go wrong in one run; each is counted down."""

    crashes: int = 1
    failures: int = 2
    losses: int = 0
    deletions: int = 0
    takeovers: int = 0
    suspensions: int = 0
    renewals: int = 0


@dataclass(frozen=True)
class Unit:
    """A unit as a process: `shown`, `alive`, `ended`; asked to end; how it ended, and whether something of it is left."""

    phase: str = "shown"
    asked: bool = False
    state: UnitState = UnitState.RUNNING
    left: bool = False


@dataclass(frozen=True)
class Conductor:
    """What a conductor knows between two steps."""

    loaded: ConductorRecord | None = None
    version: int = 0
    seen: tuple[UnitSeen, ...] | None = None
    acting: tuple[StartUnit | StopUnit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Conducted:
    """Everything there is; `failed` counts failures of units, and `wrong` what must never be.

    `resumed` and `renewed` count what its owner asked for, which costs nothing.
    """

    policy: ConductorPolicy = field(hash=False)
    left: Faults
    record: ConductorRecord
    version: int = 0
    now: float = 0.0
    units: tuple[tuple[UnitKey, Unit], ...] = ()
    conductors: tuple[Conductor, ...] = (Conductor(), Conductor())
    failed: int = 0
    resumed: int = 0
    renewed: int = 0
    wrong: tuple[str, ...] = ()


def start(policy: ConductorPolicy, faults: Faults, *, conductors: int = 2) -> Conducted:
    """Return a job that was just submitted."""
    return Conducted(policy=policy, left=faults, record=new_record(policy), conductors=(Conductor(),) * conductors)


def moves(world: Conducted) -> Iterator[tuple[Move, Conducted]]:
    """Yield all that can happen next."""
    for index, conductor in enumerate(world.conductors):
        step, after = _turn(world, index, conductor)
        if after is not None:
            yield (f"conductor {index} {step}", ""), after
        if world.left.crashes and (conductor.loaded is not None or conductor.acting):
            yield (f"conductor {index} crashes", ""), _set(_spent(world, "crashes"), index, Conductor())
    for key, unit in world.units:
        yield from _unit_moves(world, key, unit)
    deadlines = (world.record.stop_at, *(role.stop_at for role in world.record.roles))
    if any(at is not None and at > world.now for at in deadlines):
        yield ("time passes", ""), dataclasses.replace(world, now=world.now + 60.0)
    if world.left.deletions and not world.record.finished:
        yield ("is deleted", ""), _saved(_spent(world, "deletions"), delete(world.record, world.policy, world.now))
    yield from _wishes(world)
    if world.left.takeovers and not world.record.finished:
        yield ("is taken over", ""), _saved(_spent(world, "takeovers"), take_over(world.record, world.policy, world.now))


def _wishes(world: Conducted) -> Iterator[tuple[Move, Conducted]]:
    """Yield what its owner may ask of the job; a suspended job is always resumed at last."""
    record, policy = world.record, world.policy
    if world.left.suspensions and (suspended := suspend(record, policy, world.now)) != record:
        yield ("is suspended", ""), _saved(_spent(world, "suspensions"), suspended)
    if (resumed := resume(record)) != record:
        yield ("is resumed", ""), _saved(dataclasses.replace(world, resumed=world.resumed + 1), resumed)
    if world.left.renewals and (renewed := renew(record, policy, world.now)) != record:
        yield ("is renewed", ""), _saved(dataclasses.replace(_spent(world, "renewals"), renewed=world.renewed + 1), renewed)


def _spent(world: Conducted, name: str) -> Conducted:
    return dataclasses.replace(world, left=dataclasses.replace(world.left, **{name: getattr(world.left, name) - 1}))


def _saved(world: Conducted, record: ConductorRecord) -> Conducted:
    return dataclasses.replace(world, record=record, version=world.version + 1)


def _set(world: Conducted, index: int, conductor: Conductor) -> Conducted:
    return dataclasses.replace(world, conductors=(*world.conductors[:index], conductor, *world.conductors[index + 1 :]))


def _turn(world: Conducted, index: int, me: Conductor) -> tuple[str, Conducted | None]:
    if me.acting:
        action, *rest = me.acting
        return f"acts: {action}", _set(_act(world, action), index, Conductor(acting=tuple(rest)))
    if me.loaded is None:
        if world.record.finished:
            return "is done", None
        return "loads", _set(world, index, Conductor(loaded=world.record, version=world.version))
    if me.seen is None:
        return "observes", _set(world, index, dataclasses.replace(me, seen=_observe(world)))
    decision = conduct(me.loaded, me.seen, world.policy, world.now)
    if decision.record != me.loaded:
        if world.version != me.version:
            return "is too late", _set(world, index, Conductor())
        world = _saved(world, decision.record)
    return "saves", _set(world, index, Conductor(acting=decision.actions))


def _observe(world: Conducted) -> tuple[UnitSeen, ...]:
    return tuple(UnitSeen(key=key, state=unit.state, present=unit.phase != "ended" or unit.left) for key, unit in world.units)


def _act(world: Conducted, action: StartUnit | StopUnit) -> Conducted:
    known = dict(world.units)
    if isinstance(action, StartUnit):
        return world if action.key in known else _put(world, action.key, Unit())
    unit = known.get(action.key)
    if unit is None:
        return world
    if action.force:
        state = UnitState.LOST if unit.phase != "ended" else unit.state
        return _put(world, action.key, dataclasses.replace(unit, phase="ended", state=state, left=False))
    return _put(world, action.key, dataclasses.replace(unit, asked=True))


def _put(world: Conducted, key: UnitKey, unit: Unit) -> Conducted:
    return dataclasses.replace(world, units=tuple(sorted({**dict(world.units), key: unit}.items(), key=lambda pair: pair[0])))


def _unit_moves(world: Conducted, key: UnitKey, unit: Unit) -> Iterator[tuple[Move, Conducted]]:
    ended = dataclasses.replace(unit, phase="ended")
    if unit.phase == "shown":
        if wants(world.record, key):
            yield ("starts", key), _put(world, key, dataclasses.replace(unit, phase="alive"))
        else:
            yield ("is not wanted", key), _put(world, key, dataclasses.replace(ended, state=UnitState.LOST))
    if unit.phase != "alive":
        return
    if unit.asked:
        yield ("obeys", key), _put(world, key, dataclasses.replace(ended, state=UnitState.LOST))
        return
    yield ("succeeds", key), _put(world, key, dataclasses.replace(ended, state=UnitState.SUCCEEDED))
    if world.left.failures:
        fault = dataclasses.replace(_spent(world, "failures"), failed=world.failed + 1)
        yield ("fails", key), _put(fault, key, dataclasses.replace(ended, state=UnitState.FAILED))
    if world.left.losses:
        fault = dataclasses.replace(_spent(world, "losses"), failed=world.failed + 1)
        yield ("is lost", key), _put(fault, key, dataclasses.replace(ended, state=UnitState.LOST, left=True))


def check(world: Conducted) -> tuple[str, ...]:
    """Return what must not be in a state."""
    return tuple(_broken(world))


def _broken(world: Conducted) -> Iterator[str]:
    yield from _lives_wrong(world)
    yield from _budgets_wrong(world)
    yield from _outcome_wrong(world)


def _lives_wrong(world: Conducted) -> Iterator[str]:
    alive = [key for key, unit in world.units if unit.phase == "alive"]
    if len({key.attempt for key in alive}) > 1:
        yield f"attempts {sorted({key.attempt for key in alive})} live at once"
    mixed = {key.role for key in alive for other in alive if key.role == other.role and key.reset != other.reset}
    if mixed:
        yield f"units of two resets of {sorted(mixed)} live at once"
    twice = [place for place, count in Counter((key.role, key.index) for key in alive).items() if count > 1]
    if twice:
        yield f"{twice} live twice"
    if world.record.finished and (alive or any(unit.left for _, unit in world.units)):
        yield f"the job is {world.record.phase.value}, and something is left"
    if world.record.phase is Phase.SUSPENDED and alive:
        yield f"the job is suspended, and {alive} live"


def _budgets_wrong(world: Conducted) -> Iterator[str]:
    record, policy = world.record, world.policy
    if record.attempt > policy.job_max_restart + 1 + world.renewed:
        yield f"attempt {record.attempt} after {world.renewed} renewals"
    if record.first > 1 + world.renewed or record.attempt < record.first - 1:
        yield f"budgets begin with attempt {record.first} after {world.renewed} renewals"
    lives = sum(sum(role.incarnations) - len(role.incarnations) for role in record.roles)
    charged = sum(sum(role.restarts) for role in record.roles)
    free = world.resumed * sum(len(role.incarnations) for role in record.roles)
    if lives > charged + free:
        yield f"{lives} further lives for {charged} restarts and {world.resumed} resumptions"
    if charged + record.attempt - 1 > world.failed + world.renewed:
        yield f"{charged} restarts and {record.attempt - 1} resets for {world.failed} failures and {world.renewed} renewals"


def _outcome_wrong(world: Conducted) -> Iterator[str]:
    record, policy = world.record, world.policy
    if record.phase is Phase.SUCCEEDED:
        drivers = [role for role in policy.roles if role.driver]
        done = {role.name: len(role.done) for role in record.roles}
        if any(done[role.name] != role.units for role in drivers):
            yield "the job succeeded without its drivers"
    if any(count > policy.node_max_restart for role in record.roles for count in role.restarts):
        yield "a node was restarted too often"
