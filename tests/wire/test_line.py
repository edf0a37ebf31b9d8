"""The words between an agent and its workers: what is said is heard, and what nobody understands is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.wire import line
from rallypoint.wire.codec import WireError
from rallypoint.wire.unix import reachable

_WORKER: list[line.FromWorker] = [
    line.Hello(rank=3, local_rank=1, round=2, pid=7, abilities=(line.Ability.IN_PLACE, line.Ability.RETRY), why="x"),
    line.Freed(round=2, step=4),
    line.Failed(round=2, error="ValueError: é", step=None),
    line.Regrouped(round=3, step=4),
    line.Done(verb=line.Verb.SAVE, step=9),
]
_AGENT: list[line.FromAgent] = [
    line.Leave(round=2, reason="rank 1 was killed by SIGKILL"),
    line.Assign(round=3, environment={"RANK": "0"}, unset=("B",), stdout="/tmp/a", stderr=""),
    line.Order(verb=line.Verb.DUMP),
]


@pytest.mark.parametrize("word", _WORKER, ids=lambda word: type(word).__name__)
def test_what_a_worker_says_is_heard(word: line.FromWorker) -> None:
    """One line, and the same word again."""
    said = line.write(word)
    assert said.count(b"\n") == 1
    assert said.endswith(b"\n")
    assert line.read_from_worker(said) == word


@pytest.mark.parametrize("word", _AGENT, ids=lambda word: type(word).__name__)
def test_what_an_agent_says_is_heard(word: line.FromAgent) -> None:
    """One line, and the same word again."""
    assert line.read_from_agent(line.write(word)) == word


@pytest.mark.parametrize(
    ("said", "names"),
    [
        pytest.param(b"no json\n", "JSON object", id="no-json"),
        pytest.param(b"[1]\n", "JSON object", id="no-object"),
        pytest.param(b'{"kind": "leave", "round": 1, "reason": ""}\n', "one of hello", id="an-agent's-word"),
        pytest.param(b'{"kind": ["hello"]}\n', "one of hello", id="a-kind-that-is-no-text"),
        pytest.param(b'{"kind": "freed", "round": "two"}\n', "round", id="a-round-that-is-no-number"),
        pytest.param(b'{"kind": "done", "verb": "dance"}\n', "pause", id="a-verb-that-is-none"),
    ],
)
def test_what_nobody_understands_is_refused_by_name(said: bytes, names: str) -> None:
    """A worker is the user's code: whatever it writes is an error of the line, told in one sentence."""
    with pytest.raises(WireError, match=names):
        line.read_from_worker(said)


def test_a_socket_in_a_deep_folder_has_a_short_address(tmp_path: Path) -> None:
    """The kernel takes 107 bytes; a folder that is not there is an error all the same."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with reachable(deep / "line.sock") as address:
        assert len(address) <= 107
        assert Path(address).parent.samefile(deep)
    with reachable(tmp_path / "s") as address:
        assert address == str(tmp_path / "s")
    with pytest.raises(FileNotFoundError), reachable(tmp_path / ("n" * 120) / "s"):
        pass
