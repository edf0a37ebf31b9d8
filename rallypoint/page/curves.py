"""Curves of a training: steps, their rate, what the script measures, and the size of the world. Pure."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from rallypoint.page.values import Curve, Point
from rallypoint.wire.status import JobStatus, Sample

__all__ = ["curves"]


def curves(status: JobStatus | None) -> tuple[Curve, ...]:
    """Return the curves of the current attempt; without steps there is the size of the world alone."""
    if status is None or not status.samples:
        return ()
    steps = [sample for sample in status.samples if sample.step is not None]
    return (*_of_steps(steps), *_of_metrics(steps), _of_world(status))


def _of_steps(steps: Sequence[Sample]) -> Iterator[Curve]:
    if len(steps) < 2:
        return
    yield _curve("Step", steps, lambda sample: sample.step, "{:.0f}")
    rates = [(later, _rate(earlier, later)) for earlier, later in itertools.pairwise(steps)]
    last = next((rate for _, rate in reversed(rates) if rate is not None), None)
    yield Curve(
        name="Steps per second",
        unit="/s",
        points=tuple(Point(at=sample.at, value=rate) for sample, rate in rates),
        last="" if last is None else f"{last:.3g}",
    )


def _rate(earlier: Sample, later: Sample) -> float | None:
    """Return steps per second between two samples; None across rounds, where something else took the time."""
    forward = (later.step or 0) - (earlier.step or 0)
    if later.round != earlier.round or later.at <= earlier.at or forward < 0:
        return None
    return float(f"{forward / (later.at - earlier.at):.6g}")


def _of_metrics(steps: Sequence[Sample]) -> Iterator[Curve]:
    names = dict.fromkeys(name for sample in steps for name in sample.metrics)
    for name in names:
        measured = [sample for sample in steps if name in sample.metrics]
        yield _curve(name, measured, functools.partial(_metric, name), "{:.4g}")


def _metric(name: str, sample: Sample) -> float:
    return sample.metrics[name]


def _of_world(status: JobStatus) -> Curve:
    points = [Point(at=sample.at, value=float(sample.world_size)) for sample in status.samples]
    kept = [p for place, p in enumerate(points) if place in {0, len(points) - 1} or p.value != points[place - 1].value]
    return Curve(name="World size", unit="ranks", points=tuple(kept), last=str(status.samples[-1].world_size), stepped=True)


def _curve(name: str, samples: Sequence[Sample], value: Callable[[Sample], float | None], spelled: str) -> Curve:
    """Return a curve that is broken where a round ends: what was lost is not drawn as a slope."""
    points: list[Point] = []
    for place, sample in enumerate(samples):
        if place and sample.round != samples[place - 1].round:
            points.append(Point(at=sample.at, value=None))
        points.append(Point(at=sample.at, value=_finite(value(sample))))
    # The last one is shown as it was reported, also where no curve can be drawn through it.
    known = [number for number in map(value, samples) if number is not None]
    return Curve(name=name, unit="", points=tuple(points), last=spelled.format(known[-1]) if known else "")


def _finite(value: float | None) -> float | None:
    """Return the number, None for one that JSON cannot tell."""
    return float(value) if value is not None and math.isfinite(value) else None
