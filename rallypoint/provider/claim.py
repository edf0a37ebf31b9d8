"""Who waits for which job, and how it ended: the values that travel between a task and its trigger. Identifiers only."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.provider.place import Place
from rallypoint.wire import codec

__all__ = ["Claim", "End", "Ending", "Failure"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One try's claim on a job. It is stored as plain text, so it names things and holds no secret.

    Attributes:
        backend, conn_id, home, namespace, context, kubeconfig, address, storage, runtime_env: where the job is, as in `Place`.
        name: the job's name.
        owner: this try's id (`ti.id`); only the owner may cancel.
        poll_interval: seconds between two looks, at the most.
        get_logs: tell the output of rank 0 too (True), of `"all"` ranks, or of these.
        deadline: when the task's time is over, seconds since the epoch; None for never.
        on_kill_action: `delete_job` or `keep_job`, when the task is ended or its time is over.
        supervisor_image: what a supervisor in a pod of its own runs; "" leaves the job to a process of this machine instead.
        try_number: which try this is; 0 where that is not known.
        publish: publish the job's page as an XCom while it runs.
    """

    backend: str
    home: str
    name: str
    owner: str
    poll_interval: float
    get_logs: bool | str | list[int]
    deadline: float | None
    on_kill_action: str
    # Defaults, since a trigger of an earlier version is stored without them.
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    address: str = ""
    storage: str = ""
    runtime_env: str = ""
    supervisor_image: str = ""
    conn_id: str = ""
    try_number: int = 0
    publish: bool = False

    @property
    def place(self) -> Place:
        """Where the job is."""
        return Place.of(dataclasses.asdict(self))


class End(str, enum.Enum):
    """How the wait for a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"  #: the job is gone, by somebody else's wish
    TIMEOUT = "timeout"  #: the task's time is over
    ERROR = "error"  #: watching broke; the job may well be running


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A job's last verdict, and the fault behind it.

    Attributes:
        reason: of the verdict (docs/reference/verdicts.md).
        kind: of the last fault of its last attempt, a `FaultKind`; "" where none is known.
        message: in a sentence.
        hosts: machines that were to blame in its last attempt.
        no_growth: why `grow-memory` can do nothing about it, in words; "" where it can, or where nobody asked.
    """

    reason: str
    kind: str = ""
    message: str = ""
    hosts: tuple[str, ...] = ()
    no_growth: str = ""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Everything that a resumed task needs: nothing else of its first half comes with it.

    `summary` is that of `result.summarize`, {} where there is no record any more; `text` is for people. `local_failure`: what
    broke was a disk or the backend as this process saw it, which says nothing against the job. `failure`:
    why the job failed, where it did.
    """

    reported: ClassVar[bool] = True

    end: End
    name: str
    summary: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    local_failure: bool = False
    failure: Failure | None = None

    def to_event(self) -> dict[str, Any]:
        """Return the payload of a trigger's event."""
        event: dict[str, Any] = codec.to_json(self)
        return event

    @classmethod
    def from_event(cls, event: Any) -> Ending:
        """Read a payload; raises `WireError`."""
        return codec.from_json(cls, event, path="event")
