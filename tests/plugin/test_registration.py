"""The plugin as Airflow finds it: by an entry point, light in every process but an API server."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

from tests.plugin.serving import ROOT, airflow_env

LIGHT = """
import json, sys
from airflow.sdk import BaseOperator
from airflow.sdk.plugins_manager import AirflowPlugin
before = set(sys.modules)
from rallypoint.plugin.registration import RallypointPlugin
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps([sorted(new - set(sys.stdlib_module_names)), RallypointPlugin.fastapi_apps, RallypointPlugin.external_views]))
"""


def test_the_plugin_is_light_where_nobody_serves_it(tmp_path):
    """A worker that loads plugins gets neither FastAPI nor a backend with it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIGHT],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=airflow_env(tmp_path),
    )
    new, apps, (view,) = json.loads(done.stdout.splitlines()[-1])

    assert new == ["rallypoint"]
    assert apps == []
    assert view["destination"] == "task_instance"
    assert view["href"].startswith("rallypoint/ti?")
    assert all(word in view["href"] for word in ("{DAG_ID}", "{RUN_ID}", "{TASK_ID}", "{MAP_INDEX}"))


def test_airflow_is_told_of_it_by_an_entry_point():
    """Airflow does not load the plugins that a provider's description names, unless it is asked to."""
    found = [e for e in metadata.entry_points(group="airflow.plugins") if e.name == "rallypoint"]

    assert [e.value for e in found] == ["rallypoint.plugin.registration:RallypointPlugin"]
