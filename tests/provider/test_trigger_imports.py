"""Airflow imports a trigger's class in the event loop that all triggers share, so its module imports little."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, sys
import airflow.triggers.base
had = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - had)))
"""

#: Packages that take a tenth of a second or more.
HEAVY = ("rallypoint.backends", "rallypoint.job", "rallypoint.report", "rallypoint.supervision", "rallypoint.training", "yaml")


@pytest.mark.parametrize("module", ["rallypoint.provider.trigger", "rallypoint.provider.sensing.watching"])
def test_the_module_of_a_trigger_imports_little(module: str) -> None:
    """What supervises and looks at jobs comes later, in a thread: it takes half a second and more."""
    done = subprocess.run([sys.executable, "-c", MEASURE.format(module=module)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    new = json.loads(done.stdout.splitlines()[-1])

    assert module in new
    assert [name for name in new if name.startswith(HEAVY)] == []
