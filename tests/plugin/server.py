"""The tab's application with invented jobs, in a process of its own: Airflow reads its home when it is imported.

    python -m tests.plugin.server

It prints its port, and serves until its standard input is closed. The DAG of an address names the scene (scenes.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import gc
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

from rallypoint.backends.contract import LogLine
from rallypoint.plugin.app import create_app, may_read_logs, may_read_task, task_seen
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.report.page.values import Page
from tests.plugin.scenes import SCENES, page, running

#: Seconds between the newest word of a job and its being looked at, as the browser is told.
LATER = 1.4


class Beats:
    """How long everything else in the event loop waits, as `tests.live.test_trigger_blocks` measures it."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def beat(self) -> None:
        while True:
            wall, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, min(time.monotonic() - wall, time.process_time() - cpu))


def largest() -> Page:
    """Return a page of megabytes: one of 16,384 nodes."""
    record, status = running()
    assert status is not None
    member = dataclasses.replace(status.world[0], host="h" * 100, local_world_size=1)
    world = tuple(dataclasses.replace(member, node=number, first_rank=number) for number in range(16_384))
    return page((record, dataclasses.replace(status, world=world)))


class Scenes(Looker):
    """Finds the scene that the DAG names."""

    def __init__(self) -> None:
        super().__init__(access=LiveAccess(home=Path()))
        self.largest = largest()

    async def look(self, task: TaskSeen) -> Page:
        if task.key.dag_id == "largest":
            return self.largest
        found = SCENES[task.key.dag_id]()
        assert found is not None, f"{task.key.dag_id} is refused before anybody looks"
        return found

    async def tail(self, task: TaskSeen, rank: int, *, lines: int, role: str = "") -> tuple[LogLine, ...]:
        texts = (f"step {number} of rank {rank}" for number in range(40))
        return tuple(LogLine(rank=rank, stream="err", text=text, cursor="") for text in texts)[-lines:]


async def named(dag_id: str, run_id: str, task_id: str) -> TaskSeen:
    return TaskSeen(key=TaskKey(dag_id=dag_id, run_id=run_id, task_id=task_id))


async def allowed(request: Request) -> None:
    if request.path_params["dag_id"] == "no-permission":
        raise HTTPException(403, "Forbidden")


def application(beats: Beats) -> FastAPI:
    app = create_app(Scenes())
    app.dependency_overrides.update({may_read_task: allowed, may_read_logs: allowed, task_seen: named})

    @app.middleware("http")
    async def at_that_time(request: Request, call_next: Any) -> Any:
        """Tell the time of the scene, so that it is as fresh as when it happened."""
        response = await call_next(request)
        _, _, rest = request.url.path.partition("/dags/")
        scene = SCENES.get(rest.partition("/")[0])
        shown = scene() if scene else None
        if shown is not None and shown.as_of:
            response.headers["Date"] = email.utils.formatdate(shown.as_of + LATER, usegmt=True)
        return response

    whole = FastAPI()

    @whole.get("/longest-block")
    async def longest_block() -> float:
        """Tell the longest block since the last time."""
        longest, beats.longest = beats.longest, 0.0
        return longest

    whole.mount("/rallypoint", app)
    return whole


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    beats = Beats()
    server = uvicorn.Server(uvicorn.Config(application(beats), log_level="warning", date_header=False))
    gc.collect()
    gc.disable()  # a collection takes longer than what is measured
    serving, beating = asyncio.create_task(server.serve(sockets=[listening])), asyncio.create_task(beats.beat())
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    beating.cancel()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
