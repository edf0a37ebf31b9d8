"""The conversation between an agent and the coordinator: one question, five answers.

An agent always says everything that is true of it (:class:`AgentReport`), and the coordinator answers when it has something
to say (long poll) or when `hold` seconds are over. There is no other message: a coordinator that was just started learns all
it needs from the next report of each agent, and a report that was lost is simply repeated.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire.bounds import BUDGET, PID, WHOLE
from rallypoint.wire.codec import WireError, from_json, neighbour, to_json
from rallypoint.wire.failover import Failover
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit
from rallypoint.wire.node_range import MAX_WORKERS
from rallypoint.wire.pulse import Pace, Phase
from rallypoint.wire.sections import NO_SECTIONS, Sections
from rallypoint.wire.status import Verdict

__all__ = [
    "MESSAGES_VERSION",
    "SENT_AWAY",
    "TOKEN_HEADER",
    "AgentReport",
    "AgentState",
    "Assignment",
    "Continue",
    "Refusal",
    "Regroup",
    "Reply",
    "Stop",
    "WorkerReport",
    "reply_from_json",
    "reply_to_json",
]

MESSAGES_VERSION = 3

#: Reason of the verdict that is told to one agent alone: another node takes its place, and the job goes on without it.
SENT_AWAY = "RetryElsewhere"

#: Header that carries the job's secret. Not `Authorization`: the Kubernetes API server strips that one from what it proxies.
TOKEN_HEADER = "X-Rallypoint-Token"


class AgentState(str, enum.Enum):
    """What an agent is doing with the round it names."""

    WAITING = "waiting"  #: has no workers and wants a place in the next round
    RUNNING = "running"  #: its workers of `round` run
    FAILED = "failed"  #: a worker of `round` ended badly (`failures`); the agent stops the others
    DONE = "done"  #: every worker of `round` ended with 0
    LEAVING = "leaving"  #: it was asked to end (SIGTERM) and will not come back


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """One worker as its agent sees it.

    `liveness` counts its signs of life: optimizer steps, and what it reports. `cpu` is how many cores it used of late, and
    `output` the bytes that it has written so far: before its first sign of life they tell that something is going on.

    What its Python tells by itself (`pulse.py`): `phase`, None where it tells none; `beat`, when its last sign of life was, in
    milliseconds on its node's clock, and `quiet`, seconds since then (without a pulse, since its agent saw the last one; None
    before any). `moved`: bytes that it has read from files and written to them so far, looked at only while it is quiet; `gpu`
    how busy its GPU is, 0.0 to 1.0, 0.0 also where nobody can tell. `ended`: its process has. `finished`: it lives and has left
    its process groups, or its main program has returned. `pace`: how long its steps take.
    """

    limits: ClassVar = {
        "pid": PID,
        "step": WHOLE,
        "resumed_from": WHOLE,
        "liveness": WHOLE,
        "output": WHOLE,
        "beat": WHOLE,
        "moved": WHOLE,
    }

    local_rank: int
    pid: int
    step: int | None = None
    resumed_from: int | None = None
    liveness: int = 0
    checkpoint: str = ""
    metrics: dict[str, float] = field(default_factory=dict, hash=False)
    cpu: float = 0.0
    output: int = 0
    phase: Phase | None = None
    beat: int = 0
    quiet: float | None = None
    moved: int = 0
    gpu: float = 0.0
    ended: bool = False
    finished: bool = False
    pace: Pace | None = None

    @property
    def reached(self) -> int | None:
        """Return the last step of this round, or the step that it resumed from; None where neither is known."""
        return self.resumed_from if self.step is None else self.step


@dataclass(frozen=True, kw_only=True)
class AgentReport:
    """All that is true of one agent.

    Attributes:
        version: of this protocol; one that is no neighbour of it is refused.
        job: the job's name; a report for another job is refused.
        fence: the highest fence the agent has seen.
        node: slot of the job, or -1 to be given the lowest free one.
        incarnation: how often the slot's node was replaced; a lower one than known is refused.
        unseen: the latest earlier incarnation whose end was not observed: it may still train; 0 if there is none.
        agent: unique name of this agent process.
        host: the machine, by its name where that is known, and else by its address.
        local_world_size: number of workers it starts.
        store: `host:port` of a listening socket on which it can serve the next round's store.
        state, round: what it does with which round (0: none yet).
        workers: its live workers, in order of local rank.
        failures: the workers of `round` that ended badly, culprit first.
        failover: what the job's own extension says about them; None where there is none.
        failover_note: why the extension could not say anything, for people.
        reason: why it leaves or failed, for people.
        result: what rank 0 left as the job's result, if it ended well here; None where there is none (wire/result.py).
        keeps: how many of its workers live on where the round breaks, or that do because it broke.
        resizable: they can follow into a world of another size, too.
        tolerance: why another controller handles the faults of processes (entry of a reset file); "" if it does not.
        free_ports: ranges that are free on its node for the workers' own use, as first, last, first, last, ...; empty where the
            plan needs none.
        ready: nothing is left that it could prepare before its workers start: imports, standbys, the process of its stores.
        hold: seconds the answer may be kept back while there is nothing to say.
        sequence: counts the reports of this agent process; of two that crossed on the way the higher is true.
        sections: what optional capabilities report (wire/sections.py).
    """

    neighbours: ClassVar[bool] = True
    reported: ClassVar[bool] = True

    #: Of an agent with a node rank, the incarnation is the time of its start.
    limits: ClassVar = {
        "local_world_size": (0, MAX_WORKERS),
        "free_ports": (0, 1 << 10),
        "keeps": (0, MAX_WORKERS),
        "incarnation": WHOLE,
        "sequence": WHOLE,
        "unseen": WHOLE,
    }

    version: int = MESSAGES_VERSION
    job: str
    fence: Fence
    node: int
    incarnation: int
    agent: str
    host: str
    local_world_size: int
    store: str
    state: AgentState
    round: int = 0
    workers: tuple[WorkerReport, ...] = ()
    failures: tuple[Culprit, ...] = ()
    failover: Failover | None = None
    failover_note: str = ""
    reason: str = ""
    result: Any = field(default=None, hash=False)
    keeps: int = 0
    resizable: bool = False
    tolerance: str = ""
    free_ports: tuple[int, ...] = ()
    ready: bool = True
    hold: float = 0.0
    sequence: int = 0
    unseen: int = 0
    sections: Sections = NO_SECTIONS


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A place in a round: start workers with these numbers.

    `node` is the slot (also for an agent that asked with -1). `store` is the `host:port` of the round's fresh TCPStore;
    the agent that listens there serves it. `digest` names the set of members, equal on all of them. `kept` counts the workers
    of the whole world that live on from the round before; with 0 none may. `training_port` is the first of the ports that are
    free on all nodes, 0 where none were asked for or found; `sections` is what optional capabilities give the workers to begin
    with.
    """

    limits: ClassVar = {"max_restarts": BUDGET}

    fence: Fence
    node: int
    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    store: str
    restart_count: int
    max_restarts: int
    digest: str
    kept: int = 0
    training_port: int = 0
    sections: Sections = NO_SECTIONS


