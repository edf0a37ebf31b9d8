"""Ends in the way that is asked for: `ending.py FOLDER WAY [stuck]`, where `stuck` has a destructor that never ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from pathlib import Path

FOLDER, WAY = Path(sys.argv[1]), sys.argv[2]
READ, WRITE = os.pipe()


class Stuck:
    """Blocks for ever when the interpreter is torn down: nothing is ever written to the pipe."""

    def __del__(self, read=os.read, end=READ) -> None:
        read(end, 1)


def flush(name: str) -> None:
    """Take longer than the grace, then leave a file."""
    time.sleep(2.0)
    (FOLDER / name).touch()


if "stuck" in sys.argv:
    stuck = Stuck()
    atexit.register((FOLDER / f"stuck-{os.getpid()}").touch)
if WAY == "slow":
    threading.Thread(target=flush, args=("thread",)).start()
    atexit.register(flush, "atexit")
if WAY == "code":
    sys.exit(3)
if WAY == "text":
    sys.exit("no data")
if WAY == "error":
    raise ValueError("the loss is not a number")
if WAY == "unknown":
    raise SystemExit(0)
