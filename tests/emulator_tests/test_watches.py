"""Watches: nothing is missed, nothing is told that one did not ask for."""

from __future__ import annotations

import threading

import pytest

from tests.emulator_tests.calls import config_map


def test_a_watch_begins_with_what_there_is(calls):
    """Without a version it hears of everything as added."""
    calls.create("configmaps", config_map("one"))

    assert calls.heard("configmaps") == [("ADDED", "one")]


def test_a_watch_from_a_version_hears_what_came_after(calls):
    """Changes between the list and the watch are told in order."""
    calls.create("configmaps", config_map("before"))
    version = calls.version("configmaps")
    calls.create("configmaps", config_map("one"))
    calls.patch("configmaps", "one", {"data": {"a": "1"}})
    calls.delete("configmaps", "one")

    assert calls.heard("configmaps", resourceVersion=version) == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]


def test_a_watch_hears_what_happens_while_it_listens(calls):
    """Live changes come too, with versions that grow."""
    version = calls.version("configmaps")
    maker = threading.Timer(0.2, lambda: [calls.create("configmaps", config_map(f"c{index}")) for index in range(3)])
    maker.start()

    heard = calls.watch("configmaps", resourceVersion=version, timeoutSeconds=5)

    maker.join()
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in heard]
    assert [event["object"]["metadata"]["name"] for event in heard] == ["c0", "c1", "c2"]
    assert versions == sorted(versions)


@pytest.mark.parametrize(
    ("before", "after", "heard"),
    [
        pytest.param("2", "2", "MODIFIED", id="stays"),
        pytest.param("2", "3", "DELETED", id="leaves"),
        pytest.param("3", "2", "ADDED", id="enters"),
        pytest.param("3", "4", None, id="is elsewhere"),
    ],
)
def test_a_selection_is_entered_and_left(calls, before, after, heard):
    """What leaves the selection is deleted for who watches it, and what enters is added."""
    calls.create("configmaps", config_map("one", labels={"z": before}))
    version = calls.version("configmaps")
    calls.patch("configmaps", "one", {"metadata": {"labels": {"z": after}}, "data": {"n": "1"}})

    events = calls.watch("configmaps", resourceVersion=version, labelSelector="z=2")

    assert [event["type"] for event in events] == ([heard] if heard else [])
    assert all(int(event["object"]["metadata"]["resourceVersion"]) > int(version) for event in events)


def test_bookmarks_come_when_asked_for(calls):
    """They carry the version up to which everything was told, at the end too."""
    version = calls.version("configmaps")
    calls.create("secrets", {"metadata": {"name": "elsewhere"}})

    marks = calls.watch("configmaps", resourceVersion=version, allowWatchBookmarks="true")

    assert {event["type"] for event in marks} == {"BOOKMARK"}
    assert int(marks[-1]["object"]["metadata"]["resourceVersion"]) > int(version)
    assert calls.watch("configmaps", resourceVersion=version) == []


def test_the_end_of_the_first_events_is_marked(calls):
    """sendInitialEvents: what there is, then a bookmark that says that this was all."""
    calls.create("configmaps", config_map("one"))
    query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true", "resourceVersionMatch": "NotOlderThan"}

    first, mark = calls.watch("configmaps", **query)[:2]

    assert (first["type"], mark["type"]) == ("ADDED", "BOOKMARK")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_version_from_before_the_history_is_gone(calls):
    """410 comes as an event of the stream."""
    (event,) = calls.watch("configmaps", resourceVersion="1")

    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_compacted_history_is_gone(calls):
    """After a compaction older versions are unknown, to watches and to pages, and newer ones are not."""
    for index in range(3):
        calls.create("configmaps", config_map(f"c{index}"))
    page = calls.listed("configmaps", limit=1)
    calls.patch("configmaps", "c0", {"data": {"a": "1"}})
    calls.server.compact()

    assert calls.heard("configmaps", resourceVersion=page["metadata"]["resourceVersion"])[0][0] == "ERROR"
    assert calls.listed("configmaps", limit=1, **{"continue": page["metadata"]["continue"]})["code"] == 410
    assert calls.heard("configmaps", resourceVersion=calls.version("configmaps")) == []


def test_a_version_that_is_not_there_yet_is_a_timeout(calls):
    """504: the server has not come so far."""
    (told,) = calls.watch("configmaps", resourceVersion="999999999")

    assert (told["code"], told["reason"]) == (504, "Timeout")


def test_a_watch_is_of_its_namespace(server, calls):
    """What happens elsewhere is not heard, but by who watches all namespaces."""
    version = calls.version("configmaps")
    server.request("POST", "/api/v1/namespaces/default/configmaps", config_map(f"in-{calls.namespace}"))

    assert calls.heard("configmaps", resourceVersion=version) == []
    told = server.request("GET", f"/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion={version}")[1]
    assert told["object"]["metadata"]["name"] == f"in-{calls.namespace}"
