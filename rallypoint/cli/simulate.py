"""`rallypoint simulate`: replay a trace of observations through the supervisor's rules."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.cli.document import json_text
from rallypoint.cli.options import Commands, add_command, set_option
from rallypoint.simulation.simulator import Frame, simulate, with_makers
from rallypoint.simulation.trace import letters, read_trace
from rallypoint.supervision.actions import (
    Action,
    CreateComponents,
    CreateCoordinator,
    CreateNode,
    Purge,
    RemoveComponents,
    RemoveCoordinator,
    RemoveNode,
)
from rallypoint.wire.codec import WireError, to_json

if TYPE_CHECKING:
    from rallypoint.cli.policyfile import PolicyRead
    from rallypoint.supervision.policy import Policy

__all__ = ["add", "frame_document", "frame_lines", "run"]

_DESCRIPTION = """\
Replay recorded states of a job's pods, and show how the supervisor would react:
the phase, conditions, resets, timers and actions of the job at each time. The
command starts no job. POLICY is a job file, a file with supervision settings or
a file with AppWrapper annotations. TRACE is a file with the recorded states of
the pods; docs/explanation/supervision.md describes the format of this file.
"""

#: Width of the column of times.
_TIME = 9


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "simulate", "show how the supervisor would react to recorded states of pods", _DESCRIPTION)
    parser.add_argument("policy", metavar="POLICY", type=Path, help="job file, or file with supervision settings; YAML or JSON")
    parser.add_argument("trace", metavar="TRACE", type=Path, help="file with the recorded states of the pods, YAML or JSON")
    set_option(parser, "a field of POLICY to a value, as in --set failure_grace=5m")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    parser.add_argument("--verbose", "-v", action="store_true", help="also show all conditions, timeouts and events")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the frames; return 1 if one of them violates an invariant."""
    from rallypoint.cli.policyfile import edit, read_policy, read_trace_file  # noqa: PLC0415  pydantic is slow to import

    read = read_policy(args.policy, settings=args.settings)
    try:
        trace = read_trace(read_trace_file(args.trace))
        read = dataclasses.replace(read, policy=with_makers(read.policy, trace))
        frames = simulate(read.policy, trace, edit=edit)
    except WireError as error:
        raise WireError(f"{args.trace}: {error.path or 'document'}", error.value, error.allowed) from None
    if args.json:
        print(json_text(_document(read, frames)))
    else:
        print("\n".join(frame_lines(read.policy, frames, warnings=read.warnings, verbose=args.verbose)))
    return 1 if any(frame.violations for frame in frames) else 0


# --- For programs ----------------------------------------------------------------------------------------------------------


def _document(read: PolicyRead, frames: tuple[Frame, ...]) -> dict[str, Any]:
    return {
        "version": 1,
        "policy": to_json(read.policy),
        "warnings": list(read.warnings),
        "frames": [frame_document(frame) for frame in frames],
    }


def frame_document(frame: Frame) -> dict[str, Any]:
    """Return a frame as JSON values; every time is in the trace's seconds."""
    return {
        "at": frame.at,
        "step": frame.step,
        "note": frame.note,
        "phase": frame.phase.value,
        "phases": [phase.value for phase in frame.phases],
        "attempt": frame.attempt,
        "retries": frame.retries,
        "pods": letters(frame.seen.nodes),
        "conditions": {
            name: {"value": c.value, "reason": c.reason, "since": c.at} for name, c in sorted(frame.conditions.items())
        },
        "deadlines": [{"at": frame.due(d), "clock": d.clock, "then": d.then} for d in frame.deadlines],
        "wake_at": frame.wake_at,
        "actions": [{"action": type(action).__name__, **to_json(action)} for action in frame.actions],
        "events": [{"kind": event.kind, "detail": event.detail} for event in frame.events],
        "verdict": to_json(frame.verdict),
        "done": frame.done,
        "purged": frame.purged,
        "violations": list(frame.violations),
    }


# --- For people ------------------------------------------------------------------------------------------------------------


