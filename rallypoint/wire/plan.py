"""The flat plan that agents, coordinators and supervisors read: the job after every default was filled in.

`job/` compiles it from an `ElasticJob`; nothing below `job/` needs pydantic or YAML. Every duration is seconds as `float`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.wire.bounds import BUDGET
from rallypoint.wire.incident import Answer
from rallypoint.wire.node_range import MAX_NODES, MAX_WORKERS
from rallypoint.wire.sections import NO_SECTIONS, Group, Sections

__all__ = [
    "PATTERN_LENGTH",
    "PLAN_VERSION",
    "ROLES",
    "RULES",
    "Budgets",
    "DeviceSettings",
    "ElasticMode",
    "EndRule",
    "Entry",
    "FailureRules",
    "GracePeriods",
    "Kind",
    "LogSettings",
    "OrphanPolicy",
    "Plan",
    "Profile",
    "Refill",
    "RendezvousSettings",
    "Scheduling",
    "WorkerSettings",
]

PLAN_VERSION = 2

#: Characters of a rule's `log_pattern`, and rules of a job: the search for each may take seconds.
PATTERN_LENGTH, RULES = 1000, 100

#: Roles of a job.
ROLES = 256

#: Texts that a plan hides.
HIDDEN = 4096


class Entry(str, enum.Enum):
    """How `Plan.entrypoint` is started."""

    SCRIPT = "script"  #: `python -u SCRIPT ARGS`
    MODULE = "module"  #: `python -u -m MODULE ARGS`
    COMMAND = "command"  #: `COMMAND ARGS`, whatever it is


class Kind(str, enum.Enum):
    """Who makes a job's pods (or processes), and who decides about them."""

    PODS = "pods"  #: we do both
    PYTORCHJOB = "pytorchjob"  #: the training operator makes them, we decide
    APPWRAPPER = "appwrapper"  #: its controller does both, and we watch and tell
    RAYJOB = "rayjob"  #: KubeRay makes a Ray cluster and starts our driver in it; we decide about attempts
    RAYCLUSTER = "raycluster"  #: the same, and the driver is a container of the head pod


class Profile(str, enum.Enum):
    """Whose machine supervises the job; it sets the defaults of the policies and chooses the rules."""

    LADDER = "ladder"  #: pods are replaced, the world shrinks and grows, rank 0 is no special case
    APPWRAPPER = "appwrapper"  #: a fixed world, no replacement: any loss past its grace resets the job
    MINDCLUSTER = "mindcluster"  #: Ascend MindCluster's rescheduling, its strategies and its rank-0 rule


class OrphanPolicy(str, enum.Enum):
    """What a job does by itself that nobody has supervised for its lease."""

    CONTINUE = "continue"  #: it goes on; the default of the CLI
    STOP = "stop"  #: it saves what it can and ends; the default of Airflow tasks


class ElasticMode(str, enum.Enum):
    """What happens between two rounds of different members."""

    BASE = "base"  #: the next round starts as soon as it can
    UCP = "ucp"  #: not before the last snapshot is in storage and proven, for as long as a deadline allows


@dataclass(frozen=True, kw_only=True)
class Refill:
    """When a budget's faults stop to count. All off is AppWrapper's rule: a budget is for life.

    Attributes:
        window: only faults of the last `window` seconds count; 0 counts all.
        healthy_for: what was spent before so many seconds of healthy progress counts no more; 0 is off.
        on_checkpoint: what was spent before a newer checkpoint counts no more.
    """

    window: float = 0.0
    healthy_for: float = 0.0
    on_checkpoint: bool = False


