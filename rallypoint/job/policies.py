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
_ALLOWED = 'a list of (module, class, true or false), such as [("my.checks", "DiskCheck", True)]; false bypasses the operator'

#: The default of DLRover's document: an operator that finds nothing.
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
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise RefusedError from error


def _entry(entry: object, index: int) -> PreCheckOp:
    if isinstance(entry, PreCheckOp):
        return entry
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        raise RefusedError(f"{_ALLOWED}. Entry {index} is {entry!r}")
    module, name, enabled = entry
    if not isinstance(module, str) or not MODULE.fullmatch(module):
        raise RefusedError(f"{_ALLOWED}. The module of entry {index} is {module!r}, not a dotted name")
    if not isinstance(name, str) or not _CLASS.fullmatch(name):
        raise RefusedError(f"{_ALLOWED}. The class of entry {index} is {name!r}, not a name")
    try:
        return PreCheckOp(module=module, name=name, enabled=read_flag(enabled))
    except RefusedError:
        raise RefusedError(f"{_ALLOWED}. The last item of entry {index} is {enabled!r}") from None


PRE_CHECK_OPS = Rule(
    kind="list of (module, class, true/false)",
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

#: How agents speak with their coordinator.
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
    """What a supervisor does about the job as a whole; grace periods and pauses are AppWrapper's, from 0s to 24h."""

    retry_limit: Annotated[int, whole(0, MOST_RESETS, unit="resets")] = Budgets.retry_limit
    """How often the whole job is reset and tried again; `retry_limit + 1` attempts at the most."""
    admission_grace_period: Annotated[float, _GRACE] = GracePeriods.admission_grace
    """Until every node exists, from the deployment of an attempt."""
    warmup_grace_period: Annotated[float, _GRACE] = GracePeriods.warmup_grace
    """Until the first round runs, from the deployment; or until one runs again, from when it stopped running."""
    failure_grace_period: Annotated[float, _GRACE] = GracePeriods.failure_grace
    """How long failed nodes that leave fewer than MIN are tolerated, from when the job became unhealthy."""
    retry_pause_period: Annotated[float, _GRACE] = GracePeriods.retry_pause
    """Pause between the end of deletion and the next attempt."""
    forceful_deletion_grace_period: Annotated[float, _GRACE] = GracePeriods.forceful_deletion_grace
    """A deletion that is not finished by then is forced."""
    deletion_on_failure_grace_period: Annotated[float, _GRACE] = GracePeriods.deletion_on_failure_grace
    """How long the nodes of a job that failed are kept for debugging."""
    success_ttl: Annotated[float, _TIMEOUT] = GracePeriods.success_ttl
    """What is left of a job that succeeded is deleted so long after its success."""
    terminal_exit_codes: Annotated[tuple[int, ...], CODES] = ()
    """A worker or pod that ends with one of these ends the job without a retry."""
    retryable_exit_codes: Annotated[tuple[int, ...], CODES] = ()
    """Where there are any, every other code ends the job without a retry. A code in both lists is terminal."""
    no_progress_limit: Annotated[int, whole(0, unit="attempts")] = Budgets.no_progress_limit
    """So many attempts in a row without a newer step end the job; 0 is off."""
    pending_timeout: Annotated[float, _PERIOD] = GracePeriods.pending_timeout
    """How long a node may stay pending, from when the first pending one exists; judged as `pending_fail_strategy` says."""
    pending_fail_strategy: Annotated[int, one_of(-1, 0, 1, 2)] = GracePeriods.pending_fail_strategy
    """What nodes pending beyond `pending_timeout` do: -1 no check, 0 a warning, 1 fail the job below MIN, 2 fail it anyway."""
    rules: Annotated[tuple[EndingRule, ...], LIST] = ()
    """Your own answers to ends, asked in their order and before all others."""
    dynamic_failover_extension: Annotated[str, _EXTENSION] = ""
    """A class in the training image that is asked first after each failure of a worker."""
    lease: Annotated[float, _TIMEOUT] = Plan.lease
    """A job that nobody has supervised for so long does what its `orphan_policy` says."""
    orphan_policy: Annotated[str | None, choice(*(policy.value for policy in OrphanPolicy))] = None
    """`continue`, or `stop`: save and end. Without it whoever submits decides: the CLI continues, an Airflow task stops."""

    @model_validator(mode="after")
    def _has_few_rules(self) -> Self:
        if len(self.rules) <= RULES:
            return self
        raise refusal(f"at most {RULES} rules; there are {len(self.rules)}", at="rules", value=f"[{self.rules[0]!r}, ...]")


class BudgetRefill(Model):
    """When the faults that a budget has paid for stop to count. All off is for life."""

    window: Annotated[float, _PERIOD] = 0.0
    """Only faults of so long ago count; 0s counts all."""
    healthy_for: Annotated[float, _PERIOD] = 0.0
    """After so long a time of healthy progress nothing before it counts; 0s is off."""
    on_checkpoint: Annotated[bool, FLAG] = False
    """Nothing before a newer checkpoint counts."""


class Refills(Model):
    """When each budget is refilled."""

    process: BudgetRefill = BudgetRefill()
    """That of `max_restarts`."""
    node: BudgetRefill = BudgetRefill()
    """That of `node_replacements`."""
    hang: BudgetRefill = BudgetRefill()
    """That of `max_hangs`."""
    reset: BudgetRefill = BudgetRefill()
    """That of `fault_tolerance.retry_limit`."""


class _Recovery(Model):
    """What is done about single workers and nodes within one attempt."""

    other_names: ClassVar[Mapping[str, str]] = {"relaunch_on_worker_failure": "node_replacements"}

    max_restarts: Annotated[int, whole(0, unit="restarts")] = Budgets.max_restarts
    """How often workers are restarted for process faults."""
    node_replacements: Annotated[int, whole(0, unit="replacements")] = Budgets.node_replacements
    """How often the node of one slot is replaced. DLRover's `relaunch_on_worker_failure` is another name of it."""
    max_hangs: Annotated[int, whole(0, unit="restarts")] = Budgets.max_hangs
    """How often workers are restarted after a hang (a collective that timed out), within one attempt."""
    replace_delay: Annotated[float, _PERIOD] = GracePeriods.replace_delay
    """Pause before a lost node is replaced."""
    stop_grace_period: Annotated[float, _PERIOD] = WorkerSettings.stop_grace
    """From TERM to KILL when workers are stopped."""
    exit_grace_period: Annotated[float, duration(most=86400.0)] = WorkerSettings.exit_grace
    """From the end of a worker's script and exit handlers to its KILL; its own exit status counts. 0s is off."""
    standby: Annotated[int | None, whole(0, MAX_WORKERS, unit="standbys")] = None
    """Standby processes per node (docs/guides/warm-starts.md); 0 disables them. Default: one per worker."""
    preload: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """Modules that they have imported beside torch and beside what is learned from the script."""
    start_method: Annotated[str | None, choice("fork", "spawn", "forkserver")] = None
    """`fork`: workers are forked from a preloaded process; other values: each is a new program. Default: `fork` if possible."""
    refill: Refills = Refills()
    """When the faults of each budget stop to count; by default never."""


if TYPE_CHECKING:
    Recovery = _Recovery
else:
    Recovery = extended(_Recovery, "recovery")


class Rendezvous(Model):
    """How nodes find each other."""

    join_timeout: Annotated[float, _TIMEOUT] = RendezvousSettings.join_timeout
    """How long a round may wait for MIN nodes, from when it is first asked for."""
    last_call_timeout: Annotated[float, _PERIOD] = RendezvousSettings.last_call
    """How long a round that has MIN nodes still waits for MAX."""
    fence_timeout: Annotated[float, _TIMEOUT] = RendezvousSettings.fence_timeout
    """An agent that reaches no coordinator for this long stops its workers."""
    port: Annotated[int, whole(0, 65535)] = 0
    """Where the coordinator listens; 0 takes a free port."""
    service_type: Annotated[str, SERVICE_TYPE] = ""
    """How agents speak with the coordinator: `grpc`, or `http`. Without it gRPC where grpcio is there, and else HTTP."""
    training_port: Annotated[int, whole(1024, 65520)] = DeviceSettings.training_port
    """From here on all nodes look for ports of the workers' own; for `accelerator: ascend-npu` alone (DLRover's argument)."""


class _Health(Model):
    """How the coordinator and the agents know of each other's life."""

    other_names: ClassVar[Mapping[str, str]] = {"monitor_interval": "report_interval"}

    node_lease: Annotated[float, _TIMEOUT] = RendezvousSettings.node_lease
    """An agent that says nothing for this long is lost."""
    report_interval: Annotated[float, _TIMEOUT] = RendezvousSettings.report_interval
    """Period of an agent's health reports while nothing happens (torchrun: `monitor_interval`); less than half of `node_lease`.
    A worker that ends is reported at once, whatever the period. Between reports the agent sends a heartbeat at least once per
    second, so a silent agent is detected within two seconds."""
    node_unreachable: Annotated[float, _GRACE] = 30.0
    """Kubernetes: how long a pod stays on a machine that is not ready or unreachable, as a toleration of all pods of the job
    (Kubernetes' own default is 300s). A toleration of such a taint among the job's own `tolerations` wins."""
    hang_downtime: Annotated[float, _MINUTES] = 1800.0
    """So long without a sign of life of any rank is a hang (DLRover's argument; a plain number is minutes); 0 is off."""
    hang_detection: Annotated[int, one_of(0, 1, 2)] = 1
    """What a hang leads to: 0 a line in the log, 1 an incident and nothing else, 2 the workers are restarted."""
    hang_learning: Annotated[bool, FLAG] = True
    """How long steps, waits for data, checkpoints and evaluations take is learned. A silence that is too long by that is
    notified, and is a hang where positive evidence is found. Without it `hang_downtime` is the only clock."""
    precheck: Annotated[int, one_of(0, 1, 2)] = 0
    """Nodes are checked before they train: 0 not at all, 1 in pairs, 2 and then all of them together (DLRover's argument)."""
    network_check: Annotated[bool, FLAG] = False
    """The same as `precheck: 1`."""
    comm_perf_test: Annotated[bool, FLAG] = False
    """The same as `precheck: 2`."""
    exclude_straggler: Annotated[bool, FLAG] = False
    """A node that takes more than twice the median in the check is replaced, as one at fault is; needs a check."""
    precheck_timeout: Annotated[float, _TIMEOUT] = 300.0
    """How long each test run of the node check may take."""
    precheck_all_pairs: Annotated[bool, FLAG] = False
    """Each node is tried with each other, for a whole matrix of bandwidths; as many rounds as there are nodes."""
    precheck_only: Annotated[bool, FLAG] = False
    """The job is nothing but its check, and its result what was found; needs a check."""
    precheck_program: Annotated[tuple[Annotated[str, ARGUMENT], ...], LIST] = ()
    """A probe of your own in the place of ours: a program and its arguments (docs/guides/node-check.md)."""
    pre_check_ops: Annotated[tuple[PreCheckOp, ...], PRE_CHECK_OPS] = NOTHING
    """Classes that are asked before training begins (DLRover's argument; docs/guides/pre-checks.md). `false` bypasses one."""
    xpu_type: Annotated[str, choice("nvidia", "ascend")] = "nvidia"
    """Whose tools say how busy a node's devices are (DLRover's argument)."""

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
    """Where the output of each rank goes."""

    dir: Annotated[str, PATH] = ""
    """Folder of the per-rank logs; without it they lie in the job's own folder. Relative to the job file."""
    redirects: Annotated[str, _STREAMS] = "both"
    """Streams that are captured to files."""
    tee: Annotated[str, _STREAMS] = "none"
    """Streams that are captured to files and shown by the agent, each line with its rank."""
    tail_lines: Annotated[int, whole(1, 200, unit="lines")] = 20
    """Lines of a failed worker's log that are kept with its incident."""
