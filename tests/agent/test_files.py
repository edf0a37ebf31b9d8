"""The files that an agent reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_json
from rallypoint.wire.endpoint import Endpoint


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A script that leaves one in the place of the endpoint would keep its agent from leaving the job."""
    os.mkfifo(tmp_path / "endpoint.json")

    with pytest.raises(ConfigError, match=r"endpoint\.json: cannot read the file: not a regular file"):
        read_json(Endpoint, tmp_path / "endpoint.json")
