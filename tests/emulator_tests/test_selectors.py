"""Selectors of lists: by labels and by fields."""

from __future__ import annotations

import pytest

from tests.emulator_tests.calls import pod


@pytest.fixture
def three(calls):
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "y"}), ("c", {})):
        assert calls.create("pods", pod(name, metadata={"labels": labels}))[0] == 201
    calls.patch("pods", "b", {"status": {"phase": "Running"}}, subresource="status")
    return calls


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("app=x", ["a"], id="equal"),
        pytest.param("app==x", ["a"], id="equal, said twice"),
        pytest.param("app!=x", ["b", "c"], id="not equal, or not there"),
        pytest.param("app in (x, y)", ["a", "b"], id="one of"),
        pytest.param("app notin (x)", ["b", "c"], id="none of"),
        pytest.param("tier", ["a"], id="there"),
        pytest.param("!tier", ["b", "c"], id="not there"),
        pytest.param("app in (x,y),!tier", ["b"], id="both"),
        pytest.param("", ["a", "b", "c"], id="none"),
    ],
)
def test_labels_select(three, text, found):
    """Every form of a label selector means what it means to the real server."""
    assert three.names("pods", labelSelector=text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("metadata.name=a", ["a"], id="a name"),
        pytest.param("metadata.name!=a", ["b", "c"], id="not a name"),
        pytest.param("status.phase=Running", ["b"], id="a phase"),
        pytest.param("status.phase!=Running,metadata.name!=c", ["a"], id="both"),
        pytest.param("spec.nodeName=", ["a", "b", "c"], id="on no node"),
    ],
)
def test_fields_select(three, text, found):
    """The fields by which pods can be selected."""
    assert three.names("pods", fieldSelector=text) == found


@pytest.mark.parametrize(
    "query", [{"labelSelector": "a=b=c"}, {"fieldSelector": "spec.hostname=x"}, {"fieldSelector": "nonsense"}]
)
def test_selectors_that_cannot_be_are_refused(three, query):
    """400, rather than everything or nothing."""
    assert three.listed("pods", **query)["code"] == 400
