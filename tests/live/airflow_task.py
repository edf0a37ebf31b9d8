"""One try of a task in a process of its own, as a worker has it, to be killed.

    python -m tests.live.airflow_task TRY FOLDER STATE

It trains tests/live/scripts/count.py with one node of two workers until the file `enough` is beside FOLDER, which holds the
checkpoints, and prints what the task returns as its last line. As
Airflow's task runner does, it answers SIGTERM by `on_kill`; STATE is what Airflow says of the task then.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from rallypoint.operators import ElasticTrainingOperator
from tests.provider.tasks import FakeTask, context

COUNT = Path(__file__).parent / "scripts" / "count.py"


class Operator(ElasticTrainingOperator):
    """An operator whose Airflow is played by this file."""

    airflow_says = "running"

    async def ask_state(self, context):
        return self.airflow_says


def main(owner: str, folder: str, state: str) -> None:
    task = Operator(
        task_id="train",
        entrypoint=str(COUNT),
        args=["20", "0.05"],
        env={"COUNT_UNTIL": str(Path(folder).with_name("enough"))},
        nproc_per_node=2,
        checkpoint_dir=folder,
        poll_interval=0.2,
    )
    task.airflow_says = state
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    print(json.dumps(task.execute(context(FakeTask(id=owner)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
