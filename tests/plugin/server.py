"""The tab's application with invented jobs, in a process of its own: Airflow reads its home when it is imported.

    python -m tests.plugin.server

It prints its port, and serves until its standard input is closed. The DAG of an address names the scene (scenes.py).
"""

from __future__ import annotations

import asyncio
import email.utils
import socket
import sys
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
from tests.plugin.scenes import SCENES

#: Seconds between the newest word of a job and its being looked at, as the browser is told.
LATER = 1.4


class Scenes(Looker):
    """Finds the scene that the DAG names."""

    async def look(self, task: TaskSeen) -> Page:
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


def application() -> FastAPI:
    app = create_app(Scenes(access=LiveAccess(home=Path())))
    app.dependency_overrides.update({may_read_task: allowed, may_read_logs: allowed, task_seen: named})

    @app.middleware("http")
    async def at_that_time(request: Request, call_next: Any) -> Any:
        """Tell the time of the scene, so that it is as fresh as when it happened."""
        response = await call_next(request)
        _, _, rest = request.url.path.partition("/dags/")
        scene = SCENES.get(rest.partition("/")[0])
        page = scene() if scene else None
        if page is not None and page.as_of:
            response.headers["Date"] = email.utils.formatdate(page.as_of + LATER, usegmt=True)
        return response

    whole = FastAPI()
    whole.mount("/rallypoint", app)
    return whole


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(), log_level="warning", date_header=False))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
