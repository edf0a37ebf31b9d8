"""The files that an agent reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_json, require_disk_space
from rallypoint.wire.endpoint import Endpoint


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A script that leaves one in the place of the endpoint would keep its agent from leaving the job."""
    os.mkfifo(tmp_path / "endpoint.json")

    with pytest.raises(ConfigError, match=r"endpoint\.json: cannot read the file: not a regular file"):
        read_json(Endpoint, tmp_path / "endpoint.json")


def test_the_check_of_a_log_folder_follows_no_link(tmp_path: Path) -> None:
    """Others may write to the folder of logs, and know the numbers of the next processes."""
    precious, folder = tmp_path / "precious", tmp_path / "logs"
    precious.write_text("of the user\n")
    folder.mkdir()
    (folder / f".room-{os.getpid()}").symlink_to(precious)

    require_disk_space(folder)

    assert precious.read_text() == "of the user\n"
    assert [path.name for path in folder.iterdir()] == [f".room-{os.getpid()}"]
