"""What Airflow masks in the values of a simple role is masked in all that a task shows of its pods."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

import pytest
from airflow.sdk.log import mask_secret

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.errors import TrainingFailed
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.manifests import IMAGE
from tests.kube.operator_tasks import on_emulator, shown
from tests.provider.tasks import FakeTask, context

pytestmark = pytest.mark.live

SCRIPT = """
import os, sys
raise ValueError("cannot log in with " + os.environ["WAREHOUSE"] + " as " + sys.argv[1])
"""

SECRETS = {"WAREHOUSE": "ABC$$(x)s3cret-of-$(POD_IP)", "ARGUMENT": "ARG$$$$s3cret"}


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
            on_emulator(ElasticTrainingOperator, cluster.url, job=job, backend="kubernetes", get_logs="all").execute(
                context(ti)
            )
        record, page = asyncio.run(shown(cluster.url, "leaks"))

    texts = (str(failed.value), record, page, caplog.text, json.dumps(ti.pushed))
    assert [text for text in texts if "s3cret" in text] == []
    assert all("cannot log in with *** as ***" in text for text in texts[:4])
