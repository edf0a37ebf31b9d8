"""What no scenario of kills shows: payloads that a job may report, against a real Airflow with PostgreSQL.

Each payload is a float, a text, a size or a type, as a metric, a name, a result, a checkpoint, a line of output or an error.
Twenty share a job, half of the jobs fail, half are waited for in the triggerer, where a sensor watches each. Two unrelated
deferred tasks beat all the while. In the end every process of Airflow must be the one that it was in the beginning.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rallypoint.wire import sanitize
from rallypoint.wire.result import read_result, result_text
from tests.airflow.deployment import TRIGGERERS, Deployment
from tests.airflow.processes import processes
from tests.waiting import eventually

__all__ = ["DAGS", "PATIENT", "Batch", "Verdict", "batches", "perform_payloads"]

DAGS = ("reports_sync", "reports_deferred", "fails_sync", "fails_deferred", "unrelated")

#: Airflow takes nothing from a process that is merely slow: who has a task or a trigger keeps it until its process ends.
PATIENT = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "900",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "300",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "60",
}

#: CPU seconds that all triggers together may take of an event loop between two beats, which are half a second apart.
BUSY = 0.5

#: Payloads of one job.
EACH = 20

#: Jobs that run at a time.
_AT_ONCE = 4

#: Seconds on a quiet machine for one job with its tasks.
_SOON = 60.0

#: Bytes of JSON that the names of a job's metrics may have, with room for `watched`.
_NAMES = 900

_OVER = frozenset({"failed", "success", "skipped", "upstream_failed", "removed"})

_NUMBERS: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 1e308, 2**53 + 1, 2**63, 2**64 - 1, 10**300, True),
)
#: Characters that no path can have; one with them is refused where it is reported.
_NO_PATH = re.compile("[\x00\ud800-\udc7f\udd00-\udfff]")

_TEXTS = (
    *("\x00", "\x00\x00x", "\ud800", "\udfff\ud800", "\udc80", "\x1b[2J\x1b]0;title\x07", "\r\nline\r\n", "\x7f\x85", ""),
    *("\u2028", "\ufeff", "\ufffe\uffff", "\U0010ffff", "NaN", "null", "'; drop table task_instance; --", "{{ 1/0 }}", "%s%n"),
    *("</script><script>alert(1)</script>", "\u202eesrever", "\\u0000", "\\x00", "::group::", "é" * 300),
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one job reports, and the DAG that runs it. `payloads` counts them by where they are reported."""

    dag: str
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    lines: tuple[str, ...] = ()
    results: tuple[Any, ...] = ()
    raw_result: bytes | None = None
    raised: str | None = None
    recorded: str | None = None
    payloads: Counter[str] = field(default_factory=Counter)

    @property
    def fails(self) -> bool:
        """Whether the job does."""
        return self.raised is not None or self.recorded is not None

    def packed(self) -> bytes:
        """Return what the script is given."""
        fields = ("metrics", "checkpoint", "lines", "results", "raw_result", "raised", "recorded")
        return pickle.dumps({name: getattr(self, name) for name in fields})


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a run has shown: payloads by place, jobs, the longest gap between two beats before and during, what was wrong.

    Attributes:
        loop: CPU seconds of the triggerer's event loop in the longest gap; `process`: those of the whole triggerer.
        busiest: CPU seconds of an event loop in the gap in which it had the most.
    """

    payloads: Counter[str]
    jobs: int
    seconds: float
    quiet_gap: float
    longest_gap: float
    loop: float
    process: float
    busiest: float
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        places = ", ".join(f"{count} {place}" for place, count in sorted(self.payloads.items()))
        head = f"{sum(self.payloads.values())} payloads ({places}) in {self.jobs} jobs in {self.seconds:.0f} s"
        gaps = f"longest gap between two beats {self.longest_gap:.2f} s, {self.quiet_gap:.2f} s before the first job"
        gaps += f"; in it {self.loop:.2f} CPU seconds of the event loop and {self.process:.2f} of its triggerer"
        gaps += f"; at most {self.busiest:.2f} CPU seconds of an event loop between two beats"
        return "\n".join([f"{head}; {gaps}; {len(self.wrong)} wrong", *self.wrong])


def batches(count: int, seed: int) -> Iterator[Batch]:
    """Yield jobs with `count` payloads in all; the same seed yields the same ones."""
    chance = random.Random(seed)
    kinds = itertools.cycle(("reports_deferred", "fails_deferred", "reports_sync", "fails_sync"))
    left = count
    while left > 0:
        batch = _batch(next(kinds), min(EACH, left), chance)
        left -= sum(batch.payloads.values())
        yield batch


def _batch(dag: str, size: int, chance: random.Random) -> Batch:
    fails = dag.startswith("fails")
    payloads: Counter[str] = Counter()
    metrics: dict[str, float] = {}
    given: dict[str, Any] = {}
    lines: list[str] = []
    for number, place in enumerate(_places(fails=fails)[:size]):
        payloads[place] += 1
        if place == "metric":
            metrics[f"m{number}"] = _number(chance)
        elif place == "name":
            name = _text(chance)[:40] or f"empty{number}"
            fits = len(json.dumps([*metrics, name])) <= _NAMES and name not in {"step", "resumed_from", "checkpoint"}
            metrics[name if fits else f"name{number}"] = _number(chance)
        elif place == "checkpoint":
            given["checkpoint"] = _NO_PATH.sub("\x01", _text(chance)[:200])
        elif place == "line":
            lines += [_text(chance), "y" * chance.choice((10, 100_000))]
        elif place == "result":
            _add_result(given, chance)
        else:
            given |= {chance.choice(("raised", "recorded")): _text(chance) + chance.choice(("", "z" * 100_000))}
    return Batch(dag=dag, metrics=metrics, lines=tuple(lines), payloads=payloads, **given)


def _places(*, fails: bool) -> list[str]:
    """Return where the payloads of one job are reported: a job has one error, or several results."""
    ends = ["error", "line", "line", "line"] if fails else ["result"] * 4
    return [
        *ends,
        "metric",
        "name",
        "checkpoint",
        "line",
        "metric",
        "name",
        "metric",
        "metric",
        "name",
        *["metric"] * 5,
        *["line"] * 2,
    ]


def _number(chance: random.Random) -> Any:
    if chance.random() < 0.6:
        return chance.choice(_NUMBERS)
    (any_double,) = struct.unpack("<d", chance.randbytes(8))
    return any_double


def _text(chance: random.Random) -> str:
    if chance.random() < 0.6:
        return chance.choice(_TEXTS)
    return "".join(
        chr(chance.choice((chance.randrange(0x20), chance.randrange(0x110000)))) for _ in range(chance.randrange(1, 30))
    )


def _add_result(given: dict[str, Any], chance: random.Random) -> None:
    """Add a result of some type; or bytes that take the place of all, as another writer leaves them."""
    deep: Any = _number(chance)
    for _ in range(chance.choice((3, 31, 40, 200))):
        deep = [deep] if chance.random() < 0.5 else {_text(chance): deep}
    raw = (b'{"loss": NaN}', b"[" * 40_000, b"\xff\xfe", b"", b"9" * 5000, b'"\\u0000\\ud800"', b"[1e999]", b"x" * 60_000)
    kind = chance.randrange(6)
    if kind == 0:
        given["raw_result"] = chance.choice(raw)
        return
    many = [_number(chance) for _ in range(200)]
    value = (None, deep, many, {_text(chance): _text(chance)}, _number(chance), _text(chance))[kind]
    given["results"] = (*given.get("results", ()), value)


# --- The run ---------------------------------------------------------------------------------------------------------------


def perform_payloads(made: Deployment, count: int, seed: int) -> Verdict:
    """Run all of it in an Airflow that is up."""
    began = time.monotonic()
    folder = made.folder / "payloads"
    beats = [_Beats(made, folder / f"beats-{number}", f"beats-{number}") for number in range(2)]
    for one in beats:
        one.begins()
    eventually(lambda: all(len(one.lines()) > 10 for one in beats), timeout=_SOON, every=0.3, why=made.tell)
    quiet = max(one.longest() for one in beats).seconds
    before = _processes(made)
    wanted = list(batches(count, seed))
    wrong: list[str] = []
    for number in range(0, len(wanted), _AT_ONCE):
        runs = [
            _Run(made, batch, folder, f"payload-{number + place}")
            for place, batch in enumerate(wanted[number : number + _AT_ONCE])
        ]
        for run in runs:
            run.begins()
        for run in runs:
            found = run.ends()
            wrong += found
            print("".join(f"    {line[:4000]}\n" for line in found), end="", flush=True)
        wrong += _missing(made, before)
        done = sum(sum(batch.payloads.values()) for batch in wanted[: number + _AT_ONCE])
        print(f"  {done:>4} payloads, {len(wrong)} wrong", flush=True)
    longest = max(one.longest() for one in beats)
    busiest = max(gap.loop for one in beats for gap in one.gaps())
    for one in beats:
        wrong += one.ends()
    wrong += _missing(made, before)
    print("".join(one.late() for one in beats), end="", flush=True)
    if busiest > BUSY:
        wrong.append(f"an event loop was busy for {busiest:.2f} CPU seconds between two beats")
    places = sum((batch.payloads for batch in wanted), Counter[str]())
    return Verdict(
        payloads=places,
        jobs=len(wanted),
        seconds=time.monotonic() - began,
        quiet_gap=quiet,
        longest_gap=longest.seconds,
        loop=longest.loop,
        process=longest.process,
        busiest=busiest,
        wrong=tuple(dict.fromkeys(wrong)),
    )


def _as_floats(value: Any) -> Any:
    """JSONB keeps decimal digits, not doubles: a large one comes back as an integer that makes the same double."""
    return json.loads(json.dumps(value), parse_int=float)


class _Run:
    """One DAG run with one job."""

    def __init__(self, made: Deployment, batch: Batch, folder: Path, name: str) -> None:
        self._made, self._batch, self._name, self._folder = made, batch, name, folder / name

    def begins(self) -> None:
        self._folder.mkdir(parents=True)
        (self._folder / "payload").write_bytes(self._batch.packed())
        self._made.rest.trigger(self._batch.dag, self._name, {"folder": str(self._folder)})

    def ends(self) -> list[str]:
        """Wait for both tasks, and return what is not as it should be."""
        try:
            eventually(lambda: all(self._state(task) in _OVER for task in self._expected), timeout=_SOON, every=0.3)
        except AssertionError:
            return [self._told(f"tasks are {[self._state(task) for task in self._expected]} after long")]
        wrong = []
        for task, state in self._expected.items():
            if self._state(task) != state:
                wrong.append(self._told(f"task {task} is {self._state(task)}, not {state}\n{self._log(task)}"))
        return wrong + self._wrong_values()

    @property
    def _expected(self) -> dict[str, str]:
        """The state in which each task ends."""
        watched = {"watch": "success"} if self._batch.dag.endswith("deferred") else {}
        return {"train": "failed" if self._batch.fails else "success", **watched}

    def _wrong_values(self) -> list[str]:
        """Compare what arrived in XCom with what was reported."""
        rest, batch = self._made.rest, self._batch
        pushed = rest.xcom(batch.dag, self._name, "train", "metrics")
        names = sanitize.clean({name: float(number) for name, number in batch.metrics.items()})
        wrong = []
        if _as_floats(pushed) != _as_floats({**names, "watched": 1.0}):
            wrong.append(self._told(f"metrics are {pushed!r}, not {names!r}\n{self._log('train')}"))
        faults = rest.xcom(batch.dag, self._name, "train", "faults")
        if faults != int(batch.fails):
            wrong.append(self._told(f"faults are {faults!r}"))
        returned = rest.xcom(batch.dag, self._name, "train", "return_value")
        told = bool(batch.results) and batch.raw_result is None and not batch.fails
        result = read_result(result_text(list(batch.results)).encode()) if told else None
        if told and returned is None:
            wrong.append(self._told("nothing was returned"))
        elif told and _as_floats(returned["result"]) != _as_floats(result):
            wrong.append(self._told(f"the result is {str(returned['result'])[:200]!r}"))
        return wrong

    def _state(self, task: str) -> str | None:
        found = self._made.rest.task(self._batch.dag, self._name, task)
        return None if found is None else found.state

    def _told(self, text: str) -> str:
        return f"{self._name} of {self._batch.dag}: {text}"

    def _log(self, task: str) -> str:
        folder = (
            self._made.folder / "airflow" / "logs" / f"dag_id={self._batch.dag}" / f"run_id={self._name}" / f"task_id={task}"
        )
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.rglob("*.log")))


class _Gap(NamedTuple):
    """Between two beats: seconds, and CPU seconds of the event loop and of its process."""

    seconds: float
    loop: float
    process: float


class _Beats:
    """A deferred task of somebody else."""

    def __init__(self, made: Deployment, folder: Path, name: str) -> None:
        self._made, self._folder, self._name = made, folder, name

    def begins(self) -> None:
        self._folder.mkdir(parents=True)
        self._made.rest.trigger("unrelated", self._name, {"folder": str(self._folder)})

    def lines(self) -> list[dict[str, Any]]:
        path = self._folder / "beats"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def gaps(self) -> list[_Gap]:
        return [
            _Gap(*(later[key] - earlier[key] for key in ("at", "loop", "process")))
            for earlier, later in itertools.pairwise(self.lines())
        ]

    def late(self) -> str:
        """Return what the event loop did when beats were late."""
        path = self._folder / "late"
        return path.read_text() if path.exists() else ""

    def longest(self) -> _Gap:
        return max(self.gaps())

    def ends(self) -> list[str]:
        """Let it end, and return what is not as it should be: it has lived in one process, and succeeds."""
        pids = {line["pid"] for line in self.lines()}
        (self._folder / "enough").touch()
        try:
            eventually(lambda: self._state() == "success", timeout=_SOON, every=0.3)
        except AssertionError:
            return [f"the unrelated task {self._name} is {self._state()}, not success"]
        return [f"the unrelated task {self._name} has had {len(pids)} triggerers"] if len(pids) > 1 else []

    def _state(self) -> str | None:
        found = self._made.rest.task("unrelated", self._name, "beats")
        return None if found is None else found.state


def _processes(made: Deployment) -> dict[int, str]:
    """Return the first process of each component, and all those of the triggerers, whose second one runs the triggers."""
    found = {component.pid: name for name, component in made.components.items()}
    triggerers = {made.components[name].pid: name for name in TRIGGERERS}
    return found | {one.pid: triggerers[one.session] for one in processes() if one.session in triggerers}


def _missing(made: Deployment, before: dict[int, str]) -> list[str]:
    alive = {one.pid for one in processes()}
    return [
        f"a process of {name} has ended\n{made.components[name].tell()}" for pid, name in before.items() if pid not in alive
    ]
