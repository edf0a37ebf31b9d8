"""The policy blocks of a job. Every field takes effect: it is carried into the plan that agents and supervisors read."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import Self

from rallypoint.job.duration import format_duration
from rallypoint.job.rules import PATH, choice, duration, refusal, whole

__all__ = ["FaultTolerance", "Health", "Logs", "Model", "Recovery", "Rendezvous"]

_GRACE = duration(most=86400.0)
_PERIOD = duration()
_TIMEOUT = duration(positive=True)
_STREAMS = choice("none", "stdout", "stderr", "both")


class Model(BaseModel):
    """A frozen part of a job; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FaultTolerance(Model):
    """What a supervisor does about the job as a whole; the periods are AppWrapper's, from 0s to 24h."""

    retry_limit: Annotated[int, whole(0, 100, unit="resets")] = 3
    """How often the whole job is reset and tried again; `retry_limit + 1` attempts at the most."""
    admission_grace_period: Annotated[float, _GRACE] = 60.0
    """Until every node exists, from the deployment of an attempt."""
    warmup_grace_period: Annotated[float, _GRACE] = 300.0
    """Until the first round runs, from the deployment; or until one runs again, from when it stopped running."""
    failure_grace_period: Annotated[float, _GRACE] = 60.0
    """How long failed nodes that leave fewer than MIN are tolerated, from when the job became unhealthy."""
    retry_pause_period: Annotated[float, _GRACE] = 90.0
    """Pause between the end of deletion and the next attempt."""
    forceful_deletion_grace_period: Annotated[float, _GRACE] = 600.0
    """A deletion that is not finished by then is forced."""


class Recovery(Model):
    """What is done about single workers and nodes within one attempt."""

    max_restarts: Annotated[int, whole(0, unit="restarts")] = 3
    """How often workers are restarted for process faults."""
    node_replacements: Annotated[int, whole(0, unit="replacements")] = 3
    """How often the node of one slot is replaced (DLRover: `relaunch_on_worker_failure`)."""
    replace_delay: Annotated[float, _PERIOD] = 0.0
    """Pause before a lost node is replaced."""
    stop_grace_period: Annotated[float, _PERIOD] = 10.0
    """From TERM to KILL when workers are stopped."""


class Rendezvous(Model):
    """How nodes find each other."""

    join_timeout: Annotated[float, _TIMEOUT] = 600.0
    """How long a round may wait for MIN nodes, from when it is first asked for."""
    last_call_timeout: Annotated[float, _PERIOD] = 30.0
    """How long a round that has MIN nodes still waits for MAX."""
    fence_timeout: Annotated[float, _TIMEOUT] = 600.0
    """An agent that reaches no coordinator for this long stops its workers."""
    port: Annotated[int, whole(0, 65535)] = 0
    """Where the coordinator listens; 0 takes a free port."""


class Health(Model):
    """How the coordinator and the agents know of each other's life."""

    node_lease: Annotated[float, _TIMEOUT] = 15.0
    """An agent that says nothing for this long is lost."""
    report_interval: Annotated[float, _TIMEOUT] = 1.0
    """Period of an agent's reports while nothing happens; less than half of `node_lease`."""

    @model_validator(mode="after")
    def _two_reports_fit_into_a_lease(self) -> Self:
        # A single late report must never cost a healthy node its place.
        if self.report_interval < self.node_lease / 2:
            return self
        allowed = f"less than half of node_lease ({format_duration(self.node_lease)})"
        raise refusal(allowed, at="report_interval", value=format_duration(self.report_interval))


class Logs(Model):
    """Where the output of each rank goes."""

    dir: Annotated[str, PATH] = ""
    """Folder of the per-rank logs; without it they lie in the job's own folder. Relative to the job file."""
    redirects: Annotated[str, _STREAMS] = "both"
    """Streams that are captured to files."""
    tee: Annotated[str, _STREAMS] = "none"
    """Streams that are captured to files and shown by the agent, each line with its rank."""
    tail_lines: Annotated[int, whole(1, 200, unit="lines")] = 20
    """Lines of a failed worker's log that are kept with its incident."""
