"""A worker that calls a function, and what it refuses to call."""

from __future__ import annotations

import base64
import dataclasses
import json
import os

import pytest

from rallypoint.provider.function import pack
from rallypoint.training import function
from rallypoint.training.function import FunctionError
from rallypoint.wire import codec, env
from rallypoint.wire.function import FUNCTION_MODULE, SentFunction, function_args, is_function
from rallypoint.wire.plan import Entry, Plan

pytest.importorskip("cloudpickle", reason="sending functions needs cloudpickle")

FACTOR = 3


def scaled(value, *, by=1):
    return {"value": value * FACTOR * by, "rank": os.environ.get("RANK")}


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A function in its file, as a worker of rank 0 finds it."""
    packed = pack(scaled, [2], {"by": 5})
    path = tmp_path / "function.json"
    path.write_text(codec.dumps(packed))
    path.chmod(0o600)
    monkeypatch.setenv(env.RESULT_FILE, str(tmp_path / "result.json"))
    return packed, path, {env.FUNCTION_FILE: str(path), "RANK": "0"}


def test_what_it_returns_on_rank_0_is_the_result(sent, tmp_path):
    """Its own module's names are with it."""
    packed, _, environ = sent

    function.main(function_args(packed), environ)

    assert json.loads((tmp_path / "result.json").read_text())["value"] == 30


def test_what_it_returns_elsewhere_is_dropped(sent, tmp_path):
    """Whatever it is."""
    packed, _, environ = sent

    function.main(function_args(packed), {**environ, "RANK": "1"})

    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        pytest.param(0o620, "no write access for others", id="its group"),
        pytest.param(0o602, "no write access for others", id="anybody"),
    ],
)
def test_a_file_that_others_may_write_is_not_unpickled(sent, mode, says):
    """Whoever may write it could run code in the job."""
    packed, path, environ = sent
    path.chmod(mode)

    with pytest.raises(FunctionError, match=says):
        function.main(function_args(packed), environ)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"digest": "0" * 16}, r"holds scaled \(0{16}\); expected scaled", id="another function"),
        pytest.param({"python": "2.7"}, "pickled with Python 2.7, but the image has Python", id="another Python"),
        pytest.param(
            {"pickled": base64.b64encode(b"cnowhere_at_all\nname\n.").decode()},
            "No module named 'nowhere_at_all'; install the missing module in the image",
            id="a missing module",
        ),
    ],
)
def test_what_cannot_be_called_says_why(sent, change, says):
    """And what to do about it."""
    packed, path, environ = sent
    path.write_text(codec.dumps(dataclasses.replace(packed, **change)))

    with pytest.raises(FunctionError, match=says):
        function.main(function_args(packed), environ)


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        pytest.param([], {}, "expected the name and the digest of the job's function", id="no name"),
        pytest.param(["f", "d"], {}, f"{env.FUNCTION_FILE}: not set", id="by hand"),
        pytest.param(
            ["f", "d"],
            {env.FUNCTION_FILE: "/nowhere/f.json"},
            "cannot read the pickled function in /nowhere/f.json: No such file",
            id="no file",
        ),
    ],
)
def test_by_hand_it_does_nothing(arguments, environ, says):
    """It is the agent's to start."""
    with pytest.raises(FunctionError, match=says):
        function.main(arguments, environ)


def test_a_plan_says_whether_its_job_is_a_function():
    """Pods then mount the file."""
    plan = Plan(name="a", role="trainer", min_nodes=1, max_nodes=1, entry=Entry.MODULE, entrypoint=FUNCTION_MODULE)

    assert is_function(plan)
    assert not is_function(dataclasses.replace(plan, entry=Entry.SCRIPT))
    assert codec.loads(SentFunction, codec.dumps(pack(scaled, [], {}))).name == "scaled"
