"""Training that does not go on, as it is told: the doubt, the verdict, and what was found of each rank."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import PID, TIME, WHOLE
from rallypoint.wire.incident import IncidentId

__all__ = ["FRAMES", "STACK_SIGNAL", "CallSeen", "Evidence", "GroupSeen", "Hang", "HangState", "RankSeen"]

#: The signal that asks a worker's Python for its stacks: Linux's SIGRTMIN + 11, by number, since this is read elsewhere, too.
#: Programs that train do not use it, and it is sent only to a process that catches it.
STACK_SIGNAL = 45

#: Frames of a rank's main thread that are told, the innermost first; all of them, of all threads, stay on its node.
FRAMES = 12


class HangState(str, enum.Enum):
    """How sure it is."""

    #: No sign of life for half of a bound, or for all of a learned one without positive evidence of a hang. It may be notified;
    #: nothing is restarted.
    DOUBT = "doubt"
    #: None for `hang_downtime`, or there is positive evidence: the action of `hang_detection` follows.
    VERDICT = "verdict"


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No rank of the running round has shown a sign of life for long; None in a status while training goes on.

    It is told whatever `hang_detection` says, and is gone as soon as a rank shows one, or the round is over. Times are seconds
    since the epoch on the coordinator's clock, as all of a status are.

    Attributes:
        round: the round that it is about.
        state: how sure it is.
        quiet_since: when the last sign of life was heard (the first worker was, where there was none).
        since: when the doubt began; `verdict_at` when the verdict was given, None while it is a doubt.
        culprits: the ranks that the others wait for, the likeliest first; empty while nobody stands out.
        reason: one sentence for people.
        incident: id of the incident of the notification or verdict; None where there is none (`hang_detection` 0).
    """

    limits: ClassVar = {"quiet_since": TIME, "since": TIME, "verdict_at": TIME}

    round: int
    state: HangState
    quiet_since: float
    since: float
    verdict_at: float | None = None
    culprits: tuple[int, ...] = ()
    reason: str = ""
    incident: IncidentId | None = None


@dataclass(frozen=True, kw_only=True)
class CallSeen:
    """A call of a process group that has not completed on this rank.

    Attributes:
        operation: `all_reduce`, `barrier`, ...
        number: its sequence number in the group; 0 is a send or receive, which has none that other ranks share.
    """

    limits: ClassVar = {"number": WHOLE}

    operation: str
    number: int


@dataclass(frozen=True, kw_only=True)
class GroupSeen:
    """A process group of a rank, as torch knows it in that rank.

    The members are the ranks `first`, `first + step`, ..., `size` of them; other groups cannot be described.

    Attributes:
        name: of the group, the same on all of its ranks.
        first, step, size: its members.
        called: sequence number of the last collective that this rank has called in it.
        pending: calls that have not completed.
    """

    limits: ClassVar = {"first": (0, 1 << 30), "step": (1, 1 << 30), "size": (0, 1 << 17), "called": WHOLE}

    name: str
    first: int
    step: int
    size: int
    called: int
    pending: tuple[CallSeen, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankSeen:
    """What an agent found of one of its workers when it was asked for evidence.

    Attributes:
        local_rank, pid: of the process that trains; behind a shell that is not the one that the agent started.
        step: what it reported last, None where it reports nothing; `liveness` counts its signs of life in this round.
        quiet: seconds since the last of these, or since it was started.
        cpu: cores that it used since then, 0.0 to the number of its threads.
        state: the kernel's letter for it: R runs, S sleeps, D waits for a disk, T is stopped, Z is dead; "" where it is gone.
        frames: of its main thread, `file.py:12 function`, the innermost first; empty where there are none, and `note` says why.
        native: the frames below the innermost of these, where py-spy could tell them.
        phase: what it was doing, as far as it is known: step, evaluation, checkpoint, ...
        collective: the last one that it has called, where torch's flight recorder could be asked.
        gpu: how busy its GPU was of late, 0.0 to 1.0; 0.0 also where that is not known.
        device: the errors that its device has reported in this round (XID, ECC), "" where there are none.
        groups: its process groups; empty where torch could not be asked, or a group could not be described.
        cycle: threads of the process that wait for locks of each other, as a sentence; "" where there are none.
    """

    limits: ClassVar = {"step": WHOLE, "liveness": WHOLE, "pid": PID}

    local_rank: int
    pid: int
    step: int | None = None
    liveness: int = 0
    quiet: float = 0.0
    cpu: float = 0.0
    state: str = ""
    frames: tuple[str, ...] = ()
    note: str = ""
    native: tuple[str, ...] = ()
    phase: str = ""
    collective: str = ""
    gpu: float = 0.0
    device: str = ""
    groups: tuple[GroupSeen, ...] = ()
    cycle: str = ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an agent found of its workers, as the answer to the request `number` of the coordinator in this `round`.

    `path` is the file on its host that holds all of it: every thread, every frame.
    """

    round: int
    number: int
    path: str = ""
    ranks: tuple[RankSeen, ...] = ()
