"""The policy blocks of a job. Every field takes effect: it is carried into the plan that agents and supervisors read.

The defaults here are those of the profile `ladder`; what other profiles set instead stands in profiles.py.
"""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import model_validator
from typing_extensions import Self

from rallypoint.job.duration import DurationError, format_duration, parse_duration
from rallypoint.job.endings import CODES, EndingRule
from rallypoint.job.part import Model, extended
from rallypoint.job.rules import (
    ARGUMENT,
    FLAG,
    LIST,
    MOST_RESETS,
    PATH,
    Rule,
    choice,
    duration,
    one_of,
    refusal,
    whole,
)
from rallypoint.job.values import MODULE, RefusedError, read_flag, read_text, read_whole
from rallypoint.wire.node_range import MAX_WORKERS
from rallypoint.wire.plan import (
    RULES,
    Budgets,
    DeviceSettings,
    GracePeriods,
    OrphanPolicy,
    Plan,
    RendezvousSettings,
    WorkerSettings,
)
from rallypoint.wire.pre_check import BUILT_IN_MODULE, NO_PRE_CHECK, PreCheckOp

__all__ = [
    "NOTHING",
    "PRE_CHECK_OPS",
    "BudgetRefill",
    "FaultTolerance",
    "Health",
    "Logs",
    "Recovery",
    "Refills",
    "Rendezvous",
    "effective",
]

_CLASS = re.compile(r"[^\W\d]\w*")
_ALLOWED = (
    'a list of (module, class, enabled), such as [("my.checks", "DiskCheck", True)]; a class whose enabled is false is skipped'
)

#: DLRover's default: an operator without effect.
NOTHING = (PreCheckOp(module=BUILT_IN_MODULE, name=NO_PRE_CHECK),)


def effective(ops: Sequence[PreCheckOp]) -> tuple[PreCheckOp, ...]:
    """Return the operators without those that find nothing: a job that has no other starts no process for them."""
    return tuple(op for op in ops if (op.module, op.name) != (BUILT_IN_MODULE, NO_PRE_CHECK))


def _read(value: object) -> tuple[PreCheckOp, ...]:
    found = _literal(value) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)):
        raise RefusedError
    return tuple(_entry(entry, index) for index, entry in enumerate(found))


def _literal(text: str) -> object:
    if not text.strip():
        return ()
    try:
        return ast.literal_eval(read_text(text).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:  # `TypeError`: a set of lists
        raise RefusedError from error


def _entry(entry: object, index: int) -> PreCheckOp:
    if isinstance(entry, PreCheckOp):
        return entry
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        raise RefusedError(f"{_ALLOWED}. Entry {index} of the list is {entry!r}")
    module, name, enabled = entry
    if not isinstance(module, str) or not MODULE.fullmatch(module):
        raise RefusedError(f"{_ALLOWED}. Entry {index} of the list has the module {module!r}, which is not a dotted name")
    if not isinstance(name, str) or not _CLASS.fullmatch(name):
        raise RefusedError(f"{_ALLOWED}. Entry {index} of the list has the class {name!r}, which is not a class name")
    try:
        return PreCheckOp(module=module, name=name, enabled=read_flag(enabled))
    except RefusedError:
        raise RefusedError(
            f"{_ALLOWED}. Entry {index} of the list has the value {enabled!r} for enabled, which must be true or false"
        ) from None


PRE_CHECK_OPS = Rule(
    kind="list of (module, class, enabled)",
    allowed=_ALLOWED,
    read=_read,
    write=lambda ops: [[op.module, op.name, op.enabled] for op in ops],
    schema={
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "items": {
                    "type": "array",
                    "prefixItems": [{"type": "string"}, {"type": "string"}, {"type": ["boolean", "string"]}],
                    "minItems": 3,
                    "maxItems": 3,
                },
            },
        ]
    },
)


_GRACE = duration(most=86400.0)
_PERIOD = duration()
_TIMEOUT = duration(positive=True)
_STREAMS = choice("none", "stdout", "stderr", "both")

#: Protocols between agents and coordinator.
SERVICE_TYPE = choice("grpc", "http")


def _read_extension(value: object) -> str:
    text = read_text(value)
    if not text or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*::[^\W\d]\w*", text):
        return text
    raise RefusedError


_EXTENSION = Rule(
    kind="module::Class",
    allowed="module::Class, with a dotted module and the name of a class in it",
    read=_read_extension,
    schema={"type": "string", "pattern": "^([^:\\s]+::[^:\\s]+)?$"},
)


