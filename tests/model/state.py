"""The values of one state of the modelled world: what exists, who remembers what, and what may still go wrong."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from rallypoint.agent.node.decide import Node
from rallypoint.agent.node.events import Event
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings
from rallypoint.supervision.actions import Action
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.status import JobStatus

__all__ = [
    "Agent",
    "Coordinator",
    "Key",
    "Limits",
    "Place",
    "Proc",
    "Supervisor",
    "Worker",
    "World",
    "altered",
    "new_world",
    "put",
    "spend",
]

#: (attempt, slot or -1, incarnation or term)
Key = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may go wrong in one run; each is counted down. `split`: supervisors and coordinators are cut into steps."""

    supervisors: int = 2
    split_supervisors: bool = True
    split_coordinators: bool = True
    crashes: int = 1
    kills: int = 1
    shims: int = 0
    cuts: int = 0
    losses: int = 0
    worker_faults: int = 0
    worker_kills: int = 0
    raises: int = 0
    echoes: int = 0
    overdue: int = 0
    leases: int = 1
    moments: int = 2
    jumps: int = 0
    deletions: int = 0
    suspensions: int = 0


@dataclass(frozen=True)
class Proc:
    """A node or coordinator as a process: `shown`, `alive`, an `orphan` or `gone`; `asked` to end.

    An orphan has lost its shim: it runs on, but all that is seen of it is that it is lost, and that something is left.
    """

    phase: str = "shown"
    asked: bool = False
    code: int | None = None


@dataclass(frozen=True)
class Supervisor:
    """What a supervising process knows between two steps; all of it is lost in a crash."""

    loaded: JobRecord | None = None
    version: int = 0
    now: float = 0.0
    seen: Observation | None = None
    acting: tuple[Action, ...] = ()
    record: JobRecord | None = None
    over: bool = False


@dataclass(frozen=True)
class Place:
    """A worker's place in a world (attempt, term, round, digest): which rank of how many. The rank is no part of its name."""

    world: tuple[int, int, int, str]
    rank: int = dataclasses.field(compare=False)
    size: int


@dataclass(frozen=True)
class Worker:
    """A worker that lives: its place, whether it was told to leave that world, and whether it has."""

    place: Place
    told: bool = False
    free: bool = False


@dataclass(frozen=True)
class Agent:
    """A node agent: the real state machine, whom it talks to, and since when it has heard nobody.

    `workers` by local rank; whom a stop that is under way spares, None while none is; what it has yet to hear of its workers,
    and the rounds for whose leaving somebody waits.
    """

    node: Node
    heard: float
    newest: int = 0
    cut: bool = False
    workers: tuple[tuple[int, Worker], ...] = ()
    spare: frozenset[int] | None = None
    inbox: tuple[Event, ...] = ()
    overdue: tuple[int, ...] = ()


@dataclass(frozen=True)
class Coordinator:
    """A coordinator: the real core, and whether what it knows is published."""

    state: rendezvous.State
    durable: bool = True


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything there is. `policy`, `settings` and the fields up to `resizable` are the same in all states of one run.

    `size` is how many workers a node has; `living`: they can live on, and where `resizable` into a world of another size.
    `faults` counts what went wrong with workers and nodes; `torn` are worlds that somebody was in who is not any more; `wrong`
    what must never be, as who did it noted.
    """

    policy: Policy = field(hash=False)  # what tells no two states of a run apart is not worth its time
    settings: Settings = field(hash=False)
    fence_timeout: float
    left: Limits
    size: int = 1
    living: bool = False
    resizable: bool = True
    faults: int = 0
    torn: frozenset[Place] = frozenset()
    wrong: tuple[str, ...] = ()
    now: float = 0.0
    wall: float = 0.0
    record: JobRecord | None = None
    version: int = 0
    status: JobStatus | None = None
    endpoint: tuple[int, int] = (0, 0)
    procs: tuple[tuple[Key, Proc], ...] = ()
    agents: tuple[tuple[Key, Agent], ...] = ()
    coordinators: tuple[tuple[Key, Coordinator], ...] = ()
    supervisors: tuple[Supervisor, ...] = ()

    def proc(self, key: Key) -> Proc | None:
        """Return a process, or None if it never was."""
        return dict(self.procs).get(key)


def new_world(
    policy: Policy, settings: Settings, limits: Limits, *, fence_timeout: float = 60.0, size: int = 1, living: bool = False
) -> World:
    """Return a job that was just submitted, and its supervisors before their first turn."""
    record = JobRecord.new(name="digits", uid="u1", digest="d1", owner="cli", now=0.0)
    supervisors = tuple(Supervisor() for _ in range(limits.supervisors))
    return World(
        policy=policy,
        settings=settings,
        fence_timeout=fence_timeout,
        left=limits,
        size=size,
        living=living,
        record=record,
        supervisors=supervisors,
    )


def put(pairs: tuple[tuple[Key, object], ...], key: Key, value: object) -> tuple[tuple[Key, object], ...]:
    """Return sorted pairs with one replaced, added, or (value None) removed."""
    found = dict(pairs)
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value
    return tuple(sorted(found.items(), key=lambda pair: pair[0]))


def altered(world: World, **changes: object) -> World:
    return dataclasses.replace(world, **changes)  # type: ignore[arg-type]


def spend(world: World, name: str) -> World:
    return altered(world, left=dataclasses.replace(world.left, **{name: getattr(world.left, name) - 1}))
