"""A training that reports what `FOLDER/payload` holds, and then ends, or fails: `payload_script.py FOLDER`."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress, report_result

folder = Path(sys.argv[1])
told = pickle.loads((folder / "payload").read_bytes())

for line in told["lines"]:
    sys.stdout.buffer.write(line.encode(errors="surrogatepass") + b"\n")
sys.stdout.flush()
for step in range(1, 4):
    report_progress(step, checkpoint=told["checkpoint"] or None, **told["metrics"], watched=1.0)
    time.sleep(0.5)  # an agent looks now and then; what it never saw was never reported
if told["results"]:
    report_result(list(told["results"]))
if told["raw_result"] is not None:
    Path(os.environ["RALLYPOINT_RESULT_FILE"]).write_bytes(told["raw_result"])
if told["recorded"] is not None:
    # As torch's `record` does.
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(
        json.dumps({"message": {"message": told["recorded"], "extraInfo": {}}})
    )
    sys.exit(1)
if told["raised"] is not None:
    raise RuntimeError(told["raised"])
