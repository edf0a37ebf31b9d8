"""Which places the API server opens: what the administrator allows, and nothing that a note says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.plugin.live_access import LiveAccess, NotLiveError
from rallypoint.provider.place import Place

HOME = Path("/home/airflow/.rallypoint")
ACCESS = LiveAccess(home=HOME, connections=frozenset({"prod"}))


@pytest.mark.parametrize(
    ("noted", "opened"),
    [
        pytest.param(Place(), Place(backend="local"), id="nothing"),
        pytest.param(Place(backend="local"), Place(backend="local"), id="local"),
        pytest.param(Place(backend="local", home=str(HOME)), Place(backend="local"), id="its own home"),
        pytest.param(Place(backend="local", conn_id="any"), Place(backend="local"), id="a local connection, not read"),
        pytest.param(Place(conn_id="prod"), Place(conn_id="prod"), id="an allowed connection"),
        pytest.param(
            Place(backend="kubernetes", conn_id="prod", namespace="ml", home="/x", context="c"),
            Place(backend="kubernetes", conn_id="prod", namespace="ml"),
            id="without the task's own paths and contexts",
        ),
    ],
)
def test_what_is_opened(noted, opened):
    """Only names that the administrator knows."""
    assert ACCESS.allowed(noted) == opened


@pytest.mark.parametrize(
    ("noted", "says"),
    [
        pytest.param(
            Place(backend="local", home="/tmp/x"), "is not the folder that Airflow's API server uses", id="another home"
        ),
        pytest.param(
            Place(backend="local", home=f"{HOME}/../x"),
            "is not the folder that Airflow's API server uses",
            id="another home by the way of ours",
        ),
        pytest.param(Place(backend="kubernetes"), "uses no connection", id="no connection"),
        pytest.param(Place(backend="kubernetes", conn_id="other"), "'other' is not in [rallypoint]", id="another"),
        pytest.param(Place(conn_id="other"), "'other' is not in [rallypoint]", id="another, without a backend"),
        pytest.param(Place(backend="kubernetes", conn_id="prod", kubeconfig="/k"), "its own kubeconfig", id="a kubeconfig"),
        pytest.param(Place(backend="magic", conn_id="prod"), "'magic'", id="no such backend"),
    ],
)
def test_what_is_not_opened(noted, says):
    """With a sentence for who looks at the tab."""
    with pytest.raises(NotLiveError) as refused:
        ACCESS.allowed(noted)
    assert says in str(refused.value)


@pytest.mark.parametrize(("text", "names"), [("", set()), ("a", {"a"}), (" a, b ,,", {"a", "b"})])
def test_the_option_is_a_list_of_names(monkeypatch, tmp_path, text, names):
    """As an administrator writes it."""
    monkeypatch.setenv("AIRFLOW__RALLYPOINT__UI_CONNECTIONS", text)
    monkeypatch.setenv("RALLYPOINT_HOME", str(tmp_path))

    assert LiveAccess.configured() == LiveAccess(home=tmp_path, connections=frozenset(names))
