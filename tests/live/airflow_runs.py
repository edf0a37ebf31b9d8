"""Runs DAG files with `dag.test()` in a process of its own: Airflow reads its home, and warns, when it is imported.

    python -m tests.live.airflow_runs CONF FILE...

The last line of its output is JSON: for each DAG its state, and for each task its state and what it pushed to XCom.
Before what Airflow says of a file comes a line with the file's name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(conf: str, *files: str) -> None:
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    with create_session() as session:
        from airflow.models.dagbundle import DagBundleModel

        session.merge(DagBundleModel(name="tests"))
    print(json.dumps({name: told for file in files for name, told in run(Path(file), json.loads(conf)).items()}))


def run(file: Path, conf: dict[str, Any]) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    print(f"--- {file.stem}", flush=True)
    bag = DagBag(dag_folder=str(file))
    if bag.import_errors:
        raise SystemExit(str(bag.import_errors))
    sync_bag_to_db(bag, "tests", None)
    return {name: tell(dag.test(run_conf=conf)) for name, dag in bag.dags.items()}


def tell(dag_run: Any) -> dict[str, Any]:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(XComModel).filter(XComModel.run_id == dag_run.run_id, XComModel.dag_id == dag_run.dag_id).all()
        pushed = [(row.task_id, row.key, XComModel.deserialize_value(row)) for row in rows]
    tasks = {
        ti.task_id: {"state": str(ti.state), "xcom": {key: value for task, key, value in pushed if task == ti.task_id}}
        for ti in dag_run.get_task_instances()
    }
    return {"state": str(dag_run.state), "tasks": tasks}


if __name__ == "__main__":
    main(*sys.argv[1:])
