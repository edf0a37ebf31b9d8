"""A training in miniature: counts steps, checkpoints each, resumes, and tells what happened in the order of a real script.

Arguments: STEPS SECONDS_PER_STEP [MODE]. Modes: `well`, `fail` (raises at step 3 of each attempt), `stubborn` (ignores
SIGTERM), `chatty` (prints 4 KiB a step), `saving` (checkpoints only when it is asked to stop). Where COUNT_UNTIL names a file
it counts on beyond STEPS until that is there: a test that acts in the middle decides when the middle is over.
It imports no torch, so that many of these run at once on a small machine.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress, stop_requested

steps, pause = int(sys.argv[1]), float(sys.argv[2])
mode = sys.argv[3] if len(sys.argv) > 3 else "well"
until = os.environ.get("COUNT_UNTIL")
rank, round_ = int(os.environ["RANK"]), os.environ["RALLYPOINT_ROUND"]
folder = Path(os.environ["RALLYPOINT_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
checkpoint = folder / f"rank-{rank}"
start = int(checkpoint.read_text()) if checkpoint.exists() else 0
print(f"round {round_}: rank {rank} of {os.environ['WORLD_SIZE']} resumes from {start}", flush=True)
for step in itertools.count(start + 1):
    if step > steps and (until is None or os.path.exists(until)):  # noqa: PTH110 - asked at each step of many processes
        break
    time.sleep(pause)
    if mode == "chatty":
        print("x" * 4096, flush=True)
    if mode == "fail" and step >= 3:
        print("about to divide", file=sys.stderr, flush=True)
        raise ZeroDivisionError("the loss is not a number")
    stops = mode == "saving" and stop_requested()
    if stops or mode != "saving":
        temporary = folder / f".rank-{rank}"
        temporary.write_text(str(step))
        temporary.replace(checkpoint)
    report_progress(step, resumed_from=start, checkpoint=str(checkpoint), loss=1.0 / step)
    if stops:
        print(f"rank {rank} saved step {step} and stops", flush=True)
        sys.exit(143)
print(f"rank {rank} is done", flush=True)
