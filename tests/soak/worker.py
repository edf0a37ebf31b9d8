"""A training in miniature that goes on until a file appears. Arguments: FILE SECONDS_PER_STEP."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress

over, pause = Path(sys.argv[1]), float(sys.argv[2])
folder = Path(os.environ["RALLYPOINT_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
checkpoint = folder / f"rank-{os.environ['RANK']}"
step = start = int(checkpoint.read_text()) if checkpoint.exists() else 0
while not over.exists():
    time.sleep(pause)
    step += 1
    temporary = checkpoint.with_name(f".{checkpoint.name}-{os.getpid()}")
    temporary.write_text(str(step))
    temporary.replace(checkpoint)
    report_progress(step, resumed_from=start, checkpoint=str(checkpoint))
