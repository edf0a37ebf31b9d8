"""MindCluster's content: what is read of it, which entries are graceful fault tolerance's, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rallypoint.compat.mindcluster.node import Entry, ResetFile, read_reset
from rallypoint.wire.codec import WireError

#: As the device plugin writes it.
DEVICE = {
    "RankId": 3,
    "LogicId": 3,
    "Status": "unrecovered",
    "Policy": "reset",
    "InitialPolicy": "restart",
    "ErrorCode": [2147483648],
    "ErrorCodeHex": "80000000",
}


def written(*entries: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"RankList": list(entries), "UpdateTime": 1, "RetryTime": 0, "FaultFlushing": False, **fields})


def test_everything_that_concerns_processes_is_read() -> None:
    """By the names that MindCluster gives it; what is about devices alone is passed over."""
    text = written(DEVICE, {"RankId": 4, "Status": "fault"}, RetryTime=2, FaultFlushing=True, GracefulExit=1)

    assert read_reset(text) == ResetFile(
        entries=(Entry(rank=3, status="unrecovered", policy="reset"), Entry(rank=4, status="fault")),
        retries=2,
        flushing=True,
        graceful_exit=True,
    )
    assert read_reset(written(RestartFaultProcess=True)) == ResetFile(in_place=True)


@pytest.mark.parametrize("text", ["{}", '{"RankList": null}', written()])
def test_nothing_is_told_where_nothing_is_written(text: str) -> None:
    """Go writes an empty list as null."""
    assert read_reset(text) == ResetFile()


@pytest.mark.parametrize(
    ("policy", "foreign"),
    [
        pytest.param(None, False, id="recovery of processes writes none"),
        pytest.param("", False, id="an empty one"),
        pytest.param("empty", False, id="empty"),
        pytest.param("ignore", False, id="ignore"),
        pytest.param("restart_request", False, id="restart_request"),
        pytest.param("restart", True, id="restart"),
        pytest.param("free_reset", False, id="free_reset"),
        pytest.param("reset", True, id="reset"),
        pytest.param("isolate", False, id="isolate"),
    ],
)
def test_which_policies_are_graceful_fault_tolerances(policy: str | None, foreign: bool) -> None:
    """`reset` and `restart`, whatever else is in the list."""
    entry = {"RankId": 5, "Status": "unrecovered"} | ({} if policy is None else {"Policy": policy})
    found = read_reset(written({"RankId": 0, "Status": "fault"}, entry)).foreign
    assert found == (f"rank 5 has the policy {policy}" if foreign else "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            "",
            "reset file: '' is not allowed; expected a JSON object",
            id="empty",
        ),
        pytest.param('{"RankList": [', "expected a JSON object", id="half written"),
        pytest.param(
            "[]",
            "reset file: [] is not allowed; expected a JSON object",
            id="no object",
        ),
        pytest.param(
            '{"RankList": 3}',
            "RankList: 3 is not allowed; expected a list",
            id="no list",
        ),
        pytest.param(
            '{"RankList": [3]}',
            "RankList[0]: 3 is not allowed; expected an object",
            id="no entry",
        ),
        pytest.param(
            '{"RankList": [{}]}',
            "RankList[0].RankId: None is not allowed; expected a whole number",
            id="no rank",
        ),
        pytest.param(
            '{"RankList": [{"RankId": 1, "Policy": 2}]}',
            "RankList[0].Policy: 2 is not allowed; expected a string",
            id="policy",
        ),
        pytest.param(
            '{"RetryTime": "2"}',
            "RetryTime: '2' is not allowed; expected a whole number",
            id="retries in words",
        ),
        pytest.param(
            '{"GracefulExit": 2}',
            "GracefulExit: 2 is not allowed; expected true, false, 1 or 0",
            id="graceful exit",
        ),
    ],
)
def test_what_is_no_such_file_is_told_by_its_key(text: str, told: str) -> None:
    """With its value, and what is allowed."""
    with pytest.raises(WireError) as caught:
        read_reset(text)
    assert told in str(caught.value)