@dataclass(frozen=True, kw_only=True)
class EndRule:
    """A user's rule: an end that matches everything that is given has this answer. The first rule that matches decides.

    Attributes:
        exit_codes, signals: one of these ended it; empty matches any.
        log_pattern: a regular expression that is searched for in the error and the log tail; "" matches any.
        answer: what is done.
    """

    limits: ClassVar = {"log_pattern": (0, PATTERN_LENGTH)}

    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    log_pattern: str = ""
    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """The labels and annotations of Ascend MindCluster (profile `mindcluster`), each with the meaning that it has there.

    Attributes:
        fault_scheduling: `grace`, `force` or `off`.
        pod_rescheduling: only the faulty pods are replaced.
        process_recover: `on`, `pause` or `off` (label process-recover-enable).
        recover_strategy: words of the annotation recover-strategy, without order.
        fault_retry_times: restarts that a container's end may cause; hardware faults cost none.
        backoff_limit: restarts of any kind, those for hardware faults included; 0 is no limit.
        wait_reschedule_timeout: seconds for a replaced pod to run before the next strategy is taken.
        grace_over_time: seconds after which a graceful deletion is forced.
        pending_rounds, pending_interval: so many checks, so many seconds apart, may find a replaced pod pending; then all are
            rescheduled.
        elastic_wait: seconds that elastic-training waits for the lost pod where rescheduling is configured.
        graceful_tolerance: the reset file holds an entry of graceful fault tolerance: process-level recovery is refused.
        never_upgrade: annotation huawei.com/recover_policy_path is `pod`.
        reset_file: where a pod has MindCluster's reset file; an entry there has the effect of `graceful_tolerance`.
        switched_off: words that the role's variables (PROCESS_RECOVER=off and the like) rule out, whatever is configured.
    """

    limits: ClassVar = {"fault_retry_times": BUDGET, "backoff_limit": BUDGET, "pending_rounds": BUDGET}

    fault_scheduling: str = "off"
    pod_rescheduling: bool = False
    process_recover: str = "off"
    recover_strategy: tuple[str, ...] = ()
    fault_retry_times: int = 0
    backoff_limit: int = 0
    wait_reschedule_timeout: float = 270.0
    grace_over_time: float = 900.0
    pending_rounds: int = 12
    pending_interval: float = 1.0
    elastic_wait: float = 20.0
    graceful_tolerance: bool = False
    never_upgrade: bool = False
    reset_file: str = "/user/restore/reset/config/reset.json"
    switched_off: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GracePeriods(Group):
    """Periods that the supervisor waits for, in seconds.

    Attributes:
        replace_delay: pause before a lost node is replaced.
        admission_grace, warmup_grace, failure_grace, retry_pause, forceful_deletion_grace: AppWrapper's periods.
        deletion_on_failure_grace: a failed job's nodes stay so long for debugging; 0 deletes them at once.
        success_ttl: what is left of a job that succeeded is deleted so long after its success.
        pending_timeout: how long a node may stay pending from when it exists; 0 is off.
        pending_fail_strategy: -1 no check at all, 0 only a warning, 1 fails the job when fewer than `min_nodes` run,
            2 when any node is still pending.
        node_group_timeout: how long the replacement of a node may stay pending before its whole group is replaced.
    """

    replace_delay: float = 0.0
    admission_grace: float = 60.0
    warmup_grace: float = 300.0
    failure_grace: float = 60.0
    retry_pause: float = 90.0
    forceful_deletion_grace: float = 600.0
    deletion_on_failure_grace: float = 0.0
    success_ttl: float = 604800.0
    pending_timeout: float = 900.0
    pending_fail_strategy: int = 1
    node_group_timeout: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Budgets(Group):
    """Limits of recovery.

    Attributes:
        max_restarts: restarts of the workers for process faults, within one attempt.
        node_replacements: replacements of the node of one slot, within one attempt.
        retry_limit: job resets; a job has at most `retry_limit + 1` attempts.
        max_hangs: hangs that are answered by a restart, within one attempt.
        no_progress_limit: so many attempts in a row without a newer step end the job; 0 is off.
        coordinator_replacements: coordinators that may be lost within one attempt.
        process_refill, node_refill, hang_refill, reset_refill: when the faults of each budget stop to count.
    """

    limits: ClassVar = {
        "max_restarts": BUDGET,
        "node_replacements": BUDGET,
        "retry_limit": BUDGET,
        "max_hangs": BUDGET,
        "no_progress_limit": BUDGET,
        "coordinator_replacements": BUDGET,
    }

    max_restarts: int = 3
    node_replacements: int = 3
    retry_limit: int = 3
    max_hangs: int = 3
    no_progress_limit: int = 3
    coordinator_replacements: int = 100
    process_refill: Refill = Refill()
    node_refill: Refill = Refill()
    hang_refill: Refill = Refill()
    reset_refill: Refill = Refill()


