"""XComs of a task instance, from a triggerer: there is no `ti.xcom_push` there. Blocks; called in a thread."""

from __future__ import annotations

from rallypoint.provider.task_state import TaskKey

__all__ = ["read_xcom", "write_xcom"]


def read_xcom(ti: TaskKey, key: str) -> object:
    """Return the value, None where there is none; raises what an XCom backend may raise."""
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  brings the task runner's means

    found: object = XCom.get_one(key=key, **_names(ti))
    return found


def write_xcom(ti: TaskKey, key: str, value: object) -> None:
    """Set the value; raises what an XCom backend may raise."""
    from airflow.sdk.execution_time.xcom import XCom  # noqa: PLC0415  as above

    XCom.set(key=key, value=value, **_names(ti))


def _names(ti: TaskKey) -> dict[str, object]:
    index = -1 if ti.map_index is None else ti.map_index
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": index}
