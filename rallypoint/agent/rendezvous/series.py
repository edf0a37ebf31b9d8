"""How training went over time, in so few samples that a status can carry them. Pure.

Samples are at least a `LIMIT`-th of the time apart that they span. When there are too many, every second one goes: so they
always span the whole attempt, about evenly, however long it lasts, and nobody has to remember how often they were thinned out.
"""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.wire.status import Sample

__all__ = ["LIMIT", "few", "sampled"]

#: Samples that are kept at the most: with all their metrics they take 20 KiB of a status.
LIMIT = 96

#: Metrics of a sample, and characters of their names.
_METRICS, _NAME = 3, 24


def sampled(samples: tuple[Sample, ...], sample: Sample) -> tuple[Sample, ...]:
    """Return the samples with one more, unless it comes too soon after the last; what begins a round is never too soon."""
    if samples and sample.step is not None and not _due(samples, sample):
        return samples
    samples = (*samples, sample)
    if len(samples) <= LIMIT:
        return samples
    # The first and the newest stay.
    return (*samples[:-1:2], samples[-1])


def few(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that a sample tells: a loss before all others, and to six figures."""
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
