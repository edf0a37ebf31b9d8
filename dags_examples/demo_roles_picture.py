"""Timeline of a job with roles as text and as a picture; times are seconds since its submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Event", "draw", "lives", "tell"]

_COLORS = {"trainer": "#2563eb", "rollout": "#15803d", "evaluator": "#9333ea"}
_RED, _INK, _GREY = "#dc2626", "#1f2937", "#4b5563"


@dataclass(frozen=True, kw_only=True)
class Event:
    """What one process did; `step` is the number of updates that the trainer had made, where it is known."""

    at: float
    role: str
    rank: int
    incarnation: int
    pid: int
    what: str
    step: int | None = None
    score: float | None = None

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Event:
        """Read an event of `rl_cartpole.note`."""
        fields: dict[str, Any] = {name: value.get(name) for name in cls.__dataclass_fields__}
        return cls(**fields)

    @property
    def name(self) -> str:
        """Role and rank."""
        return f"{self.role}/{self.rank}"


def lives(events: Sequence[Event]) -> dict[str, list[tuple[float, float, bool]]]:
    """Return for each instance its lives: begin, end, and whether it was killed."""
    end = max((event.at for event in events), default=0.0)
    found: dict[str, list[tuple[float, float, bool]]] = {}
    for event in events:
        if event.what == "started":
            after = [one for one in events if one.name == event.name and one.at > event.at and one.pid == event.pid]
            killed = next((one.at for one in after if one.what == "killed"), None)
            found.setdefault(event.name, []).append((event.at, end if killed is None else killed, killed is not None))
    return dict(sorted(found.items(), key=lambda one: (list(_COLORS).index(one[0].partition("/")[0]), one[0])))


def tell(events: Sequence[Event], began: float) -> str:
    """Return the timeline as text, without the scores between the first and the last."""
    scores = [event for event in events if event.score is not None]
    kept = [event for event in events if event.score is None or event in {*scores[:1], *scores[-1:]}]
    return "\n".join(f"  {event.at - began:7.2f} s  {_line(event)}" for event in kept)


def _line(event: Event) -> str:
    if event.score is not None:
        return f"{event.name} measured {event.score:.1f} steps after {event.step} updates"
    if event.what == "killed":
        return f"{event.name} killed with SIGKILL (process {event.pid})"
    return f"{event.name} {event.what} (process {event.pid}, incarnation {event.incarnation})"


def draw(events: Sequence[Event], began: float, path: Path, *, goal: float) -> None:
    """Write a PNG: the score over time above the lives of all processes."""
    import matplotlib as mpl  # noqa: PLC0415  a second of imports that only the picture needs

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 6.5), dpi=130, sharex=True, height_ratios=(3, 2))
    _draw_scores(above, events, began, goal)
    _draw_lives(below, events, began)
    for axes in (above, below):
        for event in events:
            if event.what == "killed":
                axes.axvline(event.at - began, color=_RED, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    below.set_xlim(left=0)
    below.set_xlabel("seconds since the job was submitted", color=_INK)
    figure.suptitle("Three roles learn through two kills", x=0.1, ha="left", fontsize=16, fontweight="bold", color=_INK)
    killed = " and ".join(event.name for event in events if event.what == "killed")
    text = f"{killed} were killed with SIGKILL; all other processes continued."
    figure.text(0.1, 0.905, text, fontsize=10.5, color=_GREY)
    figure.subplots_adjust(left=0.1, right=0.975, top=0.87, bottom=0.09, hspace=0.12)
    figure.savefig(path)
    plt.close(figure)


def _draw_scores(axes: Axes, events: Sequence[Event], began: float, goal: float) -> None:
    scores = [event for event in events if event.score is not None]
    axes.plot(
        [one.at - began for one in scores], [one.score or 0.0 for one in scores], color=_COLORS["evaluator"], linewidth=2.2
    )
    axes.axhline(goal, color=_GREY, linewidth=1, linestyle=":")
    axes.annotate(f"goal {goal:g}", xy=(0.005, goal), xycoords=("axes fraction", "data"), va="bottom", fontsize=9, color=_GREY)
    axes.set_ylabel("mean steps of an episode", color=_INK)
    axes.set_ylim(0, 540)
    axes.grid(visible=True, color="#e5e7eb", linewidth=0.8)


def _draw_lives(axes: Axes, events: Sequence[Event], began: float) -> None:
    found = lives(events)
    for row, (name, bars) in enumerate(found.items()):
        for begin, end, killed in bars:
            axes.barh(row, end - begin, left=begin - began, height=0.55, color=_COLORS[name.partition("/")[0]], alpha=0.8)
            if killed:
                (mark,) = axes.plot([end - began], [row], "X", markersize=10, color=_RED, markeredgecolor="white", zorder=5)
                axes.legend([mark], ["SIGKILL"], loc="upper left", frameon=False, fontsize=9, labelcolor=_RED)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
