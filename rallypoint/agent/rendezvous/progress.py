"""The progress of the training by the lowest rank that reports, the step at which a round resumed, and samples of both. Pure.

Two samples are at least a `LIMIT`-th of the time of all samples apart. If there are too many, every second one is removed: so
they always cover the whole attempt about evenly, and no counter is needed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from rallypoint.agent.rendezvous.journal import event
from rallypoint.agent.rendezvous.lookup import places, world_size
from rallypoint.agent.rendezvous.peers import State
from rallypoint.wire.incident import merge_incidents
from rallypoint.wire.messages import AgentReport, WorkerReport
from rallypoint.wire.status import Member, Progress, Sample

__all__ = ["LIMIT", "began", "few_metrics", "heard", "sampled"]

#: Samples that are kept at the most: with all their metrics they take 20 KiB of a status.
LIMIT = 96

#: Metrics of a sample, and characters of their names.
_METRICS, _NAME = 3, 24


def heard(state: State, report: AgentReport, now: float) -> State:
    """Return the state with the progress that a report tells, if its lowest reporting rank is the lowest known."""
    member = _member(state, report)
    if member is None or report.round != state.fence.round:
        return state
    speaker = next((w for w in report.workers if w.step is not None), None)
    if speaker is None or _lower_rank_speaks(state, member):
        return state
    state = _first_step(_advance(state, speaker, now), speaker, now)
    return dataclasses.replace(state, course=state.course.reported(state.progress, now))


def _advance(state: State, speaker: WorkerReport, now: float) -> State:
    newer = speaker.checkpoint not in ("", state.progress.checkpoint)
    told = Progress(
        step=speaker.step,
        metrics=speaker.metrics,
        checkpoint=speaker.checkpoint or state.progress.checkpoint,
        checkpoint_at=now if newer else state.progress.checkpoint_at,
        resumed_from=speaker.resumed_from,
        at=now if speaker.step != state.progress.step else state.progress.at,
    )
    if told.step is None or told.step == state.progress.step:
        return dataclasses.replace(state, progress=told)
    sample = dataclasses.replace(_moment(state, now), step=told.step, metrics=few_metrics(told.metrics))
    return dataclasses.replace(state, progress=told, samples=sampled(state.samples, sample))


def began(state: State, now: float) -> State:
    """Return the state with the beginning of its round among the samples."""
    return dataclasses.replace(state, samples=sampled(state.samples, _moment(state, now)))


def _moment(state: State, now: float) -> Sample:
    return Sample(at=round(now, 3), round=state.fence.round, world_size=world_size(state.world))


def _first_step(state: State, speaker: WorkerReport, now: float) -> State:
    """Note where a round resumed: what the script says, or else the step before the first one it reports."""
    if state.closed.first_step is not None or speaker.step is None:
        return state
    resumed = max(0, speaker.step - 1) if speaker.resumed_from is None else speaker.resumed_from
    state = dataclasses.replace(state, closed=dataclasses.replace(state.closed, first_step=speaker.step))
    incidents = tuple(
        dataclasses.replace(i, healed_at=now, trained_at=now, resumed_step=resumed)
        for i in state.incidents
        if i.healed_at is None and i.id.attempt == state.fence.attempt
    )
    state = dataclasses.replace(state, incidents=merge_incidents(state.incidents, incidents))
    return event(state, "resumed" if state.fence.round > 1 else "first-step", f"step {speaker.step}, from {resumed}", now)


def _member(state: State, report: AgentReport) -> Member | None:
    return places(state.world).get(report.agent)


def _lower_rank_speaks(state: State, member: Member) -> bool:
    # In order of rank: the first one speaks as a rule, so nobody else is looked at.
    lower = itertools.takewhile(lambda m: m.first_rank < member.first_rank, state.world)
    known = (state.peers[m.agent].report for m in lower if m.agent in state.peers)
    return any(r.round == state.fence.round and any(w.step is not None for w in r.workers) for r in known)


def sampled(samples: tuple[Sample, ...], sample: Sample) -> tuple[Sample, ...]:
    """Return the samples with one more, unless it comes too soon after the last; what begins a round is never too soon."""
    if samples and sample.step is not None and not _due(samples, sample):
        return samples
    samples = (*samples, sample)
    if len(samples) <= LIMIT:
        return samples
    # The first and the newest stay.
    return (*samples[:-1:2], samples[-1])


def few_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a sample: a loss before all others, rounded to six digits."""
    short = [name for name in metrics if len(name) <= _NAME and _plain(name)]
    chosen = sorted(short, key=lambda name: "loss" not in name.lower())[:_METRICS]
    return {name: float(f"{metrics[name]:.6g}") for name in chosen}


def _plain(name: str) -> bool:
    """Return whether every character is one byte of JSON."""
    return name.isascii() and name.isprintable() and '"' not in name and "\\" not in name


def _due(samples: tuple[Sample, ...], sample: Sample) -> bool:
    last = samples[-1]
    turned_back = last.step is not None and sample.step is not None and sample.step < last.step
    first_of_round = last.step is None or sample.round != last.round
    return turned_back or first_of_round or sample.at - last.at >= (sample.at - samples[0].at) / LIMIT
