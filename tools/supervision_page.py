"""Write docs/reference/timers.md and the outputs in docs/explanation/supervision.md: `python tools/supervision_page.py`.

The timers come from `CLOCKS`, the output of every `$ rallypoint ...` block from that command, the record that one of them
explains from a simulation, and the schema of traces from the reader's own values.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rallypoint.job import compile_plan, load_job
from rallypoint.job.schema import wire_schema
from rallypoint.simulation.simulator import simulate
from rallypoint.simulation.trace import Trace
from rallypoint.supervision.clocks import CLOCKS, Clock
from rallypoint.supervision.policy import Policy
from rallypoint.wire.codec import to_json

__all__ = ["files", "main"]

ROOT = Path(__file__).resolve().parents[1]
PAGE, RECORD, SCHEMA = "docs/explanation/supervision.md", "docs/examples/digits.json", "docs/reference/trace.schema.json"

TIMERS = "docs/reference/timers.md"

_TIMERS_HEAD = """\
<!-- Written by `python tools/supervision_page.py`; change rallypoint/supervision/clocks.py, not this file. -->

# Timers

After reading this page, you know the timers of a job, the job field that sets each timer, and the effect of a timer that
expires. `rallypoint explain JOB` shows the timers that run. `rallypoint simulate` shows [how the timers react to a list of
faults](../explanation/supervision.md#simulate).

A job is *ready* when the ranks of the current round train (profile `appwrapper`: when all pods run). If the clock of the
machine is set back, the supervisor's timers keep their elapsed time. During a time without a supervisor, the timers advance
by at most two minutes.

"""

_PROPERTIES = (
    ("starts when", "starts"),
    ("pauses", "pauses"),
    ("is cancelled when", "ends"),
    ("effect at expiry", "then"),
    ("process that acts", "actor"),
    ("relation to other timers", "wins"),
)
_BLOCK = re.compile(r"```console\n\$ rallypoint (?P<words>[^\n]+)\n.*?```\n", re.DOTALL)


def files() -> dict[str, str]:
    """Return the text of each written file by its path in the repository."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    return {RECORD: _record(), SCHEMA: _schema(), TIMERS: _timers(), PAGE: _with_outputs(page)}


def main() -> int:
    """Write the files, those first that the commands on the page read; return 0."""
    for path, text in ((RECORD, _record()), (SCHEMA, _schema()), (TIMERS, _timers())):
        (ROOT / path).write_text(text, encoding="utf-8")
    (ROOT / PAGE).write_text(files()[PAGE], encoding="utf-8")
    return 0


# --- The pages -------------------------------------------------------------------------------------------------------------


def _timers() -> str:
    return _TIMERS_HEAD + "\n".join("\n".join(_timer(clock)) for clock in CLOCKS)


def _timer(clock: Clock) -> Iterator[str]:
    yield f"## The {clock.name} timer"
    yield ""
    yield _row(("Property", "Value"))
    yield _row(("---", "---"))
    yield _row(("setting", _setting(clock.setting)))
    for title, field in _PROPERTIES:
        yield _row((title, getattr(clock, field)))
    yield ""


def _setting(text: str) -> str:
    """Return a setting with its fields as code."""
    return re.sub(r"[a-z_]+\.[a-z_.*]*[a-z_]|[a-z]+(?:-[a-z]+)+", lambda found: f"`{found[0]}`", text)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _with_outputs(page: str) -> str:
    return _BLOCK.sub(lambda found: f"```console\n$ rallypoint {found['words']}\n{_output(found['words'])}```\n", page)


def _output(words: str) -> str:
    command = (sys.executable, "-m", "rallypoint.cli.main", *shlex.split(words))
    environment = {**os.environ, "TZ": "UTC", "NO_COLOR": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout


# --- The record that is explained ------------------------------------------------------------------------------------------

#: 2026-01-02 14:00:00 UTC.
_START = 1767362400.0

#: Fields of a record that are seconds since the epoch.
_TIMES = frozenset({"at", "created_at", "detected_at", "ended_at", "healed_at", "last_now", "ready_at", "started_at"})

_BOOM = {
    "node": 1,
    "local_rank": 1,
    "reason": "rank 3 (local rank 1) on node 1 (host-1) was killed by SIGKILL",
    "kind": "signal",
    "answer": "retry-here",
    "rule": "the table: signal",
    "culprit": {
        "node": 1,
        "incarnation": 1,
        "host": "host-1",
        "rank": 3,
        "local_rank": 1,
        "pid": 4711,
        "signal": 9,
        "log_tail": ["epoch 2: loss 0.31", "step 138"],
        "log_path": "/jobs/digits/nodes/1/attempt-1.1/logs/round-1/rank-3.err",
    },
    "healed_at": 212.4,
    "last_step": 138,
    "resumed_step": 100,
}

_STORY = {
    "startup": 9,
    "removal": 6,
    "until": 440,
    "steps": [
        {"at": 208, "step": 138, "incidents": [_BOOM]},
        {"at": 240, "step": 170},
        {"at": 260, "pods": "=F(137 oom)"},
        {"at": 300, "step": 210},
        {"at": 320, "pods": "=L"},
    ],
}


def _record() -> str:
    """Return what `rallypoint status digits --json` would print in the middle of a story."""
    # Somebody's folder, so that the record is the same wherever this is run.
    recovery = {"node_replacements": 1}
    job = load_job(name="digits", entrypoint="train.py", workdir="/home/ada/digits", nodes="2", recovery=recovery)
    (plan,) = compile_plan(job)
    plan = dataclasses.replace(plan, nproc_per_node=2)
    record = simulate(Policy.from_plan(plan), _STORY)[-1].record
    holder = {"id": "h1", "name": "rallypoint supervise", "host": "ada", "pid": 3107, "since": _START}
    shifted = {**_shifted(to_json(record)), "name": "digits", "uid": "u1", "owner": "cli", "holder": holder}
    document = {"version": 1, "record": shifted, "plan": to_json(plan), "status": None}
    return json.dumps(document, indent=1).replace("by simulation", "by cli") + "\n"


def _shifted(value: Any) -> Any:
    if isinstance(value, Mapping):
        # Of workers and their progress, 0 says that nobody knows when.
        unknown = bool({"pid", "metrics"} & value.keys())
        return {key: _moved(item) if key in _TIMES and (item or not unknown) else _shifted(item) for key, item in value.items()}
    return [_shifted(item) for item in value] if isinstance(value, list) else value


def _moved(item: float | None) -> float | None:
    return None if item is None else _START + item


# --- The schema of traces --------------------------------------------------------------------------------------------------


def _schema() -> str:
    """Return the schema of trace files: the reader's values, and the forms that it reads by itself."""
    schema = wire_schema(Trace)
    steps = schema["$defs"]["Step"]["properties"]
    seconds = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "description": "a duration such as 1m30s"}]}
    pod = {"anyOf": [{"type": "string", "description": "letters: RRPF(1)"}, {"type": "object"}]}
    steps["at"] = seconds
    steps["pods"] = {"anyOf": [*pod["anyOf"], {"type": "array", "items": pod}]}
    steps["coordinator"] = pod
    steps["create_error"] = {"anyOf": [{"type": "string"}, {"type": "object"}]}
    steps["verdict"] = {"anyOf": [{"enum": ["succeeded", "failed"]}, {"type": "object"}]}
    steps["component"] = {"enum": ["there", "missing", "deleting", "failed", None]}
    steps["status"] = {"enum": ["auto", "silent", "forming", "running", None]}
    for place in (steps, schema["properties"]):
        for name in ("startup", "removal"):
            place[name] = {"anyOf": [*seconds["anyOf"], {"type": "null"}]}
    schema["properties"]["until"] = seconds
    head = {key: schema.pop(key) for key in ("$schema", "title")}
    definitions = schema.pop("$defs")
    alone = {"description": "The steps alone.", "type": "array", "items": {"$ref": "#/$defs/Step"}}
    whole = {**head, "anyOf": [schema, alone], "$defs": definitions}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
