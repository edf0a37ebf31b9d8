"""Every way to hang that we know, run for real: `python -m tests.live.hang_corpus --kinds sleep,stop --times 10`.

One job goes through all of them: in each round its plain script trains for a while and then hangs in another way, the verdict
restarts the workers, and the next round hangs in the next one. What was learned of the first rounds holds for the later ones,
as it does in a job that goes on after a hang. Several jobs run side by side. Nothing of the script knows of us.

For each hang the corpus records

- when it was found, counted from the moment at which the first rank began to hang (both times of one machine's clock), and
  whether that was within the longer one of three times the 99th percentile of the script's steps and five seconds,
- when the workers were restarted, and why: by positive evidence, or because `hang_downtime` was over,
- whether exactly the right ranks were blamed, and whether there was evidence of every rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rallypoint.wire.incident import Cause, Incident, RankGroup, Rung
from rallypoint.wire.status import JobState, JobStatus
from tests.live.agent_processes import Agents, agents
from tests.live.hang_kinds import Kind, named
from tests.waiting import PATIENCE

__all__ = ["Found", "main", "run_all", "table"]

SCRIPT = Path(__file__).parent / "scripts" / "hang_ways.py"

#: Steps of each round before it hangs, about 15 ms each.
STEPS = 100

#: Seconds: `hang_downtime`; five seconds, below which nothing has to be found; a round's own limit.
DOWNTIME, _SOON, _LIMIT = 12.0, 5.0, 120.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """What became of one hang.

    Attributes:
        kind, number: which one, and the round that it was.
        took: seconds from its beginning until it was found, None where it was not; `bound` is what they may be.
        restarted: seconds until the workers were restarted for it, None where they were not; `proven`: by positive evidence.
        blamed: the ranks that were named.
        evidence: seconds until the evidence was there; `seen` ranks of which there was some, and `stacks` those with a stack.
        reason: what was said.
        over: the job has ended with it.
    """

    kind: Kind
    number: int
    took: float | None = None
    bound: float = _SOON
    restarted: float | None = None
    proven: bool = False
    blamed: tuple[int, ...] = ()
    seen: int = 0
    stacks: int = 0
    reason: str = ""
    over: bool = False

    @property
    def soon(self) -> bool:
        """Whether it was found within the bound; what is no hang must not be found."""
        return self.took is None if not self.kind.hangs else self.took is not None and self.took <= self.bound

    @property
    def recovered(self) -> bool:
        """Whether the workers were restarted; for what is no hang they must not be."""
        return (self.restarted is not None) is self.kind.hangs

    @property
    def right(self) -> bool:
        """Whether exactly the right ranks were blamed."""
        return not self.kind.hangs or (self.took is not None and self.blamed == self.kind.culprits)

    @property
    def complete(self) -> bool:
        """Whether something is known of every rank."""
        return not self.kind.hangs or self.seen == self.kind.ranks


def run(kinds: Sequence[Kind], folder: Path, told: Told | None = None, downtime: float = DOWNTIME) -> list[Found]:
    """Run one job through these kinds, one a round; all must be of one size of world. What ends the job comes last."""
    with agents(folder, torch=True) as job:
        names = ",".join(kind.name for kind in kinds)
        job.write_plan(
            entrypoint=str(SCRIPT),
            args=(str(job.work), names, str(STEPS)),
            nproc_per_node=kinds[0].ranks,
            report_interval=1.0,
            hang_downtime=downtime,
            hang_detection=2,
            max_hangs=10_000,
            max_restarts=10_000,
            # A busy machine may need long to import torch; that is a hang only where a kind hangs before its first step.
            warmup_grace=downtime if any(kind.begins for kind in kinds) else 10 * downtime,
            stop_grace=0.3,
        )
        job.coordinator()
        job.node()
        job.drain()
        results = []
        for number, kind in enumerate(kinds, start=1):
            results.append(_wait(job, kind, number, downtime))
            if told is not None:
                told(results[-1])
            if results[-1].over:
                break
        return results


class Told:
    """Tells each result as it comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, found: Found) -> None:
        took = "not found" if found.took is None else f"{found.took:5.2f} s"
        how = "positive evidence" if found.proven else "hang_downtime"
        after = "" if found.restarted is None else f", restarted after {found.restarted:.1f} s ({how})"
        wrong = "" if found.right and found.complete else f"   blamed {found.blamed}, {found.seen} seen"
        with self._lock:
            print(f"  {found.kind.name:15} {took} of {found.bound:.1f} s{after}{wrong}   {found.reason[:90]}", file=sys.stderr)


