from __future__ import annotations

import importlib

import airflow
import pytest

from rallypoint.provider.info import get_provider_info


def test_airflow_accepts_the_provider_info():
    """The description fits the schema that Airflow's provider manager reads by."""
    import json
    from pathlib import Path

    jsonschema = pytest.importorskip("jsonschema")

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())

    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_only_what_exists_is_named(kind):
    """Every module that is named can be imported and exports something."""
    for entry in get_provider_info()[kind]:
        for name in entry["python-modules"]:
            assert importlib.import_module(name).__all__
