"""`Job.submit(conn_id=...)`: what a connection adds to the document that is submitted, and to its command."""

from __future__ import annotations

import pytest

from rallypoint import connected
from rallypoint.backends.site import KUBERNETES, LOCAL, Site
from rallypoint.job import JobError
from rallypoint.provider.connections.connection import NO_DEFAULTS, Defaults

DOCUMENT = {"name": "rl", "roles": {"judge": {"launch": "simple", "entrypoint": "judge.py", "total": 2}}}


def test_a_connection_comes_before_the_defaults_of_submit():
    """The document wins over both; a role gets the image and the queue."""
    policies = {"fault_tolerance": {"retry_limit": 7}, "recovery": {"node_replacements": 8}}
    defaults = Defaults(image="train:1", queue="gpus", policies=policies)
    document = {**DOCUMENT, "recovery": {"node_replacements": 4}}

    found = connected.completed(document, defaults, Site(kind=KUBERNETES))

    assert found["fault_tolerance"]["retry_limit"] == 7
    assert found["recovery"]["node_replacements"] == 4
    assert found["master"]["max_restarts"] == 10
    (role,) = found["roles"]
    assert (role["image"], role["queue"], role["entrypoint"]) == ("train:1", "gpus", "judge.py")


def test_paths_of_a_local_job_start_in_the_current_folder(tmp_path, monkeypatch):
    """In a cluster they are those of the image."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").touch()

    found = connected.completed(DOCUMENT, NO_DEFAULTS, Site(kind=LOCAL))

    elsewhere = connected.completed(DOCUMENT, NO_DEFAULTS, Site(kind=KUBERNETES))

    assert [role["workdir"] for role in found["roles"]] == [str(tmp_path)]
    assert all("workdir" not in role for role in elsewhere["roles"])


def test_a_wrong_document_is_refused():
    """With the error of any document."""
    with pytest.raises(JobError, match="retry_limit"):
        connected.completed({**DOCUMENT, "fault_tolerance": {"retry_limit": -1}}, NO_DEFAULTS, Site(kind=LOCAL))


def test_a_connection_that_is_missing_ends_with_its_error(tmp_path, capsys, monkeypatch):
    """Nothing is submitted."""
    pytest.importorskip("airflow")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    file = tmp_path / "rl.yaml"
    file.write_text("name: rl\nentrypoint: train.py\n")

    assert connected.main(["none", str(file), "--backend=local"]) == 1

    error = "rallypoint: conn_id: Airflow connection 'none' not found; create this connection, or choose another\n"
    assert capsys.readouterr().err.endswith(error)
