"""Two workers from inside a program, with events: `python launch_events.py FOLDER [STEPS]`.

Ctrl-C (or SIGTERM) lets both save and leave their loops before it ends; the next run goes on from there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rallypoint.agent import Events, LaunchConfig, Std, launch_agent
from rallypoint.compat.launch_agent.events import StopAllTasks


def train(events: Events, folder: str, steps: int) -> tuple[str, int]:
    """Count in place of training; the checkpoint is a number in a file."""
    path = Path(folder, f"rank-{os.environ['RANK']}")
    done = int(path.read_text()) if path.exists() else 0

    def save() -> None:
        path.write_text(str(done))

    try:
        while done < steps:
            time.sleep(0.05)  # a step
            done += 1
            events.poll(done, total=steps, save=save)
    except StopAllTasks:
        return "stopped", done
    return "done", done


if __name__ == "__main__":
    events = Events()
    config = LaunchConfig(1, 1, 2, run_id="counting", rdzv_backend="c10d", tee={0: Std.ALL})
    print(launch_agent(config, train, [events, sys.argv[1], int((sys.argv[2:] or ["100"])[0])], events))
