"""Values that are passed between a task and its trigger: the job that the task waits for, and its end. Identifiers only."""

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
    """The claim of a task try on a job. Airflow stores it as plain text, so it contains no secrets.

    Attributes:
        backend, conn_id, home, namespace, context, kubeconfig, address, storage: where the job is, as in `Place`.
        name: the job's name.
        owner: this try's id (`ti.id`); only the owner may cancel.
        poll_interval: maximum seconds between two checks.
        get_logs: log the output of rank 0 (True), of `"all"` ranks, or of the listed ranks.
        deadline: end of the task's execution_timeout, seconds since the epoch; None without one.
        on_kill_action: `delete_job` or `keep_job`, if the task is stopped or times out.
        supervisor_image: image of the supervisor pod; "" starts a supervisor process on this machine instead.
        try_number: number of the try; 0 if unknown.
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
    # With defaults, because triggers of earlier versions are stored without these values.
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    address: str = ""
    storage: str = ""
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
    DELETED = "deleted"  #: another client deleted the job
    TIMEOUT = "timeout"  #: the task reached its execution_timeout
    ERROR = "error"  #: the supervision failed; the job may be running


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The last verdict on a job, and the fault that caused it.

    Attributes:
        reason: of the verdict (docs/reference/verdicts.md).
        kind: `FaultKind` of the last fault of the last attempt; "" if unknown.
        message: a sentence.
        hosts: machines with faults in the last attempt.
        no_growth: why `grow-memory` is not possible; "" if it is possible or not requested.
    """

    reason: str
    kind: str = ""
    message: str = ""
    hosts: tuple[str, ...] = ()
    no_growth: str = ""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """All data that a resumed task needs.

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
