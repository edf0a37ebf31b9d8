"""The counters of a run, and where they go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.compat.launch_agent.calling import Outlet, counters, read_outlet


@pytest.mark.parametrize(
    ("succeeded", "rounds", "end"),
    [
        pytest.param(True, 1, "run_success_no_retries", id="well"),
        pytest.param(True, 2, "run_success_with_retries", id="well-at-last"),
        pytest.param(False, 1, "run_failed_no_retries", id="badly"),
        pytest.param(False, 2, "run_failed_with_retries", id="badly-after-all"),
    ],
)
def test_a_run_has_one_end(succeeded: bool, rounds: int, end: str) -> None:
    """By torch's names."""
    told = counters("r", succeeded=succeeded, rounds=rounds, seconds=1.5)

    ends = {name for name, value in told.items() if "run_success" in name or "run_failed" in name if value}
    assert ends == {f"workers.r.{end}"}
    assert (told["workers.r.run_total"], told["workers.r.rounds"], told["workers.r.duration.ms"]) == (1, rounds, 1500)


def test_a_file_gets_a_line_each(tmp_path: Path) -> None:
    """Behind what is there."""
    outlet = read_outlet({"destination": "file", "path": str(tmp_path / "m")})

    for at in (1.0, 2.0):
        outlet.put({"a": 1}, run_id="job", at=at)

    lines = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    assert lines == [{"at": at, "run_id": "job", "name": "a", "value": 1} for at in (1.0, 2.0)]


def test_the_console_reads_like_torchs(capfd: pytest.CaptureFixture[str]) -> None:
    """On stderr."""
    read_outlet({"destination": "console"}).put({"a": 1}, run_id="job", at=1.0)

    assert capfd.readouterr().err == "[1.000][torchelastic]: a=1\n"


def test_nothing_is_told_by_default() -> None:
    """As in torch."""
    assert read_outlet({}) == Outlet()


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        pytest.param(
            {"where": "x"},
            "metrics_cfg: key 'where' is not allowed; expected the keys destination and path",
            id="key",
        ),
        pytest.param({"destination": "x"}, r"metrics_cfg\['destination'\]: 'x' is not allowed", id="destination"),
        pytest.param(
            {"destination": "file"}, r"metrics_cfg\['path'\]: is missing; destination 'file' requires a path", id="no-path"
        ),
        pytest.param({"path": "x"}, r"metrics_cfg\['path'\]: 'x' is not allowed with destination 'null'", id="idle-path"),
    ],
)
def test_a_wrong_config_is_an_error(cfg: dict[str, str], words: str) -> None:
    """It names the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=words):
        read_outlet(cfg)
