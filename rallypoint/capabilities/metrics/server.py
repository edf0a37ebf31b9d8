"""A job's status as Prometheus metrics, on a port of its own that serves nothing else and asks for no secret.

The coordinator's own port tells nothing to anybody without the job's secret, and a network policy can keep it for the job; this
one may be open to whoever scrapes. A job whose port is taken runs without metrics.

The text has the format 0.0.4. Names, units and labels are conventional: base units, `_total` for what only grows, a help and a
type for each. Labels have few values (causes, states), all of which are always told, so that a rate can be taken from the first
scrape on. No metric tells a host, a path, an error or anything else that needs the job's secret to be read; the one text is the
job's name. Counters begin anew with the attempt, as those of a process that was restarted do.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.transport.http_listen import Text, serve_pages
from rallypoint.capabilities import modules
from rallypoint.capabilities.base import ServiceContext
from rallypoint.version import __version__
from rallypoint.wire.connections import Limits
from rallypoint.wire.env import ROLE
from rallypoint.wire.incident import Cause, Incident, Rung
from rallypoint.wire.missing import Absence
from rallypoint.wire.paths import METRICS_PATH
from rallypoint.wire.pulse import Phase
from rallypoint.wire.status import JobState, JobStatus, Sample

__all__ = ["CONTENT_TYPE", "FRESH", "Kind", "families", "render", "served"]

log = logging.getLogger("rallypoint.metrics")

#: Seconds for which one reading serves everybody: who scrapes more often, or is nobody whom we know, costs no more than that.
FRESH = 1.0

#: Connections at a time. Each ends with its answer.
_CONNECTIONS = 32

#: Of what `render` returns.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds of training over which the rate of steps is taken at least, where there are so many.
_RATE_OVER = 10.0

#: Rungs on which no further round follows.
_NO_RESTART = frozenset({Rung.NOTIFY, Rung.RESET, Rung.EXIT})

Labels = tuple[tuple[str, str], ...]

# --- How they are written --------------------------------------------------------------------------------------------------

_Told = float | Mapping[tuple[str, str], float] | None


@contextlib.asynccontextmanager
async def served(context: ServiceContext, port: int) -> AsyncIterator[int]:
    """Serve the metrics of a coordinator meanwhile; yields the port, 0 if it cannot be opened."""
    pages = {METRICS_PATH: _Scraped(context).answer}
    try:
        close, bound = await serve_pages(
            pages, context.host, port, whose="metrics (health.metrics_port)", limits=Limits.few(_CONNECTIONS)
        )
    except ConfigError as error:
        log.warning("the coordinator cannot serve metrics: %s; the job continues without metrics", error)
        context.note("no-metrics", str(error))
        yield 0
        return
    try:
        yield bound
    finally:
        await asyncio.shield(close())


class _Scraped:
    """The last reading."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._role = context.plan.env.get(ROLE, "") if context.plan.job else ""
        self._text, self._at = "", float("-inf")

    async def answer(self) -> Text:
        """Return the metrics, `FRESH` seconds old at the most."""
        now = self._context.clock()
        if now - self._at >= FRESH:
            self._text, self._at = render(self._context.status(), role=self._role), now
        return Text(body=self._text.encode(), kind=CONTENT_TYPE)


class Kind(str, enum.Enum):
    """How a metric behaves over time."""

    COUNTER = "counter"  #: it only grows, until the attempt is over
    GAUGE = "gauge"


@dataclass(frozen=True, kw_only=True)
class _Family:
    """One metric: its name, what it means, and a value for each set of labels; without a value where there is none yet."""

    name: str
    kind: Kind
    help: str
    samples: tuple[tuple[Labels, float], ...]


def render(status: JobStatus, *, role: str = "") -> str:
    """Return the metrics of a status, as they were when it was read; all have the label `role` in an elastic role."""
    labels = (("role", role),) if role else ()
    return "".join(_text(family, labels) for family in families(status))


def families(status: JobStatus) -> tuple[_Family, ...]:
    """Return all metrics, in the order of their output."""
    return (*_job(status), *_world(status), *_faults(status), *_training(status), *_health(status))


# --- What they are ---------------------------------------------------------------------------------------------------------


def _job(status: JobStatus) -> Iterator[_Family]:
    yield _gauge("rallypoint_build_info", "Version of the coordinator, as a label.", {("version", __version__): 1})
    yield _gauge("rallypoint_job_info", "Name of the job, as a label.", {("job_name", status.job): 1})
    yield _gauge("rallypoint_attempt", "Number of the attempt, from 1.", status.fence.attempt)
    yield _gauge(
        "rallypoint_coordinator_term", "How many coordinators the job has had, the current one included.", status.fence.term
    )
    yield _gauge(
        "rallypoint_job_state",
        "1 for the current state of the attempt, 0 for the other states.",
        _one_of("state", JobState, status.state),
    )
    durable = "1 if the last status is stored where the next coordinator can read it, otherwise 0."
    yield _gauge("rallypoint_status_durable", durable, int(status.durable))