def frame_lines(
    policy: Policy, frames: Iterable[Frame], *, warnings: Iterable[str] = (), verbose: bool = False
) -> Iterator[str]:
    """Yield the frames as lines of text: the changes at each time, the actions, and the clock that expires next."""
    yield from _policy_lines(policy)
    yield from (f"warning: {warning}" for warning in warnings)
    told: dict[str, str] = {}
    pods = ""
    for frame in frames:
        yield ""
        yield f"{_seconds(frame.at):>{_TIME}}  {_headline(frame, policy)}"
        before, pods = pods, letters(frame.seen.nodes) or "no pods"
        if verbose or pods != before:
            yield f"{'':>{_TIME}}  pods  {pods}"
        conditions = {name: f"{c.value} {c.reason}" for name, c in frame.conditions.items()}
        changed = {name: text for name, text in conditions.items() if verbose or told.get(name) != text}
        told = conditions
        for line in _details(frame, changed, verbose=verbose):
            yield f"{'':>{_TIME}}  {line}"


def _policy_lines(policy: Policy) -> Iterator[str]:
    low, high = policy.min_nodes, policy.max_nodes
    world = str(high) if low == high else f"{low}:{high}"
    makers = "created by the wrapped components" if policy.wrapped else "created by the supervisor"
    yield f"policy   profile {policy.profile.value}, {world} nodes {makers}, {policy.retry_limit} retries"
    from rallypoint.job.duration import format_duration  # noqa: PLC0415  as above

    graces = (
        ("admission", policy.admission_grace),
        ("warm-up", policy.warmup_grace),
        ("failure", policy.failure_grace),
        ("retry pause", policy.retry_pause),
        ("forceful deletion", policy.forceful_deletion_grace),
    )
    yield "periods  " + ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in graces)


def _headline(frame: Frame, policy: Policy) -> str:
    phases = " -> ".join(phase.value for phase in frame.phases) or frame.phase.value or "Submitted"
    note = f"   # {frame.note}" if frame.note else ""
    return f"{phases}   attempt {frame.attempt}, {frame.retries} of {policy.retry_limit} retries{note}"


def _details(frame: Frame, changed: dict[str, str], *, verbose: bool) -> Iterator[str]:
    yield from (f"cond  {name} {text}" for name, text in sorted(changed.items()))
    if verbose:
        yield from (f"event {event.kind}: {event.detail}" for event in frame.events)
    else:
        yield from (f"why   {_TOLD[event.kind]}{event.detail}" for event in frame.events if event.kind in _TOLD)
    yield from (f"do    {line}" for line in _asked(frame.actions))
    for deadline in frame.deadlines if verbose else frame.deadlines[:1]:
        yield f"next  at {_seconds(frame.due(deadline))} ({deadline.clock}): {deadline.then}"
    if frame.purged:
        yield "end   the record is deleted; nothing of the job remains"
    elif frame.done:
        yield "end   supervision has ended"
    yield from (f"WRONG {violation}" for violation in frame.violations)


#: Kinds of history entries that explain actions, and how their lines begin.
_TOLD = {
    "resetting": "",
    "failed": "",
    "succeeded": "",
    "node-lost": "",
    "node-evacuated": "",
    "coordinator-lost": "",
    "node-replaced": "replaced: ",
    "pending-timeout": "pending: ",
    "budget-refilled": "refilled: ",
}


def _asked(actions: tuple[Action, ...]) -> Iterator[str]:
    """Yield the actions, a line for each kind."""
    for kind, words in _WORDS.items():
        mine = [action for action in actions if type(action) is kind]
        forced = [a for a in mine if isinstance(a, (RemoveNode, RemoveCoordinator, RemoveComponents)) and a.force]
        gently = [a for a in mine if a not in forced]
        for which, how in ((gently, ""), (forced, " with force")):
            if which:
                names = ", ".join(filter(None, map(_name, which)))
                yield f"{words}{f' {names}' if names else ''}{how}"


_WORDS: dict[type, str] = {
    CreateComponents: "create the components of attempt",
    CreateCoordinator: "create coordinator, term",
    CreateNode: "create nodes",
    RemoveNode: "delete nodes",
    RemoveCoordinator: "delete coordinator, term",
    RemoveComponents: "delete the components",
    Purge: "delete the record",
}


def _name(action: Action) -> str:
    if isinstance(action, (CreateNode, RemoveNode)):
        return f"{action.node}" if action.incarnation == 1 else f"{action.node} (incarnation {action.incarnation})"
    if isinstance(action, (CreateCoordinator, RemoveCoordinator)):
        return str(action.term)
    return str(action.attempt) if isinstance(action, CreateComponents) else ""


def _seconds(at: float) -> str:
    return f"{round(at, 3):g} s" if at < 1e6 else f"{round(at)} s"
