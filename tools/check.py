"""Run the checks, each to its end, and say what each took.

`python tools/check.py` runs all of them, `python tools/check.py lint unit` some. The exit code is 0 only if all went well;
the last line adds up what pytest said in its closing lines. Those that keep one core busy come first, two side by side, and
what each has said is printed when it ends; the others have the machine for themselves, one after the other.

Tests of real processes share two cores with each other, and now and then one is out of luck. Where at most three of a part
fail, those are run once more, alone; the table names each that passed only then, and the last line counts it as a rerun.
Whoever reads the name mends the test: it must not come to be a habit.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Tests that start real processes.
LIVE = ("tests/cluster", "tests/live")

#: Tests that are no unit tests.
APART = (*LIVE, "tests/packaging")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One check. `command` begins with a program beside the interpreter that runs this file; `alone`: it takes all cores."""

    name: str
    group: str
    command: tuple[str, ...]
    alone: bool = False


#: Of those that run side by side the longest comes first.
PARTS = (
    Part(name="mypy", group="lint", command=("mypy",)),
    Part(name="ruff check", group="lint", command=("ruff", "check", ".")),
    Part(name="ruff format", group="lint", command=("ruff", "format", "--check", ".")),
    Part(name="import-linter", group="lint", command=("lint-imports",)),
    Part(name="wheel tests", group="wheel", command=("pytest", "-q", "tests/packaging")),
    # worksteal: some tests take a minute, and must not all be left to one of the two in the end.
    Part(
        name="unit tests",
        group="unit",
        command=("pytest", "-q", "-n", "2", "--dist", "worksteal", *(f"--ignore={path}" for path in APART)),
        alone=True,
    ),
    # Three on two cores: much of what these do is to wait for a lease, a grace or a round. Files come in the order that
    # tests/conftest.py gives them.
    Part(
        name="live tests",
        group="live",
        command=("pytest", "-q", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "20", *LIVE),
        alone=True,
    ),
    Part(name="real Airflow", group="airflow", command=("python", "-m", "tests.airflow", "--subset"), alone=True),
)

#: Whoever prints holds it: what two parts say does not mix.
_PRINTING = threading.Lock()

_CLOSING = re.compile(r"\d+ \w+.* in [\d.]+s\b|no tests ran in ")
#: Exit code of pytest when tests failed and nothing else went wrong.
_TESTS_FAILED = 1

#: Tests of one part that may be run again: more than these are no bad luck.
_SECOND_LOOKS = 3

_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|rerun|skipped|xfailed|xpassed|deselected|warnings?)\b")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a part ended. `closing` is its last line; `seconds` how long it took; `failed` are pytest's names of what failed."""

    name: str
    code: int
    seconds: float
    closing: str
    failed: tuple[str, ...] = ()
    rerun: tuple[str, ...] = ()

    @property
    def is_pytest(self) -> bool:
        """Whether the last line is pytest's closing line."""
        return _CLOSING.search(self.closing) is not None

    @property
    def said(self) -> str:
        """One phrase for the table."""
        if self.is_pytest:
            return self.closing.strip("= ")
        return "ok" if self.code == 0 else f"failed with exit code {self.code}"


def main() -> int:
    """Run the parts that were asked for; returns 1 when one of them failed."""
    groups = list(dict.fromkeys(part.group for part in PARTS))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", nargs="*", help=f"any of {', '.join(groups)}; without one, all")
    wanted = parser.parse_args().group or groups
    if unknown := [group for group in wanted if group not in groups]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(groups)}")
    began = time.monotonic()
    outcomes = list(_outcomes([part for part in PARTS if part.group in wanted]))
    print("", *_table(outcomes, time.monotonic() - began), *_closing(outcomes), sep="\n", flush=True)
    return int(any(outcome.code for outcome in outcomes))


def _outcomes(parts: list[Part]) -> Iterator[Outcome]:
    """Run all parts: those that leave a core free two at a time, then each that does not."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield from pool.map(lambda part: _seen(part.name, part.command, at_once=False), [p for p in parts if not p.alone])
    for part in parts:
        if part.alone:
            yield _seen(part.name, part.command)


def _seen(name: str, command: tuple[str, ...], *, at_once: bool = True) -> Outcome:
    """Run a part, and what failed of it once more, alone, where that is little; its lines come `at_once` or in the end."""
    first = _run(name, command, at_once=at_once)
    if not (first.is_pytest and first.code == _TESTS_FAILED and 0 < len(first.failed) <= _SECOND_LOOKS):
        return first
    second = _run(f"{name}, again", ("pytest", "-q", *first.failed), at_once=at_once)
    seconds = first.seconds + second.seconds
    if second.code:
        return dataclasses.replace(first, seconds=seconds)
    return dataclasses.replace(first, code=0, seconds=seconds, closing=_corrected(first.closing), rerun=first.failed)


def _corrected(closing: str) -> str:
    """Return a closing line in which what passed the second time counts as such.

    >>> _corrected("1 failed, 173 passed in 722.21s (0:12:02)")
    '1 rerun, 174 passed in 722.21s (0:12:02)'
    """
    counts = {word.removesuffix("s"): int(number) for number, word in _COUNT.findall(closing)}
    again = counts.pop("failed", 0) + counts.pop("error", 0)
    counts = {"rerun": again, **counts, "passed": counts.get("passed", 0) + again}
    return ", ".join(f"{number} {word}" for word, number in counts.items()) + " in " + closing.partition(" in ")[2]


def _run(name: str, command: tuple[str, ...], *, at_once: bool) -> Outcome:
    began = time.monotonic()
    closing, failed = "", []
    kept = [f"--- {name}: {' '.join(command)}\n"]
    if at_once:
        _print(kept)
    whole = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    with subprocess.Popen(whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            kept.append(line)
            if at_once:
                _print(kept)
            closing = line.strip() or closing
            if found := _FAILED_TEST.match(line.rstrip()):
                failed.append(found[1])
    _print(kept)
    seconds = time.monotonic() - began
    return Outcome(name=name, code=process.returncode, seconds=seconds, closing=closing, failed=tuple(dict.fromkeys(failed)))


def _print(lines: list[str]) -> None:
    """Print lines, and forget them."""
    with _PRINTING:
        print("".join(lines), end="", flush=True)
    lines.clear()


def _table(outcomes: list[Outcome], took: float) -> list[str]:
    rows = [f"{outcome.name:<16}{outcome.seconds:>8.1f} s   {outcome.said}" for outcome in outcomes]
    again = [f"passed only when run again, alone: {name}" for outcome in outcomes for name in outcome.rerun]
    return [*rows, *again, f"{'all':<16}{took:>8.1f} s"]


def _closing(outcomes: list[Outcome]) -> list[str]:
    counts: collections.Counter[str] = collections.Counter()
    tested = [outcome for outcome in outcomes if outcome.is_pytest]
    for number, word in (found for outcome in tested for found in _COUNT.findall(outcome.closing)):
        counts[word] += int(number)
    broken = ", ".join(outcome.name for outcome in outcomes if outcome.code)
    seconds = sum(outcome.seconds for outcome in tested)
    total = ", ".join(f"{number} {word}" for word, number in counts.items())
    return [*([f"FAILED: {broken}"] if broken else []), *([f"{total} in {seconds:.1f}s"] if total else [])]


if __name__ == "__main__":
    sys.exit(main())