def _world(status: JobStatus) -> Iterator[_Family]:
    yield _counter("rallypoint_rounds_total", "Rounds started.", status.fence.round)
    yield _gauge("rallypoint_world_nodes", "Nodes in the current round.", len(status.world))
    yield _gauge("rallypoint_world_size", "Ranks in the current round.", status.world_size)
    yield _gauge("rallypoint_waiting_nodes", "Nodes waiting to join a round.", len(status.waiting))
    silent = sum(1 for one in status.missing if one.why is Absence.SILENT)
    missing = "Number of expected nodes that send no reports (silent), or that were lost, left or never joined (absent)."
    by = {("state", "silent"): silent, ("state", "absent"): status.missing_count - silent}
    yield _gauge("rallypoint_missing_nodes", missing, by)
    longest = max((status.updated_at - one.since for one in status.missing), default=0.0)
    yield _gauge(
        "rallypoint_missing_seconds", "Seconds since the last report of the node that has been missing longest.", longest
    )


def _faults(status: JobStatus) -> Iterator[_Family]:
    mine = [i for i in status.incidents if i.id.attempt == status.fence.attempt]
    counts = [f for f in status.folded if f.attempt == status.fence.attempt]
    # A count does not say how many of its hangs were notified only: none was restarted where none of the others was.
    hangs = [i for i in mine if i.cause is Cause.HANG]
    only_told = bool(hangs) and all(i.rung is Rung.NOTIFY for i in hangs)

    def count(cause: Cause, *, restarts: bool) -> int:
        whole = sum(1 for i in mine if i.cause is cause and not (restarts and i.rung in _NO_RESTART))
        folded = 0 if restarts and only_told and cause is Cause.HANG else sum(f.count for f in counts if f.cause is cause)
        return whole + folded

    def lost(cause: Cause) -> float:
        whole = sum(_lasted(i, status.updated_at) for i in mine if i.cause is cause)
        return round(whole + status.lost.get(cause.value, 0.0), 3)

    incidents = {("cause", cause.value): count(cause, restarts=False) for cause in Cause}
    yield _counter("rallypoint_incidents_total", "Number of incidents of the attempt, for each cause.", incidents)
    restarts = {("cause", cause.value): count(cause, restarts=True) for cause in Cause}
    yield _counter("rallypoint_restarts_total", "Number of rounds that ended because of an incident, for each cause.", restarts)
    seconds = {("cause", cause.value): lost(cause) for cause in Cause}
    told = "Total seconds from the detection of each incident until training continued (or until now), for each cause."
    yield _counter("rallypoint_lost_seconds_total", told, seconds)


def _lasted(incident: Incident, now: float) -> float:
    return max(0.0, (now if incident.recovered_at is None else incident.recovered_at) - incident.detected_at)


def _training(status: JobStatus) -> Iterator[_Family]:
    progress, now = status.progress, status.updated_at
    yield _gauge("rallypoint_step", "Last step that the script reported.", progress.step)
    at = progress.at if progress.step is not None else None
    yield _gauge("rallypoint_step_timestamp_seconds", "Unix time of the last reported step.", at)
    rate = "Recent steps per second in this round; decreases while no step completes."
    yield _gauge("rallypoint_steps_per_second", rate, _rate(status))
    phases = {("phase", phase.value): status.phases.get(phase.value, 0) for phase in Phase}
    yield _gauge("rallypoint_phase_ranks", "Number of ranks in each phase of the training.", phases)
    saved = progress.checkpoint_at or None
    yield _gauge("rallypoint_checkpoint_timestamp_seconds", "Unix time of the last reported checkpoint.", saved)
    age = None if saved is None else now - saved
    yield _gauge("rallypoint_checkpoint_age_seconds", "Seconds since the last reported checkpoint.", age)


def _rate(status: JobStatus) -> float | None:
    if status.progress.step is None:
        return None
    mine = [s for s in status.samples if s.round == status.fence.round and s.step is not None]
    base = next((s for s in reversed(mine) if s.at <= status.updated_at - _RATE_OVER), mine[0] if mine else None)
    return None if base is None else _since(base, status)


def _since(base: Sample, status: JobStatus) -> float | None:
    seconds = status.updated_at - base.at
    if base.step is None or status.progress.step is None or seconds <= 0.0:
        return None
    return max(0.0, (status.progress.step - base.step) / seconds)


def _health(status: JobStatus) -> Iterator[_Family]:
    for module in modules("report"):
        for one in module.gauges(status):
            yield _gauge(one.name, one.help, one.value)


def _gauge(name: str, text: str, told: _Told) -> _Family:
    return _Family(name=name, kind=Kind.GAUGE, help=text, samples=_samples(told))


def _counter(name: str, text: str, told: _Told) -> _Family:
    return _Family(name=name, kind=Kind.COUNTER, help=text, samples=_samples(told))


def _samples(told: _Told) -> tuple[tuple[Labels, float], ...]:
    if told is None:
        return ()
    return tuple(((label,), value) for label, value in told.items()) if isinstance(told, Mapping) else (((), told),)


def _one_of(label: str, states: Iterable[enum.Enum], state: enum.Enum | None) -> dict[tuple[str, str], float]:
    return {(label, str(one.value)): int(one is state) for one in states}


def _text(family: _Family, more: Labels) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind.value}"]
    lines += (f"{family.name}{_labels((*labels, *more))} {value!r}" for labels, value in family.samples)
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
