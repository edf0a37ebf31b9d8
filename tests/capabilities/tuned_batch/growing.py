"""A training whose memory follows its batch, and that follows DLRover's file by itself: nothing of ours is imported for that.

Arguments: BYTES_PER_SAMPLE FOLDER. It writes the batch that it begins with into the file in place, over whatever stands there,
as DLRover's own loader does, and then takes each that has a higher version. Once FOLDER/fail is there the first attempt fails;
the second ends well when it has a batch that was tuned, and leaves it in FOLDER/second-RANK.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress

FIRST = 8

each, folder = int(sys.argv[1]), Path(sys.argv[2])
file = Path(os.environ["DLROVER_PARAL_CONFIG_PATH"])
attempt, rank = int(os.environ["RALLYPOINT_ATTEMPT"]), int(os.environ["RANK"])
batch, version = FIRST, 0

config = json.loads(file.read_text())
config["dataloader"]["batch_size"] = batch
file.write_text(json.dumps(config))
for step in itertools.count(1):
    try:
        loader = json.loads(file.read_text())["dataloader"]
    except ValueError:
        loader = {"version": 0}
    if loader["version"] > version:
        version, batch = loader["version"], loader["batch_size"]
    activations = b"x" * (batch * each)
    time.sleep(0.01)
    del activations
    report_progress(step, batch=float(batch))
    if attempt == 1 and (folder / "fail").exists():
        sys.exit("the first attempt was to fail")
    if attempt > 1 and batch != FIRST:
        (folder / f"second-{rank}").write_text(str(batch))
        break