@dataclass(frozen=True, kw_only=True)
class Regroup:
    """End the current round, then ask for a place in the next: workers that can may live on, unless `keep` forbids it.

    `dead`: somebody of the round is gone, so workers may wait for it for ever, and are not given time to end by themselves.
    """

    fence: Fence
    reason: str
    keep: bool = True
    dead: bool = False


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The attempt is over, or (reason `SENT_AWAY`) this node's part in it: stop the workers, then end with the verdict."""

    fence: Fence
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Continue:
    """Nothing new.

    `unsupervised`: seconds since the coordinator saw a sign of life of the job's supervisor, None where it looks for none. The
    agent counts on by itself when the coordinator is gone. `pace`: seconds after which to report again, while it is doubted
    whether the workers go on; 0 is as usual. `sections`: requests of optional capabilities, each repeated until it is answered.
    """

    fence: Fence
    unsupervised: float | None = None
    pace: float = 0.0
    sections: Sections = NO_SECTIONS


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The report cannot be taken. `stale`: the sender belongs to the past (replaced or reset) and must end."""

    fence: Fence
    reason: str
    stale: bool


Reply = Assignment | Regroup | Stop | Continue | Refusal

_REPLIES: dict[str, type[Any]] = {
    "assignment": Assignment,
    "regroup": Regroup,
    "stop": Stop,
    "continue": Continue,
    "refusal": Refusal,
}


def reply_to_json(reply: Reply) -> dict[str, Any]:
    """Return a reply as JSON with its `kind`."""
    kind = next(name for name, cls in _REPLIES.items() if type(reply) is cls)
    return {"version": MESSAGES_VERSION, "kind": kind, "body": to_json(reply)}


def reply_from_json(data: Any) -> Reply:
    """Read a reply; raises `WireError` for an unknown kind, `VersionError` for a version that is no neighbour of ours."""
    if not isinstance(data, dict):
        raise WireError("", data, "an object with version, kind and body")
    lenient = neighbour(data.get("version"), MESSAGES_VERSION)
    kind = data.get("kind")
    cls = _REPLIES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise WireError("kind", kind, f"one of {', '.join(_REPLIES)}")
    reply: Reply = from_json(cls, data.get("body"), path="body", lenient=lenient)
    return reply
