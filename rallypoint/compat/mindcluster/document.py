"""MindCluster in the job document: its block, its labels and annotations, and its defaults. Pure.

A label or annotation sets a field of the block; without either, the field has MindCluster's default.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from rallypoint.compat.mindcluster import script
from rallypoint.compat.mindcluster.script import LABEL, Variant, recovery_environment, recovery_labels
from rallypoint.job.duration import format_duration
from rallypoint.job.errors import Problem, Step, dotted, show
from rallypoint.job.part import Model
from rallypoint.job.profiles import Key
from rallypoint.job.role import Role
from rallypoint.job.rules import FLAG, MOST_RESETS, Rule, choice, duration, whole
from rallypoint.job.values import RefusedError, read_text
from rallypoint.wire.plan import Plan, Scheduling

__all__ = [
    "ANNOTATIONS",
    "BLOCK",
    "CHOSEN",
    "DEFAULTS",
    "LABELS",
    "LATER",
    "MODEL",
    "NOTE",
    "PROCESS_LEVEL",
    "STRATEGIES",
    "SUMMARY",
    "TITLE",
    "WAIT_VARIABLE",
    "WITHOUT_EFFECT",
    "Fields",
    "MindCluster",
    "added_labels",
    "block_defaults",
    "defaults",
    "derived",
    "elastic_wait",
    "environment",
    "plan_fields",
    "problems",
    "scheduling",
    "warnings",
    "why_unread",
]

#: The words of recover-strategy, in the order in which MindCluster tries them.
STRATEGIES = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")

#: Those that recover single processes: they need `fault-scheduling: grace`.
PROCESS_LEVEL = ("retry", "recover-in-place", "recover")

#: Seconds that MindIO waits for the platform; elastic training waits ten less. Only these bounds are taken for a wish.
WAIT_VARIABLE = "MINDIO_WAIT_MINDX_TIME"
_WAIT_LEAST, _WAIT_MOST, _WAIT_MARGIN = 10, 3600, 10


def _read_strategies(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        words = [word.strip() for word in read_text(value).split(",")] if value.strip() else []
    elif isinstance(value, (list, tuple)):
        words = [read_text(word).strip() for word in value]
    else:
        raise RefusedError
    for word in words:
        if word not in STRATEGIES:
            raise RefusedError(f"some of {', '.join(STRATEGIES)}, as a list or separated by commas; {word!r} is unknown")
    return tuple(word for word in STRATEGIES if word in words)


_STRATEGY = Rule(
    kind="list of strategies",
    allowed=f"some of {', '.join(STRATEGIES)}, as a list or separated by commas",
    read=_read_strategies,
    write=list,
    schema={"anyOf": [{"type": "string"}, {"type": "array", "items": {"enum": list(STRATEGIES)}}]},
)


def _read_hot_reset(value: object) -> int:
    found: int = _RESETS.read(value)
    if found == 1:
        raise RefusedError("2, 0 or -1 (MindCluster no longer supports 1, graceful fault tolerance)")
    return found


_RESETS = whole(-1, 2)
_HOT_RESET = Rule(
    kind="whole number",
    allowed="one of -1, 0, 2",
    read=_read_hot_reset,
    schema={"enum": [-1, 0, 2]},
)


def _read_reset_file(value: object) -> str:
    text = read_text(value)
    if text and not text.startswith("/"):
        raise RefusedError
    return text


_RESET_FILE = Rule(
    kind="path",
    allowed="an absolute path, or '' to disable it",
    read=_read_reset_file,
    schema={"type": "string", "pattern": "^(/.*)?$"},
)
_FRAMEWORK = choice("pytorch", "mindspore")
_SCHEDULING = choice("grace", "force", "off")
_RECOVER = choice("on", "pause", "off")
_RETRIES = whole(0, 32767, unit="restarts")
_BACKOFF = whole(0, unit="restarts")
_WAIT = duration(least=30.0, most=270.0)


class MindCluster(Model):
    """Settings of the profile `mindcluster`. Labels and annotations of MindCluster also set these fields."""

    fault_scheduling: Annotated[str, _SCHEDULING] = "off"
    """How pods are deleted after a fault: `grace`: with their grace period; `force`: at once; `off`: not at all."""
    pod_rescheduling: Annotated[bool, FLAG] = False
    """True: only the faulty pods are replaced. The label `pod-rescheduling` sets this field; only its value `on` means true."""
    process_recover: Annotated[str, _RECOVER] = "off"
    """`on`: Rallypoint may restart a failed process without the other processes; `pause` or `off`: Rallypoint never does this.
    `on` is the default if `recover_strategy` is set.
    """
    recover_strategy: Annotated[tuple[str, ...], _STRATEGY] = ()
    """Names of the recovery strategies that may be used; their order has no effect."""
    fault_retry_times: Annotated[int, _RETRIES] = 0
    """How often the job may restart because a container failed. Restarts after hardware faults do not count."""
    backoff_limit: Annotated[int, _BACKOFF] = 0
    """How often the job may restart because of faults of any kind (`runPolicy.backoffLimit`); 0: no limit."""
    wait_reschedule_timeout: Annotated[float, _WAIT] = 270.0
    """Time in which a replacement pod must start to run; afterwards, the next recovery strategy is used."""
    grace_over_time: Annotated[float, duration(least=2.0, most=3600.0)] = 900.0
    """Time after which a pod that is still terminating is deleted by force."""
    pending_rounds: Annotated[int, whole(1, unit="checks")] = 12
    """After this number of checks that found a replacement pod pending, all pods are deleted and created again."""
    pending_interval: Annotated[float, duration(positive=True)] = 1.0
    """Time between two checks for pending replacement pods."""
    elastic_wait: Annotated[float, duration()] = 20.0
    """How long the recovery strategy `elastic-training` waits for the replacement of a lost pod. Default: the environment
    variable MINDIO_WAIT_MINDX_TIME in `env` of a role, minus 10s.
    """
    graceful_tolerance: Annotated[bool, FLAG] = False
    """True: MindCluster's graceful fault tolerance is on. If `process_recover` is also `on`, all pods are deleted and created
    again after every fault.
    """
    reset_file: Annotated[str, _RESET_FILE] = Scheduling.reset_file
    """Path of MindCluster's reset file in the pod; an entry in this file can also switch graceful fault tolerance on."""
    never_upgrade: Annotated[bool, FLAG] = False
    """True: if replacement pods stay pending, only these pods are deleted and created again, never all pods of the job."""
    framework: Annotated[str, _FRAMEWORK] = "pytorch"
    """Framework whose environment variables the workers get. The label `framework` sets this field."""
    variables: Annotated[str, choice(*(variant.value for variant in Variant))] = Variant.DOCUMENTED.value
    """Source of the workers' environment variables: `documented`: MindCluster's documentation; `operator`: the code of
    MindCluster's operator. The sources differ in the variables for the strategy `exit` and for the watchdog of collectives.
    """
    hot_reset: Annotated[int, _HOT_RESET] = -1
    """Value of hotReset, a setting of MindCluster's device plugin: -1, 0 or 2. Rallypoint checks and stores the value, but
    resets no devices.
    """


