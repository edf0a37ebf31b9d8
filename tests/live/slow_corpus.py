"""Every kind of healthy slowness that we know, run for real: `python -m tests.live.slow_corpus --kinds sleep,input --times 10`.

One job goes through all of them: in each round its plain script trains for a while, and is then busy with something else for
`SECONDS`, longer than the bound that was learned from its steps. `hang_detection` is 2 and `hang_downtime` the default of 30
minutes. A round that is restarted as a hang is a failure. After each kind the script ends with exit code 3, which begins the
next round, so that the slowness of one kind does not raise the bound of the next.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rallypoint.wire.incident import Cause, Rung
from rallypoint.wire.status import JobState, JobStatus
from tests.live.agent_processes import Agents, agents
from tests.live.slow_kinds import SlowKind, named_slow
from tests.waiting import PATIENCE

__all__ = ["SlowRun", "main", "run_slow", "slow_table"]

SCRIPT = Path(__file__).parent / "scripts" / "slow_ways.py"

#: Steps of each round before it is slow, about 15 ms each; seconds of the slowness; limit of a round.
STEPS, SECONDS, _LIMIT = 80, 7.0, 180.0


@dataclass(frozen=True, kw_only=True)
class SlowRun:
    """What became of one round.

    Attributes:
        kind: which one.
        restarts: restarts as a hang; `notified` whether it was notified, `looked` how often the agent looked into the workers.
        ended: the script came to its end by itself.
        reason: of the hang incident, or of whatever else ended the round.
    """

    kind: SlowKind
    restarts: int = 0
    notified: bool = False
    looked: int = 0
    ended: bool = False
    reason: str = ""

    @property
    def healthy(self) -> bool:
        """Whether the round was left alone."""
        return self.ended and self.restarts == 0


def run(kinds: Sequence[SlowKind], folder: Path, seconds: float = SECONDS) -> list[SlowRun]:
    """Run one job through these kinds, one a round."""
    with agents(folder, torch=True) as job:
        names = ",".join(kind.name for kind in kinds)
        job.write_plan(
            entrypoint=str(SCRIPT),
            args=(str(job.work), names, str(STEPS), str(seconds)),
            report_interval=1.0,
            hang_detection=2,
            max_hangs=10_000,
            max_restarts=10_000,
            stop_grace=0.3,
        )
        job.coordinator()
        job.node()
        job.drain()
        results = []
        for number, kind in enumerate(kinds, start=1):
            results.append(_wait(job, kind, number))
            print(f"  {kind.name:18} {_told(results[-1])}", file=sys.stderr)
            if results[-1].reason == _NOTHING:
                break
        return results


_NOTHING = "nothing happened"


def _told(result: SlowRun) -> str:
    looked = f"looked into {result.looked} times{', notified' if result.notified else ''}"
    return f"{'healthy' if result.healthy else 'NOT HEALTHY'}, {looked}   {result.reason[:90]}"


def _wait(job: Agents, kind: SlowKind, number: int) -> SlowRun:
    """Wait for the end of a round."""
    over = time.monotonic() + _LIMIT * PATIENCE
    while time.monotonic() < over:
        status = job.status()
        ended = status is not None and (status.fence.round > number or status.state in (JobState.SUCCEEDED, JobState.FAILED))
        if status is not None and ended:
            return _result(job, kind, number, status)
        time.sleep(0.1)
    return SlowRun(kind=kind, reason=_NOTHING)


def _result(job: Agents, kind: SlowKind, number: int, status: JobStatus) -> SlowRun:
    mine = [incident for incident in status.incidents if incident.id.round == number]
    hangs = [incident for incident in mine if incident.cause is Cause.HANG]
    restarts = [incident for incident in hangs if incident.rung is not Rung.NOTIFY]
    ended = (job.work / f"done-{number}").exists()
    reasons = [incident.reason for incident in restarts or hangs or ([] if ended else mine)]
    return SlowRun(
        kind=kind,
        restarts=len(restarts),
        notified=len(hangs) > len(restarts),
        looked=len(list(job.folder.rglob(f"round-{number}/hang-*.txt"))),
        ended=ended,
        reason=reasons[0] if reasons else "",
    )


def run_slow(kinds: Sequence[SlowKind], *, times: int, jobs: int, seconds: float = SECONDS) -> list[SlowRun]:
    """Run each kind so often, in so many jobs side by side."""
    all_kinds = [kind for kind in kinds for _ in range(times)]
    parts = [part for part in (all_kinds[begin::jobs] for begin in range(jobs)) if part]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return [result for results in pool.map(lambda part: list(_through(part, seconds)), parts) for result in results]


def _through(part: Sequence[SlowKind], seconds: float) -> Iterator[SlowRun]:
    while part:
        with tempfile.TemporaryDirectory(prefix="slow-corpus-", ignore_cleanup_errors=True) as folder:
            results = run(part, Path(folder), seconds)
        yield from results
        part = part[len(results) :]


def slow_table(results: Iterable[SlowRun]) -> str:
    """Return the results as a table in Markdown, a line for each kind, and their sum."""
    by_kind: dict[str, list[SlowRun]] = {}
    for result in results:
        by_kind.setdefault(result.kind.name, []).append(result)
    lines = ["| Kind | The slowness | Runs | Inspected | Notified | Restarted |", "|---|---|---|---|---|---|"]
    for name, mine in by_kind.items():
        looked, notified = sum(one.looked > 0 for one in mine), sum(one.notified for one in mine)
        restarted = sum(not one.healthy for one in mine)
        lines.append(f"| `{name}` | {mine[0].kind.what} | {len(mine)} | {looked} | {notified} | {restarted} |")
    return "\n".join([*lines, "", slow_summary([one for mine in by_kind.values() for one in mine])])


def slow_summary(results: Sequence[SlowRun]) -> str:
    """Return the sum of all runs as sentences."""
    notified, restarted = sum(one.notified for one in results), sum(not one.healthy for one in results)
    return (
        f"Rallypoint restarted the workers in {restarted} of {len(results)} runs. In {notified} runs, Rallypoint"
        " logged a notification that the job makes no step."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the corpus, print the table, and write it to a page where one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default="", help="comma-separated names; all by default")
    parser.add_argument("--times", type=int, default=10, help="how often each (default 10)")
    parser.add_argument("--jobs", type=int, default=3, help="jobs side by side (default 3)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each slowness (default {SECONDS:g})")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the last section of the page FILE")
    options = parser.parse_args(argv)
    kinds = named_slow([name for name in options.kinds.split(",") if name])
    results = run_slow(kinds, times=options.times, jobs=options.jobs, seconds=options.seconds)
    print(slow_table(results))
    if options.report is not None:
        before = options.report.read_text(encoding="utf-8") if options.report.exists() else ""
        section = _SECTION.format(seconds=options.seconds, kinds=len(kinds), summary=slow_summary(results))
        options.report.write_text(before.partition(_HEADING)[0].rstrip() + "\n\n" + section, encoding="utf-8")
    return 0 if all(result.healthy for result in results) else 1


_HEADING = "## Healthy slowness"
_SECTION = (
    _HEADING
    + """

A healthy job can make no step for a while, for example because one rank uploads a checkpoint, waits for a file lock or runs a
long loop in C. [tests/live/slow_corpus.py](../../tests/live/slow_corpus.py) has {kinds} such cases. In each run, two ranks
train, make no step for {seconds:g} s, and continue to train. The runs use `hang_detection: 2` and
`hang_downtime: 30m`.

{summary}
"""
)

if __name__ == "__main__":
    sys.exit(main())
