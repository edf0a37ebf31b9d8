"""A written trace: what a supervisor would see of a job, second by second, so that a policy can be tried before it is used.

A trace is a list of steps in order of time. Each tells what changes; what it does not name stays as it was. The reader is
strict: a wrong word is a `WireError` that names the step, the value and what is allowed. The format is told in
docs/explanation/supervision.md.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.wire import codec
from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.codec import WireError
from rallypoint.wire.incident import FaultKind

__all__ = ["CreateFailure", "Makers", "Pod", "Step", "Trace", "letters", "read_trace"]

#: The letters of pods, and what else each says.
_LETTERS: Mapping[str, tuple[NodeState, Mapping[str, bool]]] = {
    "P": (NodeState.STARTING, {}),
    "G": (NodeState.STARTING, {"gated": True}),
    "N": (NodeState.STARTING, {"unschedulable": True}),
    "R": (NodeState.RUNNING, {}),
    "S": (NodeState.SUCCEEDED, {}),
    "F": (NodeState.FAILED, {}),
    "U": (NodeState.UNKNOWN, {}),
    "L": (NodeState.LOST, {}),
}
_SAME, _NONE = "=", "-"
_POD = re.compile(r"([PGNRSFUL=-])(\*?)(!?)(\*?)(?:\(([^()]*)\))?(?:x(\d{1,5}))?")
_BETWEEN = re.compile(r"[\s,+]*")
_PODS = (
    "pods such as RRP or R F(1): P pending, G gated, N unschedulable, R running, S succeeded, F failed, U unknown, "
    "L lost, - none, = as before; then * being deleted, ! on a flagged host, (exit codes or reason), xN repeated"
)


class Makers(str, enum.Enum):
    """Who makes the pods: `Policy.wrapped` in words."""

    SUPERVISOR = (
        "supervisor"  #: Rallypoint itself (local processes, kind `pods`); the component is the job's folder or ConfigMap
    )
    COMPONENTS = "components"  #: the controllers of wrapped components (a PyTorchJob, a batch Job)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod as a step tells it.

    Attributes:
        state: None means as before (`=`).
        node, attempt, incarnation: its place in the list, the current attempt and the incarnation that is wanted, unless told.
        host: `host-N` for slot N unless told.
        present: whether it still holds anything; True unless it is lost.
        exit_code, exit_codes, reason, log_tail, kind, deleting, gated, unschedulable, flagged: as in `NodeSeen`.
    """

    state: NodeState | None
    node: int | None = None
    attempt: int | None = None
    incarnation: int | None = None
    host: str | None = None
    present: bool | None = None
    exit_code: int | None = None
    exit_codes: tuple[int, ...] = ()
    reason: str = ""
    log_tail: tuple[str, ...] = ()
    kind: FaultKind | None = None
    deleting: bool = False
    gated: bool = False
    unschedulable: bool = False
    flagged: str = ""