def _ruled(field: str, rule: Rule) -> Key:
    return Key(field=field, allowed=rule.allowed, read=rule.read)


def _read_wait(text: str) -> float:
    # MindCluster reads a number and takes its default for anything else: "4m" would mean another thing there.
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(_WAIT.read(text))
    raise RefusedError


def _read_path(text: str) -> bool:
    if text == "pod":
        return True
    raise RefusedError


LABELS: Mapping[str, Key] = {
    "fault-scheduling": _ruled("fault_scheduling", _SCHEDULING),
    "pod-rescheduling": Key(field="pod_rescheduling", allowed="on; any other value means off", read=lambda text: text == "on"),
    "process-recover-enable": _ruled("process_recover", _RECOVER),
    "fault-retry-times": _ruled("fault_retry_times", _RETRIES),
    # Many a job has a label of this name: it chooses no profile, and is read where another word did.
    "framework": dataclasses.replace(_ruled("framework", _FRAMEWORK), chooses=False),
}
ANNOTATIONS: Mapping[str, Key] = {
    "recover-strategy": _ruled("recover_strategy", _STRATEGY),
    "wait-reschedule-timeout": Key(
        field="wait_reschedule_timeout", allowed="a whole number of seconds from 30 to 270", read=_read_wait
    ),
    "huawei.com/recover_policy_path": Key(
        field="never_upgrade", allowed="pod; otherwise, omit the annotation", read=_read_path
    ),
}


