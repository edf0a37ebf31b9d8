"""The flat plan that agents, coordinators and supervisors read: the job after every default was filled in.

`job/` compiles it from an `ElasticJob`; nothing below `job/` needs pydantic or YAML. Every duration is seconds as `float`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["PLAN_VERSION", "Entry", "Plan"]

PLAN_VERSION = 1


class Entry(str, enum.Enum):
    """How `Plan.entrypoint` is started."""

    SCRIPT = "script"  #: `python -u SCRIPT ARGS`
    MODULE = "module"  #: `python -u -m MODULE ARGS`
    COMMAND = "command"  #: `COMMAND ARGS`, whatever it is


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One role of a job, ready to run.

    Attributes:
        version: of this form.
        name: the job's name; `role` the role's.
        digest: names the spec: equal specs have equal digests.
        min_nodes, max_nodes, node_unit: the world is a multiple of `node_unit` nodes within these bounds.
        nproc_per_node: workers per node.
        entry, entrypoint, args: what each worker runs.
        env: added to each worker's environment.
        workdir: where workers are started; "" is where the agent is.
        checkpoint_dir: told to workers as RALLYPOINT_CHECKPOINT_DIR; "" when the job names none.
        join_timeout: how long a round may wait for `min_nodes`, counted from when the round is first asked for.
        last_call: how long a round that has `min_nodes` still waits for `max_nodes`.
        node_lease: an agent that says nothing for this long is lost.
        fence_timeout: an agent that reaches no coordinator for this long stops its workers.
        coordinator_port: 0 takes a free one.
        report_interval: period of an agent's reports of progress while nothing happens.
        max_restarts: how often workers are restarted for process faults, within one attempt.
        node_replacements: how often the node of one slot is replaced, within one attempt.
        replace_delay: pause before a lost node is replaced.
        stop_grace: TERM to KILL when workers are stopped.
        retry_limit: job resets; `retry_limit + 1` attempts at the most.
        admission_grace, warmup_grace, failure_grace, retry_pause, forceful_deletion_grace: AppWrapper's periods.
        log_dir: where per-rank logs go; "" is inside the job's own folder.
        redirects, tee: `0` none, `1` stdout, `2` stderr, `3` both, as torchrun numbers them.
        log_tail: lines of a culprit's log kept with its incident.
    """

    version: int = PLAN_VERSION
    name: str
    role: str
    digest: str = ""
    min_nodes: int
    max_nodes: int
    node_unit: int = 1
    nproc_per_node: int = 1
    entry: Entry
    entrypoint: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    checkpoint_dir: str = ""
    join_timeout: float = 600.0
    last_call: float = 30.0
    node_lease: float = 15.0
    fence_timeout: float = 600.0
    coordinator_port: int = 0
    report_interval: float = 1.0
    max_restarts: int = 3
    node_replacements: int = 3
    replace_delay: float = 0.0
    stop_grace: float = 10.0
    retry_limit: int = 3
    admission_grace: float = 60.0
    warmup_grace: float = 300.0
    failure_grace: float = 60.0
    retry_pause: float = 90.0
    forceful_deletion_grace: float = 600.0
    log_dir: str = ""
    redirects: int = 3
    tee: int = 0
    log_tail: int = 20
