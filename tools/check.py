"""Run the checks, each to its end, and print what each took.

`python tools/check.py` runs `make test`, `python tools/check.py lint unit` some of its parts. `--all` (`make test-all`) adds
tests marked `extended`, long tests in full size (tests/scale.py) and a real Airflow. The exit code is 0 only if every part
passed; the last line adds up pytest's closing lines. Parts that use one core run first, five at a time, and print their output
when they end; the others run alone, one after the other. No test is run twice: a test that fails once is a defect of the test
or of the code.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Tests that start real processes.
LIVE = ("tests/cluster", "tests/live")

#: Live tests that import Ray or Airflow: parts of their own, as each process of the others would import these to read them.
RAY = "tests/ray"
AIRFLOW = tuple(f"tests/live/test_{name}.py" for name in ("freshness", "masked_secrets", "payloads", "trigger_blocks"))

#: Tests that are no unit tests.
APART = (*LIVE, RAY, "tests/packaging")

#: Unit tests by folders, each part in a process of its own: it imports and reads only what these need. All others are one part.
UNIT = {
    "kube": ("tests/kube", "tests/emulator_tests"),
    "agent": ("tests/agent", "tests/capabilities", "tests/training"),
    "jobs": ("tests/backends", "tests/cli", "tests/job", "tests/supervision", "tests/wire"),
}

#: So many parts run side by side, on two cores: a third of the time is waiting.
SIDE_BY_SIDE = 5

#: A part whose tests wait most of the time runs them in so many processes, so that it is not the last that ends.
PROCESSES = {"kube": 2}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One check.

    Attributes:
        command: begins with a program beside the interpreter that runs this file.
        alone: it uses all cores.
        extended: it is run by `make test-all` only.
    """

    name: str
    group: str
    command: tuple[str, ...]
    alone: bool = False
    extended: bool = False


def _processes(name: str) -> tuple[str, ...]:
    return ("-n", str(PROCESSES[name]), "--dist", "loadfile") if name in PROCESSES else ()


#: Of those that run side by side the longest comes first.
PARTS = (
    *(
        Part(name=f"unit: {name}", group="unit", command=("pytest", "-q", *_processes(name), *folders))
        for name, folders in UNIT.items()
    ),
    Part(name="mypy", group="lint", command=("mypy",)),
    Part(
        name="unit: others",
        group="unit",
        command=("pytest", "-q", *(f"--ignore={path}" for path in (*APART, *itertools.chain(*UNIT.values())))),
    ),
    Part(name="live: Ray", group="live", command=("pytest", "-q", RAY)),
    Part(name="live: Airflow", group="live", command=("pytest", "-q", *AIRFLOW)),
    Part(name="wheel tests", group="wheel", command=("pytest", "-q", "tests/packaging")),
    Part(name="site", group="lint", command=("python", "tools/site.py")),
    Part(name="import-linter", group="lint", command=("lint-imports",)),
    Part(name="language", group="lint", command=("python", "tools/language.py", "check")),
    Part(name="ruff check", group="lint", command=("ruff", "check", ".")),
    Part(name="ruff format", group="lint", command=("ruff", "format", "--check", ".")),
    # Five on two cores: most of what these do is to wait for a lease, a grace or a round. Files come in the order that
    # tests/conftest.py gives them.
    Part(
        name="live tests",
        group="live",
        command=(
            *("pytest", "-q", "-n", "5", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "20"),
            *(*LIVE, *(f"--ignore={path}" for path in AIRFLOW)),
        ),
        alone=True,
    ),
    Part(
        name="real Airflow", group="airflow", command=("python", "-m", "tests.airflow", "--subset"), alone=True, extended=True
    ),
)

#: Whoever prints holds it: what two parts say does not mix.
_PRINTING = threading.Lock()

_CLOSING = re.compile(r"\d+ \w+.* in [\d.]+s\b|no tests ran in ")
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)\b")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a part ended. `closing` is its last line; `seconds` how long it took; `failed` are pytest's names of what failed."""

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
    """Run the requested parts; return 1 when one of them failed."""
    groups = list(dict.fromkeys(part.group for part in PARTS))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", nargs="*", help=f"any of {', '.join(groups)}; default: all of them")
    parser.add_argument("--all", action="store_true", help="also run extended tests (make test-all)")
    given = parser.parse_args()
    if unknown := [group for group in given.group if group not in groups]:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(groups)}")
    if given.all:
        os.environ["RALLYPOINT_TEST_WHOLE"] = "1"
    began = time.monotonic()
    outcomes = list(_outcomes(chosen(given.group, extended=given.all)))
    print("", *_table(outcomes, time.monotonic() - began), *_closing(outcomes), sep="\n", flush=True)
    return int(any(outcome.code for outcome in outcomes))


def chosen(groups: Sequence[str], *, extended: bool) -> list[Part]:
    """Return the parts of these groups, all without any; what is `extended` only on request or where its group is named."""
    parts = [part for part in PARTS if part.group in groups or (not groups and (extended or not part.extended))]
    return parts if extended else [_without_extended(part) for part in parts]


def _without_extended(part: Part) -> Part:
    if part.command[0] != "pytest":
        return part
    return dataclasses.replace(part, command=(*part.command, "-m", "not extended"))


def _outcomes(parts: list[Part]) -> Iterator[Outcome]:
    """Run all parts: those of one core side by side, then each that uses all."""
    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
        yield from pool.map(lambda part: _run(part.name, part.command, at_once=False), [p for p in parts if not p.alone])
    for part in parts:
        if part.alone:
            yield _run(part.name, part.command)


def _run(name: str, command: tuple[str, ...], *, at_once: bool = True) -> Outcome:
    """Run a part to its end; its output is printed line by line (`at_once`) or when it ends."""
    began = time.monotonic()
    closing = ""
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
    _print(kept)
    seconds = time.monotonic() - began
    return Outcome(name=name, code=process.returncode, seconds=seconds, closing=closing)


def _print(lines: list[str]) -> None:
    """Print lines, and forget them."""
    with _PRINTING:
        print("".join(lines), end="", flush=True)
    lines.clear()


def _table(outcomes: list[Outcome], took: float) -> list[str]:
    rows = [f"{outcome.name:<16}{outcome.seconds:>8.1f} s   {outcome.said}" for outcome in outcomes]
    return [*rows, f"{'all':<16}{took:>8.1f} s"]


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