#: Words of MindCluster that are not built: by name, the texts that change nothing, and why the others are refused.
_NOT_BUILT: Mapping[str, tuple[frozenset[str], str]] = {
    "subHealthyStrategy": (
        frozenset({"ignore"}),
        "ignore (no device here reports sub-health, so graceExit, forceExit and hotSwitch have no effect)",
    ),
    "ProcessRecoverStrategy": (
        frozenset(),
        "no annotation (no platform decides for the job here)",
    ),
}

#: How alike a key must be to a name to be taken for a slip of it.
_ALIKE = 0.8


def why_unread(key: str, text: str) -> str:
    """Return why a label or annotation is refused that is none of those read here; "" for one that is somebody else's."""
    if key in LABELS or key in ANNOTATIONS:
        return ""
    if key in _NOT_BUILT:
        harmless, allowed = _NOT_BUILT[key]
        return "" if text in harmless else f"{show(text)} is not allowed; expected {allowed}"
    names = {name.lower(): name for name in (*LABELS, *ANNOTATIONS, *_NOT_BUILT) if name != "framework"}
    near = difflib.get_close_matches(key.lower().replace("_", "-"), names, n=1, cutoff=_ALIKE)
    return f"is not a known MindCluster name; did you mean {names[near[0]]!r}?" if near else ""


