"""A program of the chaos soak that trains by `launch_agent`: `calling.py FOLDER STEPS`; FOLDER/returned is what it returned."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rallypoint.agent import LaunchConfig, launch_agent
from tests.soak.learner import learn

if __name__ == "__main__":
    folder, steps = sys.argv[1:3]
    config = LaunchConfig(1, 1, 2, run_id="chaos", rdzv_backend="c10d", max_restarts=1000, shutdown_timeout=2)
    told = launch_agent(config, learn, [folder, int(steps), "plain"])
    Path(folder, "returned").write_text(json.dumps(told))
