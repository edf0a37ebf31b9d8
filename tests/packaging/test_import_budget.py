"""What a DAG file pays for naming our operators and sensors; `benchmarks/dag_import.py` measures it in milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("airflow.sdk", reason="needs the extra `airflow`")

MEASURE = """
import json, resource, sys
from pathlib import Path
from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator, dag, task
import airflow.sdk.bases.decorator
def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
before, had = memory(), set(sys.modules)
from rallypoint.operators import *
from rallypoint.sensors import *
from rallypoint.decorators import *
print(json.dumps([sorted(set(sys.modules) - had), memory() - before]))
"""

#: Rooms that a task needs when it runs, and a DAG file does not.
LATER = (
    "rallypoint.agent",
    "rallypoint.backends.contract",
    "rallypoint.backends.kubernetes",
    "rallypoint.backends.local",
    "rallypoint.backends.registry",
    "rallypoint.job",
    "rallypoint.supervision.record",
    "rallypoint.training",
    "rallypoint.wire.incident",
    "rallypoint.wire.plan",
    "rallypoint.wire.status",
)


def test_a_dag_file_pays_for_names_and_little_else():
    """Nothing that is neither ours nor of the SDK, none of the rooms behind the doors, and at most 5 MB."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    new, memory = json.loads(done.stdout.splitlines()[-1])

    ours = {name.split(".")[0] for name in new if not name.startswith("airflow.sdk")}
    assert ours - sys.stdlib_module_names == {"rallypoint"}
    assert [name for name in new if name.startswith(LATER)] == []
    assert memory <= 5_000_000
