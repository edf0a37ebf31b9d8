"""A process with nothing in it but triggers, as a triggerer has them: one event loop, Airflow imported, their own `run`.

    python -m benchmarks.triggerer_process

It is told what to do by lines of JSON on its standard input, and answers each with one line.

    {"import": KIND}                 import the triggers of a kind, `ours` or `peer`, and answer
    {"begin": KIND, "names": [...]}  run a trigger for each job or pod, of ours a sensor's trigger as well
    {"until": NAME}                  wait for the event of one of them, and answer
    {"figures": true}                answer CPU seconds and resident bytes of this process, and what has come of its triggers
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

__all__: list[str] = []


def main() -> None:
    """Serve until standard input ends."""
    # Triggers log to standard output, which in a triggerer is somebody else's work.
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    logging.disable(logging.WARNING)
    asyncio.run(_serve(answers))


async def _serve(answers: TextIO) -> None:
    tasks: dict[str, asyncio.Task[float]] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        if "import" in asked:
            _triggers(asked["import"], ["none"])
        if "begin" in asked:
            for name, trigger in _triggers(asked["begin"], asked["names"]):
                tasks[name] = asyncio.create_task(_first_event(trigger))
        if "until" in asked:
            await asyncio.wait([tasks[asked["until"]]])
        ended = {name: task.result() for name, task in tasks.items() if task.done() and task.exception() is None}
        broken = [repr(task.exception()) for task in tasks.values() if task.done() and task.exception() is not None]
        figures = {"cpu": time.process_time(), "memory": _memory(), "ended": ended, "broken": broken}
        answers.write(json.dumps(figures) + "\n")
        answers.flush()


async def _first_event(trigger: Any) -> float:
    """Run a trigger to its event; return when it came, by the clock that all processes of a machine share."""
    async for _ in trigger.run():
        return time.monotonic()
    return time.monotonic()


def _triggers(kind: str, names: Iterable[str]) -> list[tuple[str, Any]]:
    return [each for name in names for each in (_ours(name) if kind == "ours" else _peer(name))]


def _ours(name: str) -> list[tuple[str, Any]]:
    from rallypoint.provider.sensing.watching import JobConditionTrigger  # noqa: PLC0415
    from rallypoint.provider.trigger import ElasticTrainingTrigger  # noqa: PLC0415  measured by its own import

    claim = {"name": name, "owner": "benchmark", "poll_interval": 15.0, "get_logs": False, "deadline": None, "home": ""}
    training = ElasticTrainingTrigger(backend="kubernetes", namespace="default", on_kill_action="delete_job", **claim)
    never = {"kind": "rendezvous", "min_nodes": 1000}
    sensor = JobConditionTrigger(condition=never, job_name=name, backend="kubernetes", namespace="default", poll_interval=15.0)
    return [(name, training), (f"{name} sensor", sensor)]


def _peer(name: str) -> list[tuple[str, Any]]:
    from airflow.providers.cncf.kubernetes.triggers.pod import (  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
        KubernetesPodTrigger,
    )

    trigger = KubernetesPodTrigger(
        pod_name=name,
        pod_namespace="default",
        trigger_start_time=datetime.datetime.now(tz=datetime.timezone.utc),
        base_container_name="trainer",
        kubernetes_conn_id=None,
        config_dict=json.loads(os.environ["PEER_KUBECONFIG"]),
        in_cluster=False,
        get_logs=False,
        on_finish_action="keep_pod",
    )
    return [(name, trigger)]


def _memory() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
