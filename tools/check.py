"""Run the checks one after the other, each to its end, and say what each took.

`python tools/check.py` runs all of them, `python tools/check.py lint unit` some. The exit code is 0 only if all went well;
the last line adds up what pytest said in its closing lines.

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
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Tests that start real processes. The folder whose files take minutes comes first: at the end nobody waits for one of them.
LIVE = ("tests/cluster", "tests/live")

#: Tests that do not run beside others.
APART = (*LIVE, "tests/packaging")

#: Name, group, and command (a program beside the interpreter that runs this file).
PARTS = (
    ("ruff check", "lint", ("ruff", "check", ".")),
    ("ruff format", "lint", ("ruff", "format", "--check", ".")),
    ("mypy", "lint", ("mypy",)),
    ("import-linter", "lint", ("lint-imports",)),
    # worksteal: some tests take a minute, and must not all be left to one of the two in the end.
    ("unit tests", "unit", ("pytest", "-q", "-n", "2", "--dist", "worksteal", *(f"--ignore={path}" for path in APART))),
    ("wheel tests", "wheel", ("pytest", "-q", "tests/packaging")),
    (
        "live tests",
        "live",
        ("pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "20", *LIVE),
    ),
    ("real Airflow", "airflow", ("python", "-m", "tests.airflow", "--subset")),
)

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
    groups = list(dict.fromkeys(group for _, group, _ in PARTS))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", nargs="*", help=f"any of {', '.join(groups)}; without one, all")
    wanted = parser.parse_args().group or groups
    if unknown := [group for group in wanted if group not in groups]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(groups)}")
    outcomes = [_seen(name, command) for name, group, command in PARTS if group in wanted]
    print("", *_table(outcomes), *_closing(outcomes), sep="\n", flush=True)
    return int(any(outcome.code for outcome in outcomes))


def _seen(name: str, command: tuple[str, ...]) -> Outcome:
    """Run a part, and what failed of it once more, alone, where that is little."""
    first = _run(name, command)
    if not (first.is_pytest and first.code == _TESTS_FAILED and 0 < len(first.failed) <= _SECOND_LOOKS):
        return first
    second = _run(f"{name}, again", ("pytest", "-q", *first.failed))
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


def _run(name: str, command: tuple[str, ...]) -> Outcome:
    print(f"--- {name}: {' '.join(command)}", flush=True)
    began = time.monotonic()
    closing, failed = "", []
    whole = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    with subprocess.Popen(whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.strip() or closing
            if found := _FAILED_TEST.match(line.rstrip()):
                failed.append(found[1])
    seconds = time.monotonic() - began
    return Outcome(name=name, code=process.returncode, seconds=seconds, closing=closing, failed=tuple(dict.fromkeys(failed)))


def _table(outcomes: list[Outcome]) -> list[str]:
    rows = [f"{outcome.name:<16}{outcome.seconds:>8.1f} s   {outcome.said}" for outcome in outcomes]
    again = [f"passed only when run again, alone: {name}" for outcome in outcomes for name in outcome.rerun]
    return [*rows, *again, f"{'all':<16}{sum(outcome.seconds for outcome in outcomes):>8.1f} s"]


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
