"""A training in miniature that keeps a ledger: `train.py FOLDER`, until the file `enough` is in there.

Each process writes a line when it begins (which job, attempt and round it belongs to), and holds a lock while it trains. Who
finds the lock taken waits, because a killed process may still be going, and then writes that it is not alone. No torch is
imported.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress

#: Seconds that a killed process may take to let its lock go, on a machine that has much to do.
_GOING = 30.0

folder = Path(sys.argv[1])


def write(what: str) -> None:
    """Add a line to the ledger; lines of two processes never mix."""
    line = {
        "what": what,
        "pid": os.getpid(),
        "job": os.environ["RALLYPOINT_JOB_MARK"],
        "attempt": os.environ["RALLYPOINT_ATTEMPT"],
        "round": os.environ["RALLYPOINT_ROUND"],
    }
    with (folder / "ledger").open("a") as file:
        file.write(json.dumps(line) + "\n")


lock = os.open(folder / "alone", os.O_RDWR | os.O_CREAT, 0o644)
deadline = time.monotonic() + _GOING
while True:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        if time.monotonic() > deadline:
            write("twice")
            break
        time.sleep(0.05)
write("begins")
for step in itertools.count(1):
    report_progress(step)
    if (folder / "enough").exists():
        break
    time.sleep(0.05)
write("ends")
