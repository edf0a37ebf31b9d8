"""Drive a real Airflow through the scenarios; the exit code is 0 only when every one of them went as expected."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.airflow.deployment import Deployment, deployment
from tests.airflow.driver import Result, looked_at_again, perform
from tests.airflow.further import Look, look_further
from tests.airflow.matrix import MATRIX, SUBSET
from tests.airflow.payloads import DAGS, PATIENT, perform_payloads
from tests.airflow.report import page, row
from tests.airflow.scenario import KILLS, Fate, Mode, Moment, Scenario
from tests.airflow.stage import Stage
from tests.live.light import without_torch
from tests.waiting import eventually

#: Longest pause before the further kill of a random scenario, in seconds.
_LATER = 3.0

#: Seconds: longer than it takes to start anew what was killed twice, and short enough to be waited for.
_RANDOM_LEASE = 90.0


def main() -> int:
    """Run what was asked for; return 1 when something was not as expected."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on this way out, too
    if args.further:
        return int(any(look.wrong for look in _look_further()))
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    if args.payloads:
        return _payloads(args.payloads, seed)
    scenarios = list(_chosen(args, seed))
    if not scenarios:
        raise SystemExit(f"--only {args.only!r}: no scenario is called so; they are:\n" + "\n".join(one.name for one in MATRIX))
    print(f"{len(scenarios)} scenarios" + (f", seed {seed}" if args.random else ""), flush=True)
    with tempfile.TemporaryDirectory(prefix="airflow-") as folder:
        began = time.monotonic()
        # What trains here needs no torch.
        with deployment(Path(folder), PYTHONPATH=without_torch(Path(folder))) as made:
            made.await_dags(*(mode.value for mode in Mode))
            print(f"Airflow on {made.database.version} is up after {time.monotonic() - began:.0f} s", flush=True)
            results, bystander = _perform_all(made, scenarios)
    whole = not args.random and tuple(scenarios) == MATRIX
    looks = _look_further() if whole else []
    if args.report is not None:
        now = datetime.datetime.now(datetime.timezone.utc)
        args.report.write_text(page(results, looks, database=made.database.version, bystander=bystander, now=now))
    wrong = [result for result in results if result.wrong]
    good = bystander == "succeeded, trained once"
    for result in wrong:
        print(f"\n=== {result.scenario.name}\n{result.story}", flush=True)
    print(
        f"{len(results) - len(wrong)} of {len(results)} as expected in {time.monotonic() - began:.0f} s; bystander {bystander}"
    )
    return int(bool(wrong) or not good or any(look.wrong for look in looks))


def _payloads(count: int, seed: int) -> int:
    """Let jobs report what nobody expects; return 1 when something was not as expected."""
    with (
        tempfile.TemporaryDirectory(prefix="airflow-") as folder,
        deployment(Path(folder), PYTHONPATH=without_torch(Path(folder)), **PATIENT) as made,
    ):
        made.await_dags(*DAGS)
        print(f"{count} payloads, seed {seed}, Airflow on {made.database.version}", flush=True)
        verdict = perform_payloads(made, count, seed)
    print(verdict, flush=True)
    return int(bool(verdict.wrong))


def _look_further() -> list[Look]:
    """Look at what no scenario shows, in an Airflow of its own, and tell what was seen as soon as it was."""
    looks = []
    for look in look_further():
        looks.append(look)
        print(f"{look.name}: {look.wrong or look.seen} ({look.seconds:.0f} s)", flush=True)
    return looks


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.airflow", description=__doc__)
    parser.add_argument("--subset", action="store_true", help="the six that every change is tried with")
    parser.add_argument("--only", default="", metavar="WORDS", help="those whose name has these words")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="begin with the one of this number")
    parser.add_argument("--last", type=int, default=None, metavar="N", help="end with the one of this number")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N drawn at random, each with a further kill")
    parser.add_argument("--payloads", type=int, default=0, metavar="N", help="only N values that a job may report")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="repeats the choices of an earlier run")
    parser.add_argument("--further", action="store_true", help="only what no scenario shows: secrets, sensors, a hang")
    parser.add_argument("--report", type=Path, default=None, metavar="FILE", help="write the result table there")
    return parser.parse_args()


def _chosen(args: argparse.Namespace, seed: int) -> Iterator[Scenario]:
    pool = [one for one in (SUBSET if args.subset else MATRIX) if args.only in one.name][args.first - 1 : args.last]
    if not args.random:
        yield from pool
        return
    chance = random.Random(seed)
    for _ in range(args.random):
        yield varied(chance.choice(pool), chance)


def varied(scenario: Scenario, chance: random.Random) -> Scenario:
    """Return a scenario with one more kill at a moment that is drawn; who tells the job of its end may be the one killed."""
    ends = scenario.fate in (Fate.DELETED, Fate.LEASE)
    return dataclasses.replace(
        scenario,
        then=chance.choice(KILLS),
        then_after=chance.uniform(0.0, _LATER),
        fate=Fate.ENDED if ends else scenario.fate,
        lease=_RANDOM_LEASE if ends else scenario.lease,
    )


def _perform_all(made: Deployment, scenarios: Sequence[Scenario]) -> tuple[list[Result], str]:
    """Perform them one after the other, while one more task waits for its job all the time; tell how that one ended."""
    bystander = Stage(made=made, mode=Mode.DEFERRED, run="bystander", lease=3600.0)
    bystander.begin()
    bystander.comes_to(Moment.DEFERRED)
    results = []
    for number, scenario in enumerate(scenarios, 1):
        results.append(perform(made, scenario, run=f"run-{number}"))
        print(f"{number:>3}/{len(scenarios)} {row(results[-1])}", flush=True)
        for line in results[-1].wrong:
            print(f"        {line}", flush=True)
    results = [looked_at_again(made, result) for result in results]
    bystander.may_end()
    try:
        eventually(lambda: (task := bystander.task) is not None and task.state == "success", timeout=60, every=0.2)
    except AssertionError:
        return results, f"did not succeed: {bystander.task}"
    finally:
        bystander.tidy()
    times, twice = bystander.ledger("begins"), bystander.ledger("twice")
    trained = "once" if times == 1 and not twice else f"{times} times, {twice} of them beside another"
    return results, f"succeeded, trained {trained}"


if __name__ == "__main__":
    sys.exit(main())
