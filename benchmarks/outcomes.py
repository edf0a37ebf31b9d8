"""Command lines behind `torchrun` and behind `rallypoint-agent run`: does each end alike, undisturbed and with a killed worker?

FOLDER has scripts and a file `lines.txt` with one command line each: NAME=VALUE ..., flags, script, arguments of the script.
Blank lines and those that begin with # are skipped. Each launch runs in a fresh copy of FOLDER. Before each line stand
`--standalone --nproc-per-node 2 --max-restarts 3`, and `--redirects 1` with a `--log-dir`, which keeps the ranks' output apart;
a flag of the line itself wins.

A line is launched four times: undisturbed and with one SIGKILL, by either launcher. The worker with LOCAL_RANK 1 is killed in
the first round, after half the time for which it lived undisturbed. An outcome is the exit code and the set of lines that the
workers printed on stdout, with every number replaced by `#`. With `--run-path` torchrun's workers cannot be told apart from
outside; none is killed there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import descendants, kill, tree

__all__ = ["Outcome", "main"]

BIN = Path(sys.executable).parent
COMMON = ("--standalone", "--nproc-per-node=2", "--max-restarts=3", "--redirects=1")
LAUNCHERS = {"torchrun": (str(BIN / "torchrun"),), "here": (str(BIN / "rallypoint-agent"), "run")}
VICTIM = b"LOCAL_RANK=1"
#: Further launches of a line whose worker ended before it could be killed.
TRIES = 2

STDOUT = {"stdout.log", "rank-0.out", "rank-1.out"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A command line: the variables before it, its words, the folder of its scripts, and the seconds that it may take."""

    env: Mapping[str, str]
    words: tuple[str, ...]
    folder: Path
    limit: float

    @classmethod
    def read(cls, text: str, folder: Path, limit: float) -> Line:
        words = shlex.split(text)
        env = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
        return cls(env=env, words=tuple(words[len(env) :]), folder=folder, limit=limit)


@dataclass(frozen=True)
class Outcome:
    """How one launch ended.

    Attributes:
        code: the exit code; None where it did not end in time.
        printed: the lines on stdout, without their numbers.
        life: seconds for which the first worker with LOCAL_RANK 1 lived; None where none was found.
        killed: it was killed by this program.
        tail: the end of what the launcher itself wrote, and the workers on stderr.
    """

    code: int | None
    printed: frozenset[str]
    life: float | None
    killed: bool
    tail: str

    @property
    def shown(self) -> str:
        """The exit code for the table."""
        return "no end" if self.code is None else str(self.code)


def victim(launcher: int) -> int | None:
    """Return the launcher's worker with LOCAL_RANK 1; what a worker starts itself comes after it."""
    for pid in descendants(launcher):
        with contextlib.suppress(OSError):
            if VICTIM in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
    return None


def living(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def follow(process: subprocess.Popen[bytes], until: float, *, after: float | None) -> tuple[float | None, bool]:
    """Watch a launch, and kill the victim after so many seconds of its life; return its life, and whether it was killed."""
    pid: int | None = None
    begun = life = 0.0
    killed = ended = False
    while process.poll() is None and time.monotonic() < until:
        now = time.monotonic()
        if pid is None:
            pid, begun = victim(process.pid), now
        elif not ended:
            life = now - begun
            ended = not living(pid)
            if not ended and after is not None and life >= after:
                kill([pid])
                killed = ended = True
        time.sleep(0.02)
    return (None if pid is None else life), killed


def launch(line: Line, launcher: str, *, after: float | None) -> Outcome:
    """Run a line in a fresh copy of its folder; end it and its descendants at the limit."""
    with tempfile.TemporaryDirectory() as scratch:
        work, logs, told = Path(scratch) / "work", Path(scratch) / "logs", Path(scratch) / "told"
        shutil.copytree(line.folder, work)
        command = (*LAUNCHERS[launcher], *COMMON, f"--log-dir={logs}", *line.words)
        with told.open("wb") as both:
            process = subprocess.Popen(command, cwd=work, stdout=both, stderr=both, env={**os.environ, **line.env})
            try:
                life, killed = follow(process, time.monotonic() + line.limit, after=after)
                code = process.poll()
            finally:
                kill(tree(process.pid), signal.SIGKILL)
                process.wait()
        printed = [path.read_text(errors="replace") for path in sorted(logs.rglob("*")) if path.name in STDOUT]
        tail = told.read_text(errors="replace")[-3000:]
    return Outcome(code, frozenset(line for text in printed for line in lines(text)), life, killed, tail)


def lines(printed: str) -> Iterator[str]:
    """Return what was printed line by line: each blank is one, each number is `#`, and lines of blanks are left out."""
    for line in re.split(r"[\r\n]+", printed):
        if line.strip():
            yield re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", " ".join(line.split()))


def compare(line: Line) -> Iterator[tuple[str, bool]]:
    """Return a cell for the undisturbed launches and one for those with a kill, and whether the outcomes are the same."""
    calm = {name: launch(line, name, after=None) for name in LAUNCHERS}
    yield cell(calm, calm=True)
    yield cell({name: disturbed(line, name, calm[name]) for name in LAUNCHERS})


def disturbed(line: Line, launcher: str, calm: Outcome) -> Outcome:
    """Kill a worker of a launch, earlier and earlier where it ended before its time."""
    outcome = launch(line, launcher, after=(calm.life or 0.0) / 2)
    for _ in range(TRIES):
        if outcome.killed or outcome.life is None:
            break
        outcome = launch(line, launcher, after=outcome.life / 2)
    return outcome


def cell(outcomes: dict[str, Outcome], *, calm: bool = False) -> tuple[str, bool]:
    """Return the codes, and below them what one launcher's workers printed and the other's did not."""
    theirs, ours = outcomes["torchrun"], outcomes["here"]
    text = f"{theirs.shown}, {ours.shown}"
    for name, outcome in outcomes.items():
        if not calm and not outcome.killed:
            text += f" ({name}: not killed)"
    same = theirs.code == ours.code and theirs.printed == ours.printed
    for name, more in (("torchrun", theirs.printed - ours.printed), ("here", ours.printed - theirs.printed)):
        text += "".join(f"\n    {name} alone: {row}" for row in sorted(more)[:8])
    if not same:
        text += "".join(f"\n    {name} ends with:\n{indented(outcome.tail)}" for name, outcome in outcomes.items())
    return text, same


def indented(text: str) -> str:
    return "\n".join(f"        {row}" for row in text.splitlines()[-25:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run all lines of a folder; return 1 where an outcome differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="scripts and lines.txt")
    parser.add_argument("--limit", type=float, default=150.0, metavar="SECONDS", help="after which a launch has no end (150)")
    parser.add_argument("--only", default="", metavar="TEXT", help="lines with this text alone")
    wanted = parser.parse_args(argv)
    found = [row.strip() for row in (wanted.folder / "lines.txt").read_text().splitlines()]
    differ = 0
    for text in (row for row in found if row and not row.startswith("#") and wanted.only in row):
        print(text, flush=True)
        cells = compare(Line.read(text, wanted.folder, wanted.limit))
        for kind, (shown, same) in zip(("undisturbed", "one kill"), cells, strict=True):
            print(f"  {kind}: {'same' if same else 'DIFFERENT'}: {shown}", flush=True)
            differ += not same
    print(f"{differ} outcomes differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