def derived(block: MindCluster, given: set[str], roles: Iterable[Role], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that follow from other fields and from the roles, without those that are `given`."""
    roles, found = tuple(roles), dict[str, Any]()
    graceful = block.fault_scheduling == "grace"
    asked = tuple(word for word in script.wanted(roles) if graceful or word not in PROCESS_LEVEL)
    if "recover_strategy" not in given and asked:
        found["recover_strategy"] = asked
    strategy = _text(found.get("recover_strategy", block.recover_strategy), annotations.get("recover-strategy"))
    if "process_recover" not in given and recovery_labels(strategy, variant=Variant(block.variables)):
        found["process_recover"] = "on"
    wait = elastic_wait(role.env[WAIT_VARIABLE] for role in roles if WAIT_VARIABLE in role.env)
    if "elastic_wait" not in given and wait is not None:
        found["elastic_wait"] = wait
    return found


def _text(words: tuple[str, ...], annotation: str | None = None) -> str | None:
    return ",".join(words) or annotation


def elastic_wait(texts: Iterator[str]) -> float | None:
    """Return the longest wait, in seconds, that values of MINDIO_WAIT_MINDX_TIME ask for, or None where none counts."""
    numbers = [int(text) for text in texts if re.fullmatch(r"\d{1,9}", text, re.ASCII)]
    waits = [float(number - _WAIT_MARGIN) for number in numbers if _WAIT_LEAST <= number <= _WAIT_MOST]
    return max(waits, default=None)


def added_labels(block: MindCluster) -> dict[str, str]:
    """Return the label that a job gets if its processes may be recovered one by one."""
    return {LABEL: "on"} if block.process_recover == "on" else {}


def environment(block: MindCluster, role: Role) -> dict[str, str]:
    """Return the variables that tell the workers of the strategy; what the role gives itself is not among them."""
    found = recovery_environment(
        _text(block.recover_strategy),
        framework=block.framework,
        pod_rescheduling="on" if block.pod_rescheduling else "",
        variant=Variant(block.variables),
    )
    return {name: text for name, text in found.items() if script.variable(role, name) is None}


#: What no part of this product reports, by the strategy that would answer it.
_NOT_REPORTED: Mapping[str, str] = {
    "retry": "device memory faults (type 0); failed steps are retried",
    "recover-in-place": "device faults (levels RestartRequest, RestartBusiness); processes that exit or raise are replaced",
}


def warnings(plan: Plan) -> Iterator[str]:
    """Yield the faults that no part of this product reports, for each strategy of a job that would answer them."""
    for word in () if plan.scheduling is None else plan.scheduling.recover_strategy:
        if word in _NOT_REPORTED:
            yield f"recover-strategy {word}: nothing here reports {_NOT_REPORTED[word]}"


_UNPLANNED = ("framework", "variables", "hot_reset")


def scheduling(block: MindCluster, role: Role) -> Scheduling:
    """Return the block as the plan of a role has it."""
    fields = {name: getattr(block, name) for name in MindCluster.model_fields if name not in _UNPLANNED}
    return Scheduling(**fields, switched_off=script.switched_off(role))


# --- the profile (`rallypoint.job.profiles.ProfileSpec`) -------------------------------------------------------------------


class Fields(Model):
    """The field of the job for the block."""

    mindcluster: MindCluster = MindCluster()
    """Settings of the profile `mindcluster`; labels and annotations of MindCluster also set these fields."""


BLOCK, MODEL = "mindcluster", MindCluster

#: Fields of the block that jobs of earlier versions had not.
LATER = ("framework", "variables", "hot_reset", "backoff_limit")

#: Settings of other profiles that MindCluster's scheduler does not have, and what to give in their place.
WITHOUT_EFFECT: Mapping[str, str] = {
    "fault_tolerance.forceful_deletion_grace_period": "set mindcluster.grace_over_time",
    "recovery.replace_delay": "the scheduler replaces a lost pod at once",
}

DEFAULTS: Mapping[str, Any] = {
    "fault_tolerance.retry_limit": 0,
    "fault_tolerance.no_progress_limit": 0,
    "recovery.max_restarts": 32767,
    "recovery.node_replacements": 0,
    # It reports less often: three reports fit into a lease, as elsewhere.
    "health.node_lease": 15.0,
    "health.report_interval": 5.0,
}

SUMMARY = "the rules by which the scheduler of Ascend MindCluster reacts to faults (see [the rules](../guides/mindcluster.md))"
TITLE = "MindCluster"
CHOSEN = """\
A job that sets no profile gets the profile `mindcluster` if it has a label or annotation of MindCluster (except the label
`framework`) or the block `mindcluster`; in a job with another profile, such a label, annotation or block is an error."""
NOTE = """\
With the profile `mindcluster`, the value of the label `fault-retry-times` (at most 32,767) is also the default of \
`fault_tolerance.retry_limit` and `recovery.node_replacements`."""


def defaults(block: MindCluster) -> dict[str, Any]:
    """Return the defaults that differ from those of `ladder`; two of them follow `fault_retry_times`."""
    times = block.fault_retry_times
    follow = {"fault_tolerance.retry_limit": min(times, MOST_RESETS), "recovery.node_replacements": times}
    return {**DEFAULTS, **follow}


def block_defaults(job: Any) -> dict[str, Any]:
    """Return the default of each field of the block."""
    block: MindCluster = job.mindcluster
    # A given strategy is no default, but fields that follow from it are.
    follow = derived(block, {"recover_strategy"} & block.model_fields_set, job.roles, job.annotations)
    return {**dict(MindCluster()), **follow}


def plan_fields(block: MindCluster, role: Role, retry_limit: int) -> dict[str, Any]:
    """Return the fields of a role's plan; `env` has lower priority than the role's own.

    `fault_retry_times` may be more resets than a job file may give as its `retry_limit`, and then counts in full.
    """
    times = block.fault_retry_times
    resets = {"retry_limit": times} if retry_limit == min(times, MOST_RESETS) else {}
    return {"scheduling": scheduling(block, role), "env": environment(block, role), **resets}


def problems(job: Any, place: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> Iterator[Problem]:
    """Yield what the profile does not allow in a job; `place` as in `Shape`."""
    block: MindCluster = job.mindcluster
    graceful = block.fault_scheduling == "grace"
    needy = [word for word in block.recover_strategy if word in PROCESS_LEVEL]
    if needy and not graceful:
        where = "labels.fault-scheduling" if "fault-scheduling" in job.labels else "mindcluster.fault_scheduling"
        strategies = ", ".join(needy)
        yield Problem(
            path=where,
            text=f"{show(block.fault_scheduling)} is not allowed with the recovery strategies {strategies}; expected 'grace'",
        )
    stop = job.recovery.stop_grace_period
    if graceful and not 0 < stop < block.grace_over_time:
        period, most = show(format_duration(stop)), format_duration(block.grace_over_time)
        yield Problem(
            path="recovery.stop_grace_period",
            text=f"{period} is not allowed; expected more than 0s and less than mindcluster.grace_over_time ({most})",
        )
    strategy = ",".join(block.recover_strategy) if "recover_strategy" in block.model_fields_set else None
    for index, role in enumerate(job.roles):
        for field, text in script.wrong(role, strategy):
            yield Problem(path=dotted(place(("roles", index, *field.split(".")))), text=text)