def _read_minutes(value: object) -> float:
    try:
        minutes = read_whole(value)
    except RefusedError:
        return _read_with_unit(value)
    if minutes < 0:
        raise RefusedError
    return minutes * 60.0


def _read_with_unit(value: object) -> float:
    # A bare number that is not whole would be seconds to a duration, and minutes to whoever wrote it.
    if not isinstance(value, dt.timedelta) and not (isinstance(value, str) and value[-1:].isalpha()):
        raise RefusedError
    try:
        return parse_duration(value)
    except DurationError as error:
        raise RefusedError from error


_MINUTES = Rule(
    kind="minutes, or a duration",
    allowed="a whole number of minutes of 0 or more, or a duration with a unit such as 90s or 30m",
    read=_read_minutes,
    write=format_duration,
    schema={"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]},
    unit="minutes",
)


class FaultTolerance(Model):
    """How the supervisor reacts to failures of the whole job. Grace periods and pauses must be from 0s to 24h."""

    retry_limit: Annotated[int, whole(0, MOST_RESETS, unit="resets")] = Budgets.retry_limit
    """Maximum number of resets, that is, restarts of the whole job; a job has at most `retry_limit + 1` attempts."""
    admission_grace_period: Annotated[float, _GRACE] = GracePeriods.admission_grace
    """Maximum time from the start of an attempt until MIN nodes exist (profile `appwrapper`: all nodes)."""
    warmup_grace_period: Annotated[float, _GRACE] = GracePeriods.warmup_grace
    """Maximum time from the start of an attempt, or from the end of a round, until the ranks of the next round train."""
    failure_grace_period: Annotated[float, _GRACE] = GracePeriods.failure_grace
    """How long the job may have fewer than MIN nodes because nodes failed; afterwards, the job is reset."""
    retry_pause_period: Annotated[float, _GRACE] = GracePeriods.retry_pause
    """Pause between the deletion of a failed attempt and the start of the next attempt."""
    forceful_deletion_grace_period: Annotated[float, _GRACE] = GracePeriods.forceful_deletion_grace
    """How long the normal deletion of the job's objects may take; afterwards, they are deleted by force."""
    deletion_on_failure_grace_period: Annotated[float, _GRACE] = GracePeriods.deletion_on_failure_grace
    """How long the nodes of a failed job are kept for debugging."""
    success_ttl: Annotated[float, _TIMEOUT] = GracePeriods.success_ttl
    """How long the objects and files of a successful job are kept."""
    terminal_exit_codes: Annotated[tuple[int, ...], CODES] = ()
    """Exit codes of workers and pods after which the job fails without a further attempt."""
    retryable_exit_codes: Annotated[tuple[int, ...], CODES] = ()
    """If this list is set, the job fails without a further attempt after any exit code that is not in the list. After an
    exit code that is also in `terminal_exit_codes`, the job fails.
    """
    no_progress_limit: Annotated[int, whole(0, unit="attempts")] = Budgets.no_progress_limit
    """Number of attempts in a row that reach no new training step, after which the job fails; 0: no limit."""
    pending_timeout: Annotated[float, _PERIOD] = GracePeriods.pending_timeout
    """How long nodes may stay pending; `pending_fail_strategy` defines the reaction."""
    pending_fail_strategy: Annotated[int, one_of(-1, 0, 1, 2)] = GracePeriods.pending_fail_strategy
    """Reaction if nodes are pending after `pending_timeout`: -1: none; 0: a warning; 1: the job fails if fewer than MIN nodes
    run; 2: the job fails.
    """
    rules: Annotated[tuple[EndingRule, ...], LIST] = ()
    """Your own rules for exits of workers and nodes. The first rule that matches an exit defines the reaction."""
    dynamic_failover_extension: Annotated[str, _EXTENSION] = ""
    """Class in the training image that Rallypoint calls after each failure of a worker, before it checks rules and exit codes.
    """
    lease: Annotated[float, _TIMEOUT] = Plan.lease
    """Time without a supervisor after which `orphan_policy` applies."""
    orphan_policy: Annotated[str | None, choice(*(policy.value for policy in OrphanPolicy))] = None
    """Reaction when `lease` expires: `continue`: the training continues; `stop`: the job saves a checkpoint and ends. Default:
    `continue` for jobs from the CLI, `stop` for jobs from Airflow.
    """

    @model_validator(mode="after")
    def _has_few_rules(self) -> Self:
        if len(self.rules) <= RULES:
            return self
        raise refusal(f"at most {RULES} rules; there are {len(self.rules)}", at="rules", value=f"[{self.rules[0]!r}, ...]")


class BudgetRefill(Model):
    """When faults no longer count against a budget. By default, all faults of the attempt (resets: of the job) count."""

    window: Annotated[float, _PERIOD] = 0.0
    """Only faults that are not older than this time count; 0s: faults of any age count."""
    healthy_for: Annotated[float, _PERIOD] = 0.0
    """After this time of training without a fault, earlier faults no longer count; 0s: off."""
    on_checkpoint: Annotated[bool, FLAG] = False
    """True: faults from before the newest checkpoint do not count."""


class Refills(Model):
    """When faults no longer count against a budget, such as `max_restarts`."""

    process: BudgetRefill = BudgetRefill()
    """When failures of workers no longer count against `max_restarts`."""
    node: BudgetRefill = BudgetRefill()
    """When lost nodes no longer count against `node_replacements`."""
    hang: BudgetRefill = BudgetRefill()
    """When hangs no longer count against `max_hangs`."""
    reset: BudgetRefill = BudgetRefill()
    """When resets no longer count against `fault_tolerance.retry_limit`."""


class _Recovery(Model):
    """How single workers and nodes are restarted and replaced within one attempt."""

    other_names: ClassVar[Mapping[str, str]] = {"relaunch_on_worker_failure": "node_replacements"}

    max_restarts: Annotated[int, whole(0, unit="restarts")] = Budgets.max_restarts
    """Maximum number of worker restarts after failures of workers, within one attempt."""
    node_replacements: Annotated[int, whole(0, unit="replacements")] = Budgets.node_replacements
    """Maximum number of replacements of each node within one attempt (DLRover's name: `relaunch_on_worker_failure`)."""
    max_hangs: Annotated[int, whole(0, unit="restarts")] = Budgets.max_hangs
    """Maximum number of worker restarts after hangs, within one attempt."""
    replace_delay: Annotated[float, _PERIOD] = GracePeriods.replace_delay
    """Pause before a lost node is replaced."""
    stop_grace_period: Annotated[float, _PERIOD] = WorkerSettings.stop_grace
    """Time between SIGTERM and SIGKILL when workers are stopped."""
    exit_grace_period: Annotated[float, duration(most=86400.0)] = WorkerSettings.exit_grace
    """Time that a worker's process may keep running after its script has ended; then the agent kills it, and the exit code of
    the script counts. 0s: no limit.
    """
    standby: Annotated[int | None, whole(0, MAX_WORKERS, unit="standbys")] = None
    """Standby processes per node (docs/guides/warm-starts.md); 0 disables them. Default: one per worker."""
    preload: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """Modules that standby processes import, in addition to torch and the modules that the script imports."""
    start_method: Annotated[str | None, choice("fork", "spawn", "forkserver")] = None
    """`fork`: workers are forked from a process that has imported torch; other values: each worker starts as a new process."""
    refill: Refills = Refills()
    """When faults no longer count against a budget, such as `max_restarts`. Default: never."""


if TYPE_CHECKING:
    Recovery = _Recovery
else:
    Recovery = extended(_Recovery, "recovery")


class Rendezvous(Model):
    """How nodes form a round."""

    join_timeout: Annotated[float, _TIMEOUT] = RendezvousSettings.join_timeout
    """How long a rendezvous waits for the minimum number of nodes (MIN in `nodes: MIN:MAX`)."""
    last_call_timeout: Annotated[float, _PERIOD] = RendezvousSettings.last_call
    """How long a rendezvous with the minimum number of nodes (MIN) waits for further nodes, up to MAX."""
    fence_timeout: Annotated[float, _TIMEOUT] = RendezvousSettings.fence_timeout
    """Time after which an agent that cannot reach a coordinator stops its workers."""
    port: Annotated[int, whole(0, 65535)] = 0
    """Port of the coordinator; 0: a free port."""
    service_type: Annotated[str, SERVICE_TYPE] = ""
    """Protocol between agents and coordinator: `grpc` or `http`. Default: gRPC if grpcio is installed, otherwise HTTP."""
    training_port: Annotated[int, whole(1024, 65520)] = DeviceSettings.training_port
    """With `accelerator: ascend-npu`: port from which Rallypoint searches for free ports for the workers (an argument of
    DLRover).
    """


class _Health(Model):
    """How lost nodes, hangs and faulty nodes are detected."""

    other_names: ClassVar[Mapping[str, str]] = {"monitor_interval": "report_interval"}

    node_lease: Annotated[float, _TIMEOUT] = RendezvousSettings.node_lease
    """Time after which an agent that sends neither a health report nor a heartbeat counts as lost."""
    report_interval: Annotated[float, _TIMEOUT] = RendezvousSettings.report_interval
    """Time between two health reports of an agent (torchrun: `monitor_interval`); less than half of `node_lease`. The exit of a
    worker is reported at once. Between health reports, an agent sends heartbeats, at least once per second.
    """
    node_unreachable: Annotated[float, _GRACE] = 30.0
    """How long a pod stays on a Kubernetes node that is not ready or cannot be reached. Each pod gets this time in its
    tolerations (Kubernetes' default: 300s), unless the job's `tolerations` contain one for the same taint.
    """
    hang_downtime: Annotated[float, _MINUTES] = 1800.0
    """Time without a sign of life of any rank after which the job counts as hanging; a number without a unit is in minutes; 0:
    off.
    """
    hang_detection: Annotated[int, one_of(0, 1, 2)] = 1
    """Reaction to a hang: 0: a log line; 1: also an incident in the job's status; 2: also a restart of the workers."""
    hang_learning: Annotated[bool, FLAG] = True
    """True: the coordinator learns how long steps, checkpoints and other phases usually take. If no rank makes progress for
    longer than usual, the agents examine their workers; if the ranks provably cannot continue, this counts as a hang. False:
    only `hang_downtime` applies.
    """
    precheck: Annotated[int, one_of(0, 1, 2)] = 0
    """Node check before the training (an argument of DLRover): 0: none; 1: nodes are tested in pairs; 2: nodes are tested in
    pairs, then all good nodes together.
    """
    network_check: Annotated[bool, FLAG] = False
    """The same as `precheck: 1`."""
    comm_perf_test: Annotated[bool, FLAG] = False
    """The same as `precheck: 2`."""
    exclude_straggler: Annotated[bool, FLAG] = False
    """True: Rallypoint replaces nodes that take more than twice the median time in the node check; needs `precheck` 1 or 2."""
    precheck_timeout: Annotated[float, _TIMEOUT] = 300.0
    """Time limit of each test in the node check."""
    precheck_all_pairs: Annotated[bool, FLAG] = False
    """True: the node check tests every pair of nodes, to measure the bandwidth between all nodes; the check then takes longer,
    in proportion to the number of nodes.
    """
    precheck_only: Annotated[bool, FLAG] = False
    """True: the job ends after the node check, with the result of the check; needs `precheck` 1 or 2."""
    precheck_program: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """Your own test program for the node check, with its arguments (docs/guides/node-check.md)."""
    pre_check_ops: Annotated[tuple[PreCheckOp, ...], PRE_CHECK_OPS] = NOTHING
    """Classes that are called before the training (an argument of DLRover; docs/guides/pre-checks.md). A class with `enabled`
    false is skipped.
    """
    xpu_type: Annotated[str, choice("nvidia", "ascend")] = "nvidia"
    """Vendor of the devices, whose library the agent uses to measure their load (an argument of DLRover)."""

    @property
    def effective_pre_checks(self) -> tuple[PreCheckOp, ...]:
        """The operators without those that find nothing: a job that has no other starts no process for them."""
        return effective(self.pre_check_ops)

    @property
    def check_level(self) -> int:
        """The level of the node check, however it was asked for."""
        return max(self.precheck, 1 if self.network_check else 0, 2 if self.comm_perf_test else 0)

    @model_validator(mode="after")
    def _what_is_about_a_check_has_one(self) -> Self:
        for name in ("exclude_straggler", "precheck_all_pairs", "precheck_only", "precheck_program"):
            if getattr(self, name) and not self.check_level:
                value = "true" if getattr(self, name) is True else list(getattr(self, name))
                raise refusal(
                    "no value, because the job has no node check; to enable one, set precheck to 1 or 2, or set "
                    "network_check or comm_perf_test to true",
                    at=name,
                    value=value,
                )
        return self


if TYPE_CHECKING:
    Health = _Health
else:
    Health = extended(_Health, "health")


class Logs(Model):
    """How the output of each rank is stored."""

    dir: Annotated[str, PATH] = ""
    """Folder of the log files, relative to the folder of the job file. Default: the job's own folder."""
    redirects: Annotated[str, _STREAMS] = "both"
    """Output streams of the workers that the agent writes to files."""
    tee: Annotated[str, _STREAMS] = "none"
    """Output streams of the workers that the agent writes to files and also prints, each line with its rank."""
    tail_lines: Annotated[int, whole(1, 200, unit="lines")] = 20
    """Number of last log lines of a failed worker that the incident in the status contains."""
