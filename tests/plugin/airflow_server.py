"""A real Airflow API server over a DAG that has run, in a process of its own.

    python -m tests.plugin.airflow_server

It runs the DAG with `dag.test()`, prints the name of the run as JSON, then its port, and serves until its standard input is
closed. Who asks without credentials is nobody: the user is `ada`, with the password of the file that Airflow is told of.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn

from tests.waiting import eventually_async

DAG = Path(__file__).parent / "dags" / "counting.py"


def run_dag() -> str:
    """Run the DAG, and return the name of its run."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))

    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    bag = DagBag(dag_folder=str(DAG))
    if bag.import_errors:
        raise SystemExit(str(bag.import_errors))
    sync_bag_to_db(bag, "tests", None)
    run = bag.dags["counting"].test()
    if str(run.state) != "success":
        raise SystemExit(f"the run ended as {run.state}")
    return str(run.run_id)


async def serve() -> None:
    """Serve Airflow's own application until the standard input is closed."""
    # As `airflow api-server` does: it alone imports this, and reads connections from the database.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    from airflow.api_fastapi.main import app

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await eventually_async(lambda: server.started or serving.done())
    print(listening.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    Path(os.environ["TEST_FOLDER"], "run.json").write_text(json.dumps(run_dag()), encoding="utf-8")
    asyncio.run(serve())
