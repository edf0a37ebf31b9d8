"""Timeline of a training run as text and as a picture. Times are seconds since the job was submitted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobStatus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Mark", "Run", "Sample", "draw", "tell", "trace", "when"]

#: The step that the timeline names on the way.
MILESTONE = 100

_BLUE, _GREY, _RED, _GREEN, _INK = "#2563eb", "#9ca3af", "#dc2626", "#15803d", "#1f2937"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Reported step of the training at one time."""

    at: float
    step: int
    round: int


@dataclass(frozen=True, kw_only=True)
class Mark:
    """An event; `kind` is one word, `text` is for the reader."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training from its submission to its end.

    `lost` is the time from the kill until the step that was reached then is reached again; None if no worker was killed.
    """

    title: str
    samples: tuple[Sample, ...]
    marks: tuple[Mark, ...]
    seconds: float
    lost: float | None

    def mark(self, kind: str) -> Mark | None:
        """Return the first mark of a kind."""
        return next((mark for mark in self.marks if mark.kind == kind), None)


def trace(title: str, record: JobRecord, status: JobStatus, seen: Sequence[Sample], killed: Mark | None) -> Run:
    """Build the run from the record of a finished job; times in `seen` and `killed` are seconds since the epoch."""
    marks = [Mark(at=record.created_at, kind="submitted", text=f"submitted as {record.name}")]
    marks += [Mark(at=e.at, kind=e.kind, text=e.detail) for e in status.events if e.kind in {"round", "resumed"}]
    marks += [
        Mark(at=i.detected_at, kind="detected", text=f"detected: {i.reason}")
        for i in record.incidents
        if i.cause is Cause.PROCESS
    ]
    passed = when(seen, MILESTONE)
    if passed is not None:
        marks.append(Mark(at=passed, kind="milestone", text=f"step {MILESTONE} (time interpolated between two reports)"))
    if killed is not None:
        marks.append(killed)
    end = record.attempts[-1].ended_at or record.last_now
    message = record.verdict.message if record.verdict is not None else record.phase.value
    marks.append(Mark(at=end, kind="finished", text=f"{record.phase.value.lower()} at step {record.progress.step}: {message}"))
    origin = record.created_at
    return Run(
        title=title,
        samples=tuple(Sample(at=s.at - origin, step=s.step, round=s.round) for s in seen),
        marks=tuple(Mark(at=m.at - origin, kind=m.kind, text=m.text) for m in sorted(marks, key=lambda m: m.at)),
        seconds=end - origin,
        lost=None if killed is None else _lost(seen, killed.at),
    )


def tell(run: Run) -> str:
    """Return the timeline as text."""
    lines = [f"{run.title}:", *(f"  {mark.at:7.2f} s  {_word(mark)}" for mark in run.marks)]
    return "\n".join(lines)


def draw(runs: Sequence[Run], path: Path, *, footer: str) -> None:
    """Write a PNG with the step of each run over time."""
    import matplotlib as mpl  # noqa: PLC0415  a second of imports that only the picture needs

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(11, 6), dpi=130)
    for run, color in zip(runs, (_GREY, _BLUE), strict=False):
        _draw_steps(axes, run, color)
    for run in runs:
        _draw_marks(axes, run)
    _dress(axes, runs)
    figure.suptitle("Elastic training through a kill", x=0.065, ha="left", fontsize=16, fontweight="bold", color=_INK)
    figure.text(0.065, 0.905, _headline(runs), fontsize=10.5, color="#4b5563")
    figure.text(0.065, 0.02, footer, fontsize=8.5, color="#6b7280", family="monospace")
    figure.subplots_adjust(left=0.065, right=0.975, top=0.86, bottom=0.13)
    figure.savefig(path)
    plt.close(figure)


def when(seen: Sequence[Sample], step: int, *, after: int = 0) -> float | None:
    """Return when a round above `after` was first at `step` or beyond, on a straight line between two samples of the round."""
    left: Sample | None = None
    for right in (s for s in seen if s.round > after):
        if left is None or left.round != right.round:
            if right.step >= step:  # it began there: a checkpoint may be newer than the last report before it
                return right.at
        elif left.step < step <= right.step:
            return left.at + (step - left.step) / (right.step - left.step) * (right.at - left.at)
        left = right
    return None


def _lost(seen: Sequence[Sample], killed_at: float) -> float | None:
    before = [s for s in seen if s.at <= killed_at]
    if not before:
        return None
    broken = before[-1].round
    regained = when(seen, max(s.step for s in seen if s.round == broken), after=broken)
    return None if regained is None else regained - killed_at


def _word(mark: Mark) -> str:
    return f"resumed at {mark.text}" if mark.kind == "resumed" else mark.text


def _headline(runs: Sequence[Run]) -> str:
    lost = next((run.lost for run in runs if run.lost is not None), None)
    words = "A worker was killed with SIGKILL half-way; the job formed a new round and continued from its last checkpoint."
    return words if lost is None else f"{words} {lost:.1f} s lost."


def _draw_steps(axes: Axes, run: Run, color: str) -> None:
    # One piece for each round: between two rounds no rank trains, so a continuous line would show steps that did not happen.
    for number, (_, group) in enumerate(itertools.groupby(run.samples, key=lambda s: s.round)):
        piece = list(group)
        axes.plot(
            [s.at for s in piece],
            [s.step for s in piece],
            color=color,
            linewidth=2.4,
            solid_capstyle="round",
            label=run.title if number == 0 else None,
        )


def _draw_marks(axes: Axes, run: Run) -> None:
    killed, regained_at = run.mark("killed"), None
    if killed is None:
        return
    if run.lost is not None:
        regained_at = killed.at + run.lost
        axes.axvspan(killed.at, regained_at, color=_RED, alpha=0.07, linewidth=0)
    points = [
        ("killed", _RED, "SIGKILL"),
        ("detected", _RED, "detected"),
        ("round", _INK, "round 2"),
        ("resumed", _GREEN, "training again"),
    ]
    broken = [s for s in run.samples if s.round == 1]
    if broken:
        axes.plot([killed.at], [broken[-1].step], marker="X", markersize=11, color=_RED, markeredgecolor="white", zorder=5)
    # All labels are on one side of their lines; left of them would be the curve.
    late = killed.at > run.seconds * 0.9
    for height, (kind, color, label) in enumerate(points):
        mark = next((m for m in run.marks if m.kind == kind and m.at >= killed.at), None)
        if mark is None:
            continue
        axes.axvline(mark.at, color=color, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
        text = label if mark is killed else f"{label}  +{mark.at - killed.at:.2f} s"
        axes.annotate(
            text,
            xy=(mark.at, 0.32 - 0.075 * height),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if late else 6, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            fontsize=9,
            color=color,
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        )


def _dress(axes: Axes, runs: Sequence[Run]) -> None:
    axes.set_xlabel("seconds since the job was submitted", color=_INK)
    axes.set_ylabel("optimizer step", color=_INK)
    axes.set_xlim(0, max(run.seconds for run in runs) * 1.03)
    axes.set_ylim(0, max((s.step for run in runs for s in run.samples), default=1) * 1.08)
    axes.grid(visible=True, color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", frameon=False)