@dataclass(frozen=True, kw_only=True)
class FailureRules(Group):
    """The user's rules for failures.

    Attributes:
        terminal_exit_codes, retryable_exit_codes: a code of the first, or one that is not in the second where that is not
            empty, ends the job without a retry.
        end_rules: the user's own rules for how an end is answered.
        failover_extension: `module::Class` that decides first; "" is none.
    """

    limits: ClassVar = {"end_rules": (0, RULES)}

    terminal_exit_codes: tuple[int, ...] = ()
    retryable_exit_codes: tuple[int, ...] = ()
    end_rules: tuple[EndRule, ...] = ()
    failover_extension: str = ""


@dataclass(frozen=True, kw_only=True)
class LogSettings(Group):
    """Logs of the workers.

    Attributes:
        log_dir: folder of the logs of the ranks; "" is inside the job's own folder.
        redirects, tee: `0` none, `1` stdout, `2` stderr, `3` both, as torchrun numbers them.
        log_tail: lines of a culprit's log kept with its incident.
    """

    log_dir: str = ""
    redirects: int = 3
    tee: int = 0
    log_tail: int = 20


@dataclass(frozen=True, kw_only=True)
class RendezvousSettings(Group):
    """How agents and coordinator form rounds.

    Attributes:
        join_timeout: how long a round may wait for `min_nodes`, counted from the first request for it.
        last_call: how long a round that has `min_nodes` still waits for `max_nodes`.
        node_lease: an agent that sends nothing for this long is lost.
        fence_timeout: an agent that reaches no coordinator for this long stops its workers.
        coordinator_port: 0 takes a free one.
        report_interval: period of an agent's reports of progress while nothing happens.
        service_type: protocol between agents and coordinator: `grpc`, `http`; "" is gRPC wherever both ends have grpcio, and
            HTTP elsewhere, with a line in the log.
    """

    join_timeout: float = 600.0
    last_call: float = 30.0
    node_lease: float = 3.0
    fence_timeout: float = 600.0
    coordinator_port: int = 0
    report_interval: float = 1.0
    service_type: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(Group):
    """How workers start and end.

    Attributes:
        standbys: forks of a node's zygote that wait, warm, to become workers; 0 is none, None as many as `nproc_per_node`.
        preload: modules that the zygote imports beside torch and what it learns from the script.
        start_method: `fork` is by the zygote, `spawn` and `forkserver` start every worker as a program; "" leaves the choice to
            the agent.
        stop_grace: seconds from SIGTERM to SIGKILL when workers are stopped.
        exit_grace: seconds that a finished worker has for the teardown of its interpreter; its own status counts. 0 is off.
        virtual_local_rank: LOCAL_RANK is 0 in every worker, and each sees its own GPU alone, as torchrun's flag has it.
        numa_binding: workers are bound to the CPUs near their GPU: `node`, `socket`, `exclusive`, `core-complex`; "" is not.
    """

    standbys: int | None = None
    preload: tuple[str, ...] = ()
    start_method: str = ""
    stop_grace: float = 10.0
    exit_grace: float = 10.0
    virtual_local_rank: bool = False
    numa_binding: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Group):
    """Devices of a node.

    Attributes:
        accelerator: kind of the devices: `nvidia.com/gpu`, `ascend-npu` or `cpu`.
        xpu_type: tools that measure how busy they are: `nvidia` or `ascend`.
        training_port: first port of the search for a range of free ports for the workers, the same on all nodes; for
            `ascend-npu` alone.
        auto_config: each node has as many workers as it has devices, where it has any, in the place of `nproc_per_node`.
    """

    accelerator: str = "nvidia.com/gpu"
    xpu_type: str = "nvidia"
    training_port: int = 60000
    auto_config: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One role of a job, ready to run.

    The fields of its groups and sections stand flat in JSON; `sections.build` and `sections.replaced` take them flat.

    Attributes:
        version: of this form.
        name: the job's name; `role` the role's.
        digest: names the spec: equal specs have equal digests.
        kind: who makes its pods.
        min_nodes, max_nodes, node_unit: the world is a multiple of `node_unit` nodes within these bounds.
        nproc_per_node: workers per node.
        entry, entrypoint, args: what each worker runs.
        env: added to each worker's environment.
        hidden: secrets that others must not see, beside those that a variable of `env` notes (wire/masked.py).
        workdir: where workers are started; "" is where the agent is.
        setup: shell commands, run in their order by one `sh -e` once per node, in `workdir`, before the node's first round.
            Their shell has `env` and, as a training operator would set them, WORLD_SIZE (`max_nodes`), RANK (the slot),
            MASTER_ADDR and MASTER_PORT. Workers start in the folder and with the exported variables that it ends with: `cd` and
            `export` count.
        checkpoint_dir: told to workers as RALLYPOINT_CHECKPOINT_DIR; "" when the job names none.
        profile: whose rules hold.
        lease: a job that nobody has supervised for so long applies its `orphan_policy`.
        scheduling: MindCluster's settings; None in the other profiles.
        tls: how the parts of the job secure their connections: `auto`, `secret:NAME`; "" does not (wire/tls.py).
        network_policy: "" creates no NetworkPolicy; `on`, or the networks of the API server, separated by commas.
        insecure_token: agents that another controller's pods start do without a secret.
        rpc_pickle: calls between roles may contain pickles.
        job: the job that this is the elastic role of; "" for a job of its own.
        queue_group, queue_group_total: of an elastic role of a job in a Kueue queue: the pod group of that job, its size.
        place, place_claim: of an elastic role in a group of roles: beginning of the label of the pods of one machine, and of
            the name of the claim of their devices; the number of the node comes on top.
        node_group: label of machines; nodes on machines with the same value of it are replaced together; "" is off.
        roles: of a job with several or simple ones, as JSON (wire/role_plans.py); all other fields then hold for the whole job.
        grace: periods of the supervisor.
        budgets: limits of recovery.
        failures: rules for failures.
        logs: logs of the workers.
        rendezvous: how agents and coordinator form rounds.
        workers: how workers start and end.
        devices: devices of a node.
        sections: settings of optional capabilities (wire/sections.py).
    """

    neighbours: ClassVar[bool] = True

    limits: ClassVar = {
        "min_nodes": (0, MAX_NODES),
        "max_nodes": (0, MAX_NODES),
        "node_unit": (0, MAX_NODES),
        "nproc_per_node": (0, MAX_WORKERS),
        "roles": (0, ROLES),
        "hidden": (0, HIDDEN),
    }

    version: int = PLAN_VERSION
    name: str
    role: str
    digest: str = ""
    kind: Kind = Kind.PODS
    min_nodes: int
    max_nodes: int
    node_unit: int = 1
    nproc_per_node: int = 1
    entry: Entry
    entrypoint: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    workdir: str = ""
    setup: tuple[str, ...] = ()
    checkpoint_dir: str = ""
    profile: Profile = Profile.LADDER
    lease: float = 3600.0
    orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE
    scheduling: Scheduling | None = None
    insecure_token: bool = False
    tls: str = ""
    network_policy: str = ""
    rpc_pickle: bool = False
    job: str = ""
    queue_group: str = ""
    queue_group_total: int = 0
    place: str = ""
    place_claim: str = ""
    node_group: str = ""
    roles: tuple[dict[str, Any], ...] = ()
    grace: GracePeriods = GracePeriods()
    budgets: Budgets = Budgets()
    failures: FailureRules = FailureRules()
    logs: LogSettings = LogSettings()
    rendezvous: RendezvousSettings = RendezvousSettings()
    workers: WorkerSettings = WorkerSettings()
    devices: DeviceSettings = DeviceSettings()
    sections: Sections = NO_SECTIONS