def _wait(job: Agents, kind: Kind, number: int, downtime: float) -> Found:
    """Wait for the restart of a round, or for its end."""
    until = time.monotonic() + _LIMIT * PATIENCE
    status: JobStatus | None = None
    while time.monotonic() < until:
        status = job.status()
        hangs = [] if status is None else _hangs_of(status, number)
        if any(incident.rung is not Rung.NOTIFY for incident in hangs):
            return _found(job, kind, number, hangs, downtime)
        over = status is not None and status.state in (JobState.SUCCEEDED, JobState.FAILED)
        if status is not None and (status.fence.round > number or over):
            reasons = [i.reason for i in status.incidents if i.id.round == number]
            told = f"the round ended: {', '.join(reasons) or status.state.value}"
            if hangs:
                return dataclasses.replace(_found(job, kind, number, hangs, downtime), reason=told, over=over)
            return Found(kind=kind, number=number, reason=told, over=over)
        time.sleep(0.1)
    return Found(kind=kind, number=number, reason="nothing happened", over=True)


def _hangs_of(status: JobStatus, number: int) -> list[Incident]:
    """Return the hangs of a round, in order: one that was notified first, and the one that restarted the workers."""
    mine = [i for i in status.incidents if i.cause is Cause.HANG and i.id.round == number]
    return sorted(mine, key=lambda incident: incident.detected_at)


def _found(job: Agents, kind: Kind, number: int, hangs: Sequence[Incident], downtime: float) -> Found:
    first, last = hangs[0], hangs[-1]
    marks = [json.loads(path.read_text()) for path in job.work.glob(f"mark-{number}-*.json")]
    if not marks:
        return Found(kind=kind, number=number, reason=f"a verdict before it hung: {first.reason}", took=0.0)
    known = [mark["p99"] for mark in marks if mark["p99"] is not None]
    groups = [group for group in first.evidence if group.ranks]
    began = min(mark["at"] for mark in marks)
    acted = last.rung is not Rung.NOTIFY
    proven = acted and last.rule.endswith("; positive evidence")
    return Found(
        kind=kind,
        number=number,
        took=first.detected_at - began,
        bound=downtime + _SOON if kind.begins else max([_SOON, *(3 * p99 for p99 in known)]),
        restarted=_restarted_at(job, number, last) - began if acted else None,
        proven=proven,
        blamed=tuple(sorted(rank for group in groups if group.culprit for rank in group.ranks)),
        seen=sum(len(group.ranks) for group in groups),
        stacks=sum(len(group.ranks) for group in groups if _has_stack(group)),
        reason=last.reason,
    )


def _restarted_at(job: Agents, number: int, incident: Incident) -> float:
    """Return when the round was ended for an incident."""
    status = job.status()
    events = () if status is None else status.events
    return next((event.at for event in events if event.kind == "regroup" and event.round == number), incident.detected_at)


def _has_stack(group: RankGroup) -> bool:
    return any(".py:" in frame for frame in group.frames)


# --- All of them -----------------------------------------------------------------------------------------------------------


def run_all(
    kinds: Sequence[Kind], *, times: int, jobs: int, told: Told | None = None, downtime: float = DOWNTIME
) -> list[Found]:
    """Run each kind so often, in so many jobs side by side; a job that one hang has ended is followed by another one."""
    results: list[Found] = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for found in pool.map(lambda part: list(_through(part, told, downtime)), _parts(kinds, times, jobs)):
            results.extend(found)
    return results


def _through(part: Sequence[Kind], told: Told | None, downtime: float) -> Iterator[Found]:
    while part:
        with tempfile.TemporaryDirectory(prefix="hang-corpus-", ignore_cleanup_errors=True) as folder:
            found = run(part, Path(folder), told, downtime)
        yield from found
        part = part[len(found) :]


def _parts(kinds: Sequence[Kind], times: int, jobs: int) -> list[list[Kind]]:
    """Share the work out: a world has one size, and what is no hang ends its job."""
    parts: list[list[Kind]] = []
    for ranks in sorted({kind.ranks for kind in kinds}):
        mine = [kind for kind in kinds for _ in range(times) if kind.ranks == ranks and kind.hangs]
        count = max(1, min(len(mine), round(jobs * len(mine) / (len(kinds) * times))))
        parts += [mine[begin::count] for begin in range(count)]
    for number, kind in enumerate(kind for kind in kinds for _ in range(times) if not kind.hangs):
        fits = [part for part in parts if not part or (part[0].ranks == kind.ranks and part[-1].hangs)]
        if fits:
            fits[number % len(fits)].append(kind)
        else:
            parts.append([kind])
    return [part for part in parts if part]


