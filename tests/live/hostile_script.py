"""A training that writes more than any other: `hostile_script.py KIND JOB_FOLDER`.

KIND: `pattern` (one last line on which the pattern of the job's rule takes years, and exit code 1), `lines` (lines of 64 KiB of
control characters), `ranks`, `events` or `metrics` (the largest status that is read, in the place of the coordinator's, with
that many of these).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rallypoint.training import report_progress
from rallypoint.wire.bounds import VALUES

#: Seconds for which it writes.
SECONDS = 4.0


def filled(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a valid status with nearly as many values as are read."""
    if kind == "ranks":
        one = {"rank": 0, "node": 0, "local_rank": 0, "pid": 5, "step": 7}
        return status | {"ranks": [one | {"rank": n} for n in range(VALUES // 6 - 200)]}
    if kind == "events":
        return status | {"events": [{"at": time.time() + n, "kind": f"k{n}", "detail": "d"} for n in range(VALUES // 4 - 200)]}
    metrics = {f"m{n}": n + 1.2345678901234567e-300 for n in range(VALUES - 1000)}
    return status | {"progress": status["progress"] | {"metrics": metrics}}


def main(kind: str, folder: Path) -> None:
    """Write, again and again."""
    report_progress(1, loss=1.0)
    if kind == "pattern":
        sys.exit("x" * 60 + "!")
    end = time.monotonic() + SECONDS
    line = b"\x01" * 65_000 + b"\n"
    target, fresh = folder / "status.json", folder / "status.mine"
    while time.monotonic() < end:
        if kind == "lines":
            sys.stdout.buffer.write(line * 50)
            sys.stdout.flush()
        elif target.exists():
            fresh.write_text(json.dumps(filled(json.loads(target.read_text()), kind)))
            fresh.replace(target)
        time.sleep(0.1)


main(sys.argv[1], Path(sys.argv[2]))