@dataclass(frozen=True, kw_only=True)
class CreateFailure:
    """Creating does not work: of the nodes named (-1 is the coordinator), or of all. An empty `reason` ends it."""

    reason: str
    fatal: bool = False
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What changes at one moment.

    Attributes:
        at: seconds from the submission.
        note: for people.
        pods: everything that is there now, as text (`RRF(1)`) or as a list of such texts and objects; None leaves it.
        gone: nothing is left, neither pods nor component.
        component: `there`, `missing`, `deleting` or `failed`; `components` says it in numbers (deployed, failed, deleting).
        create_error: a reason, or an object (`reason`, `fatal`, `nodes`); "" lets creation work again.
        suspend: a person's wish; `quota` false is a queue's.
        delete: somebody deletes the job.
        policy: fields of the policy that are edited now.
        coordinator: its one pod, as a letter or an object; `-` is none.
        status: `auto` (it tells what the pods are doing), `silent`, `forming` or `running`.
        step, checkpoint: what the script reported.
        verdict: the coordinator's: `succeeded`, `failed` or an object of the wire's Verdict.
        incidents: faults that the coordinator tells (objects of the wire's Incident without `id`, with `node`, `local_rank`).
        startup, removal: a created pod runs, a removed one is gone, by itself so many seconds later; null waits to be told.
        away: no supervisor made a turn since the step before.
    """

    limits: ClassVar = {"step": WHOLE}

    at: float
    note: str = ""
    pods: Any = None
    gone: bool = False
    component: str | None = None
    components: dict[str, int] | None = None
    create_error: Any = None
    suspend: bool | None = None
    quota: bool | None = None
    delete: bool = False
    policy: dict[str, Any] | None = None
    coordinator: Any = None
    status: str | None = None
    step: int | None = None
    checkpoint: str | None = None
    verdict: Any = None
    incidents: tuple[dict[str, Any], ...] = ()
    startup: float | None = None
    removal: float | None = None
    away: bool = False

    @property
    def pod_list(self) -> tuple[Pod | None, ...] | None:
        """The pods by slot; None in the tuple is a slot without one. None where the step does not name pods."""
        return None if self.pods is None else tuple(_read_pods(self.pods, "pods"))

    @property
    def coordinator_pod(self) -> Pod | None:
        """The coordinator's pod, None where there is none (or the step does not name it: see `coordinator`)."""
        told = tuple(_read_pods(self.coordinator, "coordinator"))
        return told[0] if told else None

    @property
    def failure(self) -> CreateFailure | None:
        """How creation fails from now on; None where the step does not say."""
        return None if self.create_error is None else _read_failure(self.create_error, "create_error")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A whole trace.

    Attributes:
        description: for people.
        makers: who makes the pods; None is what the policy says.
        components: how many objects the job is made of.
        startup, removal: see `Step`; None waits to be told.
        until: the simulation goes on to this second, on the clocks alone; 0 ends it with the last step.
    """

    description: str = ""
    makers: Makers | None = None
    components: int = 1
    startup: float | None = None
    removal: float | None = None
    until: float = 0.0
    steps: tuple[Step, ...] = field(default_factory=tuple)


def letters(nodes: Iterable[NodeSeen]) -> str:
    """Return nodes as a trace tells them, in their order: `RRPF(1)`."""
    return "".join(_spelled(node) for node in sorted(nodes, key=lambda n: (n.node, n.incarnation)))


def _spelled(node: NodeSeen) -> str:
    states = {state: letter for letter, (state, more) in _LETTERS.items() if not more}
    letter = "G" if node.gated else "N" if node.unschedulable else states.get(node.state, "R")
    codes = node.exit_codes or (() if node.exit_code is None else (node.exit_code,))
    inside = " ".join([*map(str, codes), *([node.kind.value] if node.kind else [])])
    ended = f"({inside})" if inside and node.state is not NodeState.SUCCEEDED else ""
    deleting = node.deleting or node.state is NodeState.ENDING
    return f"{letter}{'*' if deleting else ''}{'!' if node.flagged else ''}{ended}"


def read_trace(data: Any) -> Trace:
    """Read a trace from plain values: an object, or a list of steps alone; raises `WireError`."""
    trace = codec.from_json(Trace, {"steps": data} if isinstance(data, list) else data)
    if trace.components < 1:
        raise WireError("components", trace.components, "1 or more components of the job")
    _check_times(trace)
    for index, step in enumerate(trace.steps):
        _check_step(step, f"steps[{index}]")
    return trace


def _check_times(trace: Trace) -> None:
    for name in ("startup", "removal", "until"):
        _check_natural(getattr(trace, name), name)
    for index, step in enumerate(trace.steps):
        _check_natural(step.at, f"steps[{index}].at")
    for index, (before, step) in enumerate(itertools.pairwise(trace.steps), start=1):
        if step.at < before.at:
            raise WireError(f"steps[{index}].at", step.at, f"{before.at:g} or later, because steps must be in time order")


def _check_natural(value: float | None, path: str) -> None:
    if value is not None and not 0 <= value < float("inf"):
        raise WireError(path, value, "0 or more seconds")


_WORDS = {
    "component": ("there", "missing", "deleting", "failed"),
    "status": ("auto", "silent", "forming", "running"),
}


def _check_step(step: Step, path: str) -> None:
    for name, allowed in _WORDS.items():
        value = getattr(step, name)
        if value is not None and value not in allowed:
            raise WireError(f"{path}.{name}", value, f"one of {', '.join(allowed)}")
    for name in ("startup", "removal"):
        _check_natural(getattr(step, name), f"{path}.{name}")
    for name, count in (step.components or {}).items():
        if name not in ("deployed", "failed", "deleting"):
            raise WireError(f"{path}.components", name, "one of the keys deployed, failed, deleting")
        _check_natural(count, f"{path}.components.{name}")
    if step.gone and step.pods is not None:
        raise WireError(f"{path}.pods", step.pods, "no pods, because the step also has 'gone: true'")
    _check_compact(step, path)


def _check_compact(step: Step, path: str) -> None:
    """Read what is kept as it was written, so that a mistake is told with its place."""
    if step.pods is not None:
        tuple(_read_pods(step.pods, f"{path}.pods"))
    if step.coordinator is not None and len(tuple(_read_pods(step.coordinator, f"{path}.coordinator"))) != 1:
        raise WireError(f"{path}.coordinator", step.coordinator, "exactly one pod, such as R (a running pod)")
    if step.create_error is not None:
        _read_failure(step.create_error, f"{path}.create_error")


def _read_pods(value: Any, path: str) -> Iterator[Pod | None]:
    if isinstance(value, str):
        yield from _read_letters(value, path)
    elif isinstance(value, Mapping):
        yield _read_pod(value, path)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if not isinstance(item, (str, Mapping)):
                raise WireError(f"{path}[{index}]", item, "a string or an object")
            yield from _read_pods(item, f"{path}[{index}]")
    else:
        raise WireError(path, value, "a string, or a list of strings and objects")


def _read_letters(text: str, path: str) -> Iterator[Pod | None]:
    place = _end_of_gap(text, 0)
    while place < len(text):
        found = _POD.match(text, place)
        if found is None:
            raise WireError(path, text, _PODS)
        yield from itertools.repeat(_lettered(found, path), int(found[6] or 1))
        place = _end_of_gap(text, found.end())


def _end_of_gap(text: str, place: int) -> int:
    gap = _BETWEEN.match(text, place)
    return place if gap is None else gap.end()


def _lettered(found: re.Match[str], path: str) -> Pod | None:
    letter, star, flag, late_star, inside, _ = found.groups()
    if letter == _NONE:
        return None
    if letter == _SAME:
        return Pod(state=None)
    state, more = _LETTERS[letter]
    codes, kind = _read_end(inside or "", path)
    if state is NodeState.SUCCEEDED and not codes:
        codes = (0,)
    return Pod(
        state=state,
        exit_code=next((code for code in codes if code), codes[0] if codes else None),
        exit_codes=codes,
        kind=kind,
        deleting=bool(star or late_star),
        flagged="flagged" if flag else "",
        gated=more.get("gated", False),
        unschedulable=more.get("unschedulable", False),
    )


def _read_end(inside: str, path: str) -> tuple[tuple[int, ...], FaultKind | None]:
    codes, kind = [], None
    for word in re.split(r"[\s,]+", inside.strip()) if inside.strip() else ():
        if re.fullmatch(r"-?\d{1,9}", word):
            codes.append(int(word))
        elif word in {known.value for known in FaultKind}:
            kind = FaultKind(word)
        else:
            raise WireError(path, word, f"an exit code, or one of the reasons {', '.join(known.value for known in FaultKind)}")
    return tuple(codes), kind


def _read_pod(value: Mapping[str, Any], path: str) -> Pod:
    state = str(value.get("state"))
    if state in _LETTERS:
        word, more = _LETTERS[state]
        value = {**more, **value, "state": word.value}
    elif state == _SAME:
        value = {**value, "state": None}
    elif state not in {known.value for known in NodeState}:
        known = (*_LETTERS, _SAME, *(s.value for s in NodeState))
        raise WireError(f"{path}.state", value.get("state"), f"one of {', '.join(known)}")
    pod = codec.from_json(Pod, value, path=path)
    if pod.exit_code is None and pod.exit_codes:
        pod = dataclasses.replace(pod, exit_code=next((code for code in pod.exit_codes if code), pod.exit_codes[0]))
    return pod


def _read_failure(value: Any, path: str) -> CreateFailure:
    if isinstance(value, str):
        return CreateFailure(reason=value)
    return codec.from_json(CreateFailure, value, path=path)
