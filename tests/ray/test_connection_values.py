"""Values of a Ray connection that only its editors may read: where they are after a task has used it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rallypoint.backends import registry
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.operators import ElasticTrainingOperator
from rallypoint.operators.reporting import note_job
from rallypoint.provider import backend_access
from rallypoint.provider.trigger import ElasticTrainingTrigger
from tests.provider.tasks import FakeTask, Store, context

SECRET = "canary-of-wandb-5f1c"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> str:
    extra = {"platform": "ray", "address": "http://127.0.0.1:9", "runtime_env": {"env_vars": {"WANDB_API_KEY": SECRET}}}
    text = {"conn_type": "rallypoint", "password": "canary-of-the-token", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_RAY", json.dumps(text))
    return "ray"


def test_the_runtime_environment_is_in_nothing_that_others_read(connection: str, home: Path) -> None:
    """Arguments of the trigger, the task's note, and the command line of the supervisor; a submission reads the connection."""
    task, store = FakeTask(), Store()
    job = {"name": "digits", "entrypoint": "/train.py"}
    operator = ElasticTrainingOperator(task_id="train", conn_id=connection, job=job)

    claim = operator._claim(context(task), "digits")
    note_job(context(task, task_state_store=store), claim, xcom=True, log=operator.log)
    located = backend_access.resolve(claim.place)
    pid = registry.spawn_supervisor(claim.name, located.site, located.credentials)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        variables = Path(f"/proc/{pid}/environ").read_text()
    finally:
        os.kill(pid, signal.SIGKILL)

    left = json.dumps([ElasticTrainingTrigger.of(claim).serialize(), task.pushed, dict(store), words])
    # The variable of Airflow itself holds the whole connection in this test.
    own = [line for line in variables.split("\0") if not line.startswith("AIRFLOW_CONN_")]
    assert [secret for secret in (SECRET, "canary-of-the-token") if secret in left or secret in repr(own)] == []
    assert words[words.index("--address") + 1] == "http://127.0.0.1:9"
    submitting = registry.open_site(located.site, located.credentials)
    assert isinstance(submitting, RayBackend)
    assert json.loads(submitting.access.runtime_env) == {"env_vars": {"WANDB_API_KEY": SECRET}}
