"""One try of a task in a process of its own, as a worker has it, to be killed: its connection `ray` names a Ray cluster.

    python -m tests.ray.airflow_task TRY NAME GATE STATE TRIES

The job NAME counts steps until the file GATE is there. TRIES is the number of tries that Airflow allows the task. As in
`tests/live/airflow_task.py`, SIGTERM is answered by `on_kill`, and STATE is what Airflow says of the task then.
"""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from typing import Any

from tests.live.airflow_task import Operator
from tests.provider.tasks import FakeTask, context

__all__ = ["operator"]

COUNT = textwrap.dedent("""
    import itertools, os, pathlib, time
    from rallypoint.training import report_progress

    for step in itertools.count(1):
        report_progress(step)
        if pathlib.Path(os.environ["GATE"]).exists():
            break
        time.sleep(0.05)
""")


def operator(name: str, gate: str, **given: Any) -> Operator:
    """Return the task, whose job has one node of two workers."""
    job = {
        "entrypoint": {"command": [sys.executable, "-c", COUNT]},
        "nproc_per_node": 2,
        "resources": {"cpu": "1"},
        "env": {"GATE": gate},
        "health": {"report_interval": "100ms"},
    }
    return Operator(task_id="train", conn_id="ray", job=job, name=name, poll_interval=0.2, **given)


def main(owner: str, name: str, gate: str, state: str, tries: str) -> None:
    task = operator(name, gate)
    task.airflow_says = state
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    print(json.dumps(task.execute(context(FakeTask(id=owner, max_tries=int(tries))))))


if __name__ == "__main__":
    main(*sys.argv[1:])