# --- What is told ----------------------------------------------------------------------------------------------------------


def table(results: Iterable[Found]) -> str:
    """Return the results as a table in Markdown, a line for each kind, and what they come to."""
    by_kind: dict[str, list[Found]] = {}
    for found in results:
        by_kind.setdefault(found.kind.name, []).append(found)
    lines = [
        "| Kind of hang | Behaviour of the script | Hang found after | Reason for the restart | Workers restarted after |",
        "|---|---|---|---|---|",
    ]
    for name, all_found in by_kind.items():
        took = [found.took for found in all_found if found.took is not None]
        told = (
            f"`{name}`",
            all_found[0].kind.what,
            f"{statistics.median(took):.1f} s" if took else "-",
            *_restarts(all_found),
        )
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join([*lines, "", _sum([found for all_found in by_kind.values() for found in all_found])])


def _restarts(results: Sequence[Found]) -> tuple[str, str]:
    """Return why the workers were restarted, and after how many seconds."""
    after = [found.restarted for found in results if found.restarted is not None]
    proven = sum(found.proven for found in results)
    counts = {"positive evidence": proven, "`hang_downtime`": len(after) - proven}
    why = ", ".join(name if count == len(results) else f"{name} ({count})" for name, count in counts.items() if count)
    return why or "-", f"{statistics.median(after):.1f} s" if after else "-"


def _sum(results: Sequence[Found]) -> str:
    hangs = [found for found in results if found.kind.hangs]
    soon, right = sum(found.soon for found in hangs), sum(found.right for found in hangs)
    complete, false = sum(found.complete for found in hangs), sum(not found.soon for found in results if not found.kind.hangs)
    count, restarted, proven = max(1, len(hangs)), sum(f.recovered for f in hangs), sum(f.proven for f in hangs)
    return (
        f"The test scripts of the corpus hung {len(hangs)} times, in {len({f.kind.name for f in hangs})} different ways."
        f" Rallypoint found {soon} hangs in time ({soon / count:.1%}) and restarted the workers after {restarted} hangs"
        f" ({restarted / count:.1%}),"
        f" {proven} times because of positive evidence and otherwise because `hang_downtime` expired. Rallypoint named the"
        f" right ranks in {right} hangs ({right / count:.1%}), and collected stacks and other data of every rank in"
        f" {complete} hangs ({complete / count:.1%}). In {len(results) - len(hangs)} runs, the ranks were only slow;"
        f" Rallypoint reported a hang in {false} of these runs."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the corpus, print the table, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default="", help="comma-separated names; all by default")
    parser.add_argument("--times", type=int, default=10, help="how often each (default 10)")
    parser.add_argument("--jobs", type=int, default=2, help="jobs side by side (default 2)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the page with the table to FILE")
    parser.add_argument("--downtime", type=float, default=DOWNTIME, help=f"hang_downtime in seconds (default {DOWNTIME:g})")
    options = parser.parse_args(argv)
    kinds = named([name for name in options.kinds.split(",") if name])
    results = run_all(kinds, times=options.times, jobs=options.jobs, told=Told(), downtime=options.downtime)
    print(table(results))
    if options.report is not None:
        run = {"times": options.times, "downtime": options.downtime, "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
        options.report.write_text(_PAGE.format(table=table(results), **run), encoding="utf-8")
    return 0 if all(found.right and found.soon and found.recovered for found in results) else 1


_PAGE = """\
# Hang corpus

After reading this page, you know how soon Rallypoint finds each kind of hang, and whether it names the right rank.

```console
$ make hang-corpus      # about an hour; writes this page
```

The hang corpus is a set of training scripts that hang, each in a different way
([tests/live/hang_corpus.py](../../tests/live/hang_corpus.py)). The scripts contain no Rallypoint code. Each script ran {times}
times, with `hang_detection: 2` and `hang_downtime: {downtime:g}s`, on a machine with {cores} cores; the last run ended on
{date}. The guide [Hangs and slow ranks](../guides/hangs.md) explains hang detection.

- Times are medians, counted from the start of the hang. A hang counts as found when the agents start to inspect the workers.
- A hang counts as *found in time* if Rallypoint finds it within three times the 99th percentile of the step time, or within
  five seconds if that is longer. For a hang before the first step or after the last step, the limit is `hang_downtime` plus
  five seconds.
- *Positive evidence* is proof that the ranks can never continue. With positive evidence, Rallypoint restarts the workers
  without waiting for `hang_downtime`.

{table}
"""

if __name__ == "__main__":
    sys.exit(main())
