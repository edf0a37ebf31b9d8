"""The web application of the tab. It is mounted into Airflow's API server; no other process imports it.

| path | allowed for | response |
|---|---|---|
| `ti` | everyone: it contains no data | the HTML document, which requests the rest |
| `assets/{digest}/{name}` | everyone | a script, the style |
| `api/dags/{dag_id}/job` | users who may read this DAG's task instances and logs | the page's values as JSON, with an ETag |
| `api/dags/{dag_id}/log` | the same | the last lines of one rank as text, of the role `role` |
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response

from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess, NotLiveError
from rallypoint.plugin.task import TaskKey, TaskSeen, map_index_of, read_task
from rallypoint.report.page.values import Page
from rallypoint.wire import codec
from rallypoint.wire.errors import RallypointError

__all__ = ["CSP", "Asset", "Assets", "create_app", "load", "may_read_logs", "may_read_task", "task_seen"]

#: No resources of other hosts, no inline scripts, and embedding only in Airflow's own pages.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One file."""

    body: bytes
    media_type: str


@dataclass(frozen=True, kw_only=True)
class Assets:
    """All files. `digest` changes when any file changes; `page` is the HTML document, which contains the digest."""

    digest: str
    page: bytes
    files: Mapping[str, Asset]


def load() -> Assets:
    """Read the files of this distribution."""
    files, page = {}, b""
    for file in sorted(resources.files("rallypoint.plugin").joinpath("static").iterdir(), key=lambda f: f.name):
        suffix = "." + file.name.rpartition(".")[2]
        if file.name == "page.html":
            page = file.read_bytes()
        elif suffix in _TYPES:
            files[file.name] = Asset(body=file.read_bytes(), media_type=_TYPES[suffix])
    digest = hashlib.sha256(b"".join(name.encode() + asset.body for name, asset in files.items())).hexdigest()[:16]
    return Assets(digest=digest, page=page.replace(b"{digest}", digest.encode()), files=files)


#: Number of last lines of each stream of a rank.
_LINES = 1000

_FOR_EVER = "public, max-age=31536000, immutable"

may_read_task = requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE)
#: The page contains last lines of logs.
may_read_logs = requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_LOGS)


def task_seen(
    dag_id: str,
    run_id: Annotated[str, Query()],
    task_id: Annotated[str, Query()],
    session: SessionDep,
    map_index: Annotated[str | None, Query()] = None,
) -> TaskSeen:
    """Return the requested task instance; raises an HTTP 404 if it does not exist."""
    key = TaskKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index_of(map_index))
    found = read_task(session, key)
    if found is None:
        raise HTTPException(404, f"task instance {key.task_id} [{key.map_index}] not found in run {key.run_id} of {dag_id}")
    return found


Seen = Annotated[TaskSeen, Depends(task_seen)]


def create_app(looker: Looker | None = None) -> FastAPI:
    """Return the application; `looker` finds the jobs."""
    looks = looker or Looker(access=LiveAccess.configured())
    files = load()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await looks.close()

    app = FastAPI(title="Rallypoint", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = CSP
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response

    @app.get("/ti")
    async def document() -> Response:
        return Response(files.page, media_type="text/html; charset=utf-8", headers={"Cache-Control": "no-cache"})

    @app.get("/assets/{digest}/{name}")
    async def asset(digest: str, name: str) -> Response:
        found = files.files.get(name)
        if found is None:
            raise HTTPException(404, f"file {name} not found")
        # While API servers are replaced, browsers request other digests: cache only files with their own digest for ever.
        keep = _FOR_EVER if digest == files.digest else "no-store"
        return Response(found.body, media_type=found.media_type, headers={"Cache-Control": keep})

    allowed = [Depends(may_read_task), Depends(may_read_logs)]

    @app.get("/api/dags/{dag_id}/job", dependencies=allowed)  # noqa: FAST003  the dependencies read the DAG's id
    async def job(request: Request, task: Seen) -> Response:
        page = await looks.look(task)
        body, tag = await asyncio.to_thread(_encoded, page)  # a page of a large job has megabytes
        headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    @app.get("/api/dags/{dag_id}/log", dependencies=allowed)  # noqa: FAST003  as above
    async def log(task: Seen, rank: Annotated[int, Query(ge=0)], role: Annotated[str, Query(max_length=63)] = "") -> Response:
        return Response(await _last_lines(looks, task, rank, role), media_type="text/plain; charset=utf-8")

    return app


def _encoded(page: Page) -> tuple[bytes, str]:
    """Return the page as JSON, and its ETag."""
    body = codec.dumps_long(page).encode()
    return body, f'"{hashlib.sha256(body).hexdigest()[:24]}"'


async def _last_lines(looks: Looker, task: TaskSeen, rank: int, role: str) -> str:
    try:
        lines = await looks.tail(task, rank, lines=_LINES, role=role)
    except NotLiveError as error:
        raise HTTPException(
            404, f"{error} You can also read the output of the workers in the task's log or with `rallypoint logs`."
        ) from error
    except asyncio.TimeoutError as error:
        raise HTTPException(503, "the backend of the job does not respond") from error
    except (OSError, RallypointError) as error:
        raise HTTPException(503, str(error)) from error
    if not lines:
        raise HTTPException(404, f"the output of rank {rank} no longer exists; see the task's log")
    return "".join(f"{line.stream}  {line.text}\n" for line in lines)
