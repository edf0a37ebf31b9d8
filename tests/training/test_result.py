"""What rank 0 leaves for its agent."""

from __future__ import annotations

import json
import math

import pytest

from rallypoint.training import report_result
from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.result import RESULT_LIMIT, read_result, result_text


def test_the_last_result_is_left_in_the_file(tmp_path, monkeypatch):
    """In one step, so that its reader sees a whole one."""
    path = tmp_path / "result-1.json"
    monkeypatch.setenv(env.RESULT_FILE, str(path))

    report_result({"accuracy": 0.5})
    report_result({"accuracy": 0.97, "path": "/ckpt/é"})

    assert read_result(path.read_bytes()) == {"accuracy": 0.97, "path": "/ckpt/é"}
    assert [file.name for file in tmp_path.iterdir()] == ["result-1.json"]


def test_in_a_pod_a_result_is_written_into_the_termination_message(monkeypatch, tmp_path):
    """Which no other file can replace, and which holds less than a result elsewhere."""
    path = tmp_path / "termination-log"
    path.write_text("an earlier and longer message that is gone")
    monkeypatch.setenv(env.RESULT_FILE, str(path))
    monkeypatch.setenv(env.RESULT_LIMIT, "20")
    inode = path.stat().st_ino

    report_result({"accuracy": 0.97})

    assert (path.stat().st_ino, read_result(path.read_bytes())) == (inode, {"accuracy": 0.97})
    with pytest.raises(WireError, match=r"22 bytes of JSON.*at most 20 bytes in a pod of this role"):
        report_result("x" * 20)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("limit", ["", "many", "-1", "99999999"])
def test_a_limit_that_is_none_is_that_of_all_results(monkeypatch, tmp_path, limit):
    """A script may change its environment."""
    path = tmp_path / "result.json"
    monkeypatch.setenv(env.RESULT_FILE, str(path))
    monkeypatch.setenv(env.RESULT_LIMIT, limit)

    report_result("x" * 5000)

    assert read_result(path.read_bytes()) == "x" * 5000


def test_on_other_ranks_a_result_is_checked_and_dropped(monkeypatch):
    """A script says the same on each rank."""
    monkeypatch.delenv(env.RESULT_FILE, raising=False)

    report_result([1, 2])
    with pytest.raises(WireError, match="result"):
        report_result({1, 2})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param("x" * RESULT_LIMIT, r"at most 49152 bytes \(48 KiB\); save larger values with the checkpoint", id="large"),
        pytest.param(
            object(),
            "'object' is not allowed; expected a JSON value",
            id="no JSON",
        ),
        pytest.param(
            {1: [{2}]},
            "'dict' is not allowed; expected a JSON value",
            id="no JSON inside",
        ),
    ],
)
def test_what_cannot_be_a_result_is_refused_with_the_way_out(value, says):
    """The limit by its number, and the checkpoint as the place for more."""
    with pytest.raises(WireError, match=says):
        result_text(value)


def test_the_largest_result_is_read_and_a_larger_one_is_not():
    """To the byte."""
    text = json.dumps("x" * (RESULT_LIMIT - 2)).encode()

    assert len(read_result(text)) == RESULT_LIMIT - 2
    with pytest.raises(WireError, match="at most 49152 bytes"):
        read_result(text[:-1] + b'x"')
    with pytest.raises(WireError, match="expected JSON text"):
        read_result(b"Nan")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param({"loss": math.nan}, {"loss": "NaN"}, id="not a number"),
        pytest.param([math.inf, -math.inf], ["Infinity", "-Infinity"], id="infinite"),
        pytest.param("\ud800\x00", "\\ud800\\x00", id="no text"),
        pytest.param({1: 10**30}, {"1": "1" + 30 * "0"}, id="large"),
    ],
)
def test_a_number_or_text_that_json_lacks_does_not_fail_a_training_at_its_end(value, told):
    """Whoever reads the result sees what it was; a file that another writer has left is read alike."""
    assert read_result(result_text(value).encode()) == told
    assert read_result(json.dumps(value).encode()) == told
