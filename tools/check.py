"""Run the checks one after the other, each to its end, and say what each took.

`python tools/check.py` runs all of them, `python tools/check.py lint unit` some. The exit code is 0 only if all went well;
the last line adds up what pytest said in its closing lines.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Tests that start real processes, one after the other.
LIVE = ("tests/live", "tests/cluster")

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
    ("live tests", "live", ("pytest", "-q", "-n", "2", "--dist", "loadfile", *LIVE)),
    ("real Airflow", "airflow", ("python", "-m", "tests.airflow", "--subset")),
)

_CLOSING = re.compile(r"\d+ \w+.* in [\d.]+s\b|no tests ran in ")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a part ended. `closing` is its last line; `seconds` how long it took."""

    name: str
    code: int
    seconds: float
    closing: str

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
    outcomes = [_run(name, command) for name, group, command in PARTS if group in wanted]
    print("", *_table(outcomes), *_closing(outcomes), sep="\n", flush=True)
    return int(any(outcome.code for outcome in outcomes))


def _run(name: str, command: tuple[str, ...]) -> Outcome:
    print(f"--- {name}: {' '.join(command)}", flush=True)
    began = time.monotonic()
    closing = ""
    whole = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    with subprocess.Popen(whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.strip() or closing
    return Outcome(name=name, code=process.returncode, seconds=time.monotonic() - began, closing=closing)


def _table(outcomes: list[Outcome]) -> list[str]:
    rows = [f"{outcome.name:<16}{outcome.seconds:>8.1f} s   {outcome.said}" for outcome in outcomes]
    return [*rows, f"{'all':<16}{sum(outcome.seconds for outcome in outcomes):>8.1f} s"]


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
