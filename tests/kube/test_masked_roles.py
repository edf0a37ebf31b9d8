"""What Airflow masks in the values of a simple role is masked in all that a task shows of its pods."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import pytest
from airflow.sdk.log import mask_secret

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.errors import TrainingFailed
from rallypoint.report.page.published import published_page
from rallypoint.wire import codec
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.manifests import IMAGE
from tests.provider.tasks import FakeTask, context

pytestmark = pytest.mark.live

SCRIPT = """
import os, sys
raise ValueError("cannot log in with " + os.environ["WAREHOUSE"] + " as " + sys.argv[1])
"""

SECRETS = {"WAREHOUSE": "ABC$$(x)s3cret-of-$(POD_IP)", "ARGUMENT": "ARG$$$$s3cret"}


class _Operator(ElasticTrainingOperator):
    """Runs on the emulated cluster, as a task that is not killed from outside."""

    def __init__(self, *, server: str, **arguments: Any) -> None:
        super().__init__(task_id="train", on_finish_action="keep_job", deferrable=False, poll_interval=0.1, **arguments)
        self.server = server

    def open_backend(self) -> KubernetesBackend:
        return KubernetesBackend(Access(namespace="default", server=self.server))

    async def ask_state(self, context: Any) -> str:
        return "running"


async def _shown(server: str) -> tuple[str, str]:
    """Return the stored record of the only job, and the page that a task would publish."""
    backend = KubernetesBackend(Access(namespace="default", server=server))
    try:
        (name,) = await backend.names()
        stored = await backend.load(name)
        assert stored is not None
        return codec.dumps(stored.record), json.dumps(await published_page(backend, name, tries={"x": 1}, place="here"))
    finally:
        await backend.close()


def test_a_secret_with_dollar_signs_is_masked_wherever_the_job_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The script gets exactly the value that Airflow masks."""
    for secret in SECRETS.values():
        mask_secret(secret)
    role = {
        "launch": "simple",
        "image": IMAGE,
        "entrypoint": [sys.executable, "-c", SCRIPT],
        "args": [SECRETS["ARGUMENT"]],
        "env": {"WAREHOUSE": SECRETS["WAREHOUSE"]},
        "instance_resources": {"gpus": 0},
        "on_failure": "job",
    }
    job = {
        "name": "leaks",
        "fault_tolerance": {"retry_limit": 0, "failure_grace_period": "1s"},
        "recovery": {"stop_grace_period": "1s", "max_restarts": 0, "node_replacements": 0},
        "roles": {"a": role},
    }
    caplog.set_level(logging.INFO)
    ti = FakeTask()

    with running(Options()) as cluster:
        with pytest.raises(TrainingFailed) as failed:
            _Operator(server=cluster.url, job=job, backend="kubernetes", get_logs="all").execute(context(ti))
        record, page = asyncio.run(_shown(cluster.url))

    texts = (str(failed.value), record, page, caplog.text, json.dumps(ti.pushed))
    assert [text for text in texts if "s3cret" in text] == []
    assert all("cannot log in with *** as ***" in text for text in texts[:4])
