"""`rallypoint explain`: the past events of a job, the decisions with their rules, and the next deadlines."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rallypoint.cli.document import JobDocument, json_text
from rallypoint.cli.lookup import find, roles_of
from rallypoint.cli.options import Commands, Where, add_job_command, natural, spell_command
from rallypoint.report.format import counted, span, time_of_day
from rallypoint.report.hang import picture
from rallypoint.report.incidents import incident_lines, incidents_of
from rallypoint.report.model import Deadline, Story
from rallypoint.report.story import story_of
from rallypoint.supervision.hindsight import remembered
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend
    from rallypoint.cli.services import Services

__all__ = ["Case", "add", "explanation", "run"]

_DESCRIPTION = """\
Explain a job: which rank on which host failed and when, which rule decided the
reaction, which process supervises the job, and which deadline expires next. JOB
is the name of a job, or the path of a file that contains the record of a job
(record.json, or the output of `rallypoint status NAME --json`). The command
does not change the job.
"""

T = TypeVar("T")

#: Entries of the timeline that are printed; `--json` contains all.
_ENTRIES = 40


@dataclass(frozen=True, kw_only=True)
class Case:
    """All data about a job that the command explains.

    Attributes:
        record: of the job.
        plan: None if only the record is available; then the clocks are unknown.
        status: the last status of the coordinator, or None.
        seen: the current observation; None if only the record is available.
        now: seconds since the epoch; for a file, the time of the last supervisor turn.
        holder: description of the supervisor.
        status_age: seconds since the last status of the coordinator; None if unknown.
        clocks: running clocks of the backend, which the record does not contain.
        roles: the jobs of the elastic roles, by role.
    """

    record: JobRecord
    plan: Plan | None
    status: JobStatus | None
    seen: Observation | None
    now: float
    holder: str
    status_age: float | None = None
    clocks: tuple[Deadline, ...] = ()
    roles: tuple[tuple[str, Case], ...] = ()

    @property
    def decision(self) -> Decision | None:
        """The decision that a supervisor would make now."""
        if (
            self.plan is None or self.plan.roles
        ):  # the decision about a job with several roles needs the states of all instances
            return None
        policy = Policy.from_plan(self.plan)
        seen = remembered(self.record, policy) if self.seen is None else self.seen
        return reconcile(self.record, seen, policy, self.now)


class UnknownIncidentError(RallypointError):
    """The job has no incident with this number."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "explain", "explain the past events of a job and its next deadlines", _DESCRIPTION)
    parser.add_argument("job", metavar="JOB", help="name of a job, or path of a file that contains the record of a job")
    parser.add_argument(
        "--incident", metavar="N", type=natural("incident"), help="show all details of the incident with this number"
    )
    parser.add_argument(
        "--svg", metavar="FILE", type=Path, help="write a picture of the incident to this SVG file; requires --incident"
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    path = Path(args.job)
    case = read_case(path) if path.suffix == ".json" or "/" in args.job else asyncio.run(_live(args.services, args))
    if args.incident is not None:
        _tell_incident(case, args.incident, as_json=args.json, svg=args.svg)
    elif args.svg is not None:
        raise RallypointError(f"--svg {args.svg}: requires an incident; add --incident N")
    elif args.json:
        print(json_text(_document(case)))
    else:
        print("\n".join(explanation(case)))
    return 0


async def _live(services: Services, args: argparse.Namespace) -> Case:
    async with services.backend(args.where) as backend:
        case = await _case(backend, args.job, args.where)
        roles = []
        for role in await roles_of(backend, case.record, case.plan) if case.plan is not None else ():
            found = await _case(backend.units(args.job).jobs, role.record.name, args.where)
            roles.append((role.name, found))
        return dataclasses.replace(case, roles=tuple(roles))


async def _case(backend: Backend, name: str, where: Where) -> Case:
    stored = await find(backend, name)
    now = time.time()
    record = stored.record
    seen = await backend.observe(record)
    holder = f"{_holder(record)}{await _heart(backend, record, where)}"
    # A reader requests the status from the coordinator itself; a supervisor does not.
    status = await backend.status(record.name) or seen.status
    age = None if status is None else await backend.status_age(record.name, status)
    found, asked = await backend.clocks(record, status), time.time()
    clocks = tuple(Deadline(at=asked + c.within, within=c.within, clock=c.clock, then=c.then, setting="") for c in found)
    return Case(
        record=record,
        plan=stored.plan,
        status=status,
        seen=seen,
        now=now,
        holder=holder,
        status_age=age,
        clocks=clocks,
    )


async def _heart(backend: Backend, record: JobRecord, where: Where) -> str:
    """Return a text about whether the supervisor of a running job is alive; "" if that is unknown."""
    if record.released or record.holder is None:
        return ""
    pulse = await backend.pulse(record.holder)
    if pulse is None or pulse.alive is False:
        return f"; not running; to take over: `{spell_command(where, 'supervise', record.name)}`"
    if pulse.alive is None:
        return f"; {pulse.note}" if pulse.note else ""
    return f"; alive{f', but {pulse.note}' if pulse.note else ''}"


# --- Files -----------------------------------------------------------------------------------------------------------------


def read_case(path: Path) -> Case:
    """Read a record (with the plan in the same folder, if it exists) or the output of `status --json`."""
    text = _text(path)
    plan: Plan | None
    if _is_document(text):
        document = _read(path, text, functools.partial(codec.loads, JobDocument))
        record, plan, status = document.record, document.plan, document.status
    else:
        record = _read(path, text, JobRecord.from_json)
        plan = _beside(path, "plan.json", functools.partial(codec.loads, Plan))
        status = _beside(path, "status.json", functools.partial(codec.loads, JobStatus))
    return Case(record=record, plan=plan, status=status, seen=None, now=record.last_now, holder=_holder(record))


def _is_document(text: str) -> bool:
    try:
        return "record" in json.loads(text)
    except (TypeError, ValueError):
        return False  # read_case reports the error when it reads the text as a record


def _beside(path: Path, name: str, load: Callable[[str], T]) -> T | None:
    """Read another file in the folder of a record; None if it does not exist."""
    beside = path.with_name(name)
    return _read(beside, _text(beside), load) if beside.exists() else None


def _read(path: Path, text: str, load: Callable[[str], T]) -> T:
    try:
        return load(text)
    except WireError as error:
        raise WireError(f"{path}: {error.path or 'document'}", error.value, error.allowed) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RallypointError(f"{path}: cannot read the file: {getattr(error, 'strerror', None) or error}") from error


def _holder(record: JobRecord) -> str:
    holder = record.holder
    if holder is None:
        return "the job has not had a supervisor yet" if not record.attempts else "unknown (not in the record)"
    where = f", process {holder.pid} on {holder.host or 'an unknown host'}" if holder.pid else ""
    return f"{holder.name}{where}, since {time_of_day(holder.since)}"


# --- Text ------------------------------------------------------------------------------------------------------------


def explanation(case: Case, *, zone: datetime.tzinfo | None = None) -> Iterator[str]:
    """Yield the explanation as lines of text."""
    story = _story_of(case)
    yield story.standing
    yield from (f"  {line}" for line in story.conditions)
    if case.seen is None:
        yield f"  from the record, last updated at {time_of_day(case.now, zone)}"
    yield from _timeline(story, zone)
    yield from ("", "Supervisor", f"  {case.holder}")
    yield from _next(story, zone)
    yield from _cost(story)
    for name, role in case.roles:
        of_role = _story_of(role)
        yield from ("", f"Role {name}", f"  {of_role.standing}")
        yield from (f"    {line}" for line in of_role.conditions)
        # The whole job submits its roles.
        told = [entry for entry in of_role.entries if not entry.text.startswith("submitted: ")]
        coming = _next(of_role, zone) if of_role.deadlines or of_role.pending else ()
        lines = (*_timeline(dataclasses.replace(of_role, entries=tuple(told)), zone), *coming, *_cost(of_role))
        yield from (f"  {line}" for line in lines if line)


def _timeline(story: Story, zone: datetime.tzinfo | None) -> Iterator[str]:
    yield from ("", "Timeline")
    hidden = len(story.entries) - _ENTRIES
    if hidden > 0:
        yield f"  ({hidden} earlier entries: see --json)"
    for entry in story.entries[-_ENTRIES:]:
        yield f"  {time_of_day(entry.at, zone)}  {entry.text}"
        yield from (f"  {'':19}    {line}" for line in entry.more)


def _next(story: Story, zone: datetime.tzinfo | None) -> Iterator[str]:
    yield from ("", "Next")
    if story.pending:
        yield f"  {story.pending}"
    for item in story.deadlines:
        setting = f"   [{item.setting}]" if item.setting else ""
        yield f"  in {span(item.within)}, at {time_of_day(item.at, zone)} ({item.clock}): {item.then}{setting}"
    if story.waits:
        yield f"  {story.waits}"


def _cost(story: Story) -> Iterator[str]:
    loss = story.loss
    yield from ("", "Cost")
    left = "" if loss.resets_left is None else f", {loss.resets_left} left"
    free = f"; {counted(loss.free, 'incident')} not charged to a budget" if loss.free else ""
    yield f"  {counted(loss.faults, 'fault')}, training resumed after {loss.healed}{free}"
    yield f"  {counted(loss.resets, 'reset')} of the whole job{left}"
    yield f"  {counted(loss.steps, 'step')} repeated; {span(loss.seconds)} without training on all ranks"


def _story_of(case: Case) -> Story:
    return story_of(
        case.record,
        case.status,
        now=case.now,
        plan=case.plan,
        decision=case.decision,
        status_age=case.status_age,
        clocks=case.clocks,
    )


def _tell_incident(case: Case, number: int, *, as_json: bool, svg: Path | None) -> None:
    incidents = incidents_of(case.record, case.status)
    if not 1 <= number <= len(incidents):
        there = f"expected 1 to {len(incidents)}" if incidents else "the job has no incidents"
        raise UnknownIncidentError(f"--incident {number}: {there}")
    incident = incidents[number - 1]
    if svg is not None:
        _draw(svg, picture(incident, f"{case.record.name}, incident {number}: {incident.reason}"))
    print(json_text(incident) if as_json else "\n".join(incident_lines(incident, number, plain=not _can_draw())))


def _can_draw() -> bool:
    """Return whether the terminal can print block characters."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


def _draw(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RallypointError(f"--svg {path}: cannot write the file: {error.strerror}") from error


# --- JSON ----------------------------------------------------------------------------------------------------------


def _document(case: Case) -> dict[str, Any]:
    story = _story_of(case)
    return {
        "version": 1,
        "job": case.record.name,
        "phase": case.record.phase.value,
        "headline": story.standing,
        "state": story.conditions,
        "story": story.entries,
        "incidents": story.details,
        "holder": case.record.holder,
        "would": story.pending,
        "next": story.deadlines,
        "waits": story.waits,
        "loss": story.loss,
        **({"roles": {name: _document(role) for name, role in case.roles}} if case.roles else {}),
    }
