"""One server with invented jobs for all tests of the tab: Airflow takes seconds to be imported."""

from __future__ import annotations

import pytest

from tests.plugin.serving import serving


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """The address of a server whose DAGs are the scenes."""
    with serving(tmp_path_factory.mktemp("airflow")) as address:
        yield f"{address}/rallypoint"
