"""A worker that does what its folder says: `obey.py FOLDER [MODE]`. It imports no torch.

It writes its process number to `FOLDER/started/ROUND.RANK`, then lives until `FOLDER/finish` is there and ends with 0. Modes:
`stubborn` ignores SIGTERM, and so does its child (`FOLDER/child.RANK`); `polite` writes `FOLDER/polite.RANK` on SIGTERM and
ends; `fail` ends with 3 after a traceback on rank 1; `record` does so with torch's error file; `step` reports step 7 and dies;
`count` reports a step every 20 ms.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rallypoint.wire.progress import ProgressFile, ProgressSlot

folder, mode = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
rank, round_ = os.environ["RANK"], os.environ["RALLYPOINT_ROUND"]


def write(name: str, text: object) -> None:
    """Write so that a reader sees all of it or nothing."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}")
    beside.write_text(str(text))
    beside.rename(path)


def leave_politely(*_: object) -> None:
    write(f"polite.{rank}", os.getpid())
    sys.exit(0)


if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    endless = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    write(f"child.{rank}", subprocess.Popen([sys.executable, "-c", endless]).pid)
if mode == "polite":
    signal.signal(signal.SIGTERM, leave_politely)
print(f"round {round_} rank {rank} of {os.environ['WORLD_SIZE']}", flush=True)
write(f"started/{round_}.{rank}", os.getpid())
if mode in ("fail", "record") and rank == "1":
    if mode == "record":
        error = {"message": {"message": "KeyError: 'recorded'", "extraInfo": {"py_callstack": "", "timestamp": "0"}}}
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(error))
    print("about to fail", file=sys.stderr)
    print("Traceback (most recent call last):\n  step()\nValueError: loss is nan", file=sys.stderr)
    sys.exit(3)
if mode == "step":
    progress = ProgressFile.open(Path(os.environ["RALLYPOINT_PROGRESS_FILE"]))
    progress.write(int(os.environ["LOCAL_RANK"]), ProgressSlot(step=7, metrics={"loss": 0.5}))
    os.kill(os.getpid(), signal.SIGKILL)
steps = 0
while not (folder / "finish").exists():
    time.sleep(0.02)
    if mode == "count":
        steps += 1
        ProgressFile.open(Path(os.environ["RALLYPOINT_PROGRESS_FILE"])).write(
            int(os.environ["LOCAL_RANK"]), ProgressSlot(step=steps)
        )
        write(f"steps.{rank}", steps)
print(f"rank {rank} is done", flush=True)
