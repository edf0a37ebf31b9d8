"""An instance of a simple role: it notes when it began, and ends itself with SIGKILL in each of its first lives.

BENCH_KILLS lives are ended so, each after 2 s; then it ends with 0. With 0 it is a server that runs until it is ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

at = time.time()
life, kills = int(os.environ["RALLYPOINT_INCARNATION"]), int(os.environ["BENCH_KILLS"])
note = Path(os.environ["BENCH_RUN"]) / "instance.lines"


def say(killed: float) -> None:
    """Note this life, and when it is ended."""
    with note.open("a") as file:
        file.write(json.dumps({"life": life, "at": at, "killed": killed}) + "\n")


if not kills:
    say(0.0)
    while True:
        time.sleep(60)
time.sleep(2.0)
if life <= kills:
    say(time.time())
    os.kill(os.getpid(), signal.SIGKILL)
say(0.0)
