"""The folder that is the directory of a job on one machine, and the entries in it."""

from __future__ import annotations

import dataclasses
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.training.roles import context
from rallypoint.training.roles.directory import FolderDirectory, open_directory
from rallypoint.training.roles.errors import RolesError
from rallypoint.wire import codec, env
from rallypoint.wire.codec import WireError
from rallypoint.wire.roles import RoleEntry, directory_token, entry_name, read_entry

ENTRY = RoleEntry(
    role="rollout", rank=1, size=2, host="127.0.0.1", port=4000, attempt=1, reset=0, round=0, incarnation=0, pid=7, id="a" * 32
)


def test_an_entry_is_found_by_its_name(tmp_path):
    """A file for the owner alone; other names are not found."""
    directory = FolderDirectory(tmp_path / "d")

    assert directory.announce(ENTRY)
    assert directory.find(entry_name("rollout", 1)) == ENTRY
    assert directory.find(entry_name("rollout", 0)) is None
    assert directory.entries() == {ENTRY.name: ENTRY}
    assert stat.S_IMODE((tmp_path / "d" / f"{ENTRY.name}.json").stat().st_mode) == 0o600


_LIVES = st.tuples(*[st.integers(0, 2)] * 4)


@given(st.lists(_LIVES, min_size=1, max_size=6))
def test_the_newest_life_wins_in_any_order(tmp_path_factory, lives):
    """An older life that writes late is refused."""
    directory = FolderDirectory(tmp_path_factory.mktemp("d"))
    for attempt, reset, number, incarnation in lives:
        life = dataclasses.replace(ENTRY, attempt=attempt, reset=reset, round=number, incarnation=incarnation)
        accepted = directory.announce(life)
        assert accepted == (directory.find(ENTRY.name) == life)

    found = directory.find(ENTRY.name)
    assert found is not None
    assert found.life == max(lives)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", "x" * 10_000], ids=["empty", "cut", "list", "null", "{}", "huge"]
)
def test_a_broken_file_counts_as_missing(tmp_path, text):
    """Its owner replaces it."""
    directory = FolderDirectory(tmp_path)
    (tmp_path / f"{ENTRY.name}.json").write_text(text)

    assert directory.find(ENTRY.name) is None
    assert directory.announce(ENTRY)
    assert directory.find(ENTRY.name) == ENTRY


def test_pipes_and_links_are_not_read(tmp_path):
    """A reader does not wait for a pipe's writer, nor follow a link."""
    directory = FolderDirectory(tmp_path)
    os.mkfifo(tmp_path / "rollout.0.json")
    (tmp_path / "rollout.1.json").symlink_to("/etc/hostname")

    assert directory.entries() == {}


_WRONG = [
    {"role": "../x"},
    {"role": ""},
    {"rank": -1},
    {"rank": 1 << 60},
    {"port": 70000},
    {"host": ""},
    {"host": "a\nb"},
    {"id": "zz"},
    {"queue": "a/b"},
]


@pytest.mark.parametrize("change", _WRONG, ids=[str(change) for change in _WRONG])
def test_entries_with_wrong_values_are_refused(change):
    """The error names the field."""
    with pytest.raises(WireError, match=f"^{next(iter(change))}: "):
        read_entry(codec.dumps(dataclasses.replace(ENTRY, **change)))


def test_queues_and_roles_have_different_names():
    """A role may be called `queue`."""
    queue = dataclasses.replace(ENTRY, role="queue", rank=0, queue="0")

    assert queue.name != dataclasses.replace(queue, queue="").name


def test_the_token_of_the_directory_does_not_reveal_the_secret():
    """It is another value for each secret."""
    assert directory_token(b"a") != directory_token(b"b")
    assert b"a".hex() not in directory_token(b"a")[:2] or len(directory_token(b"a")) == 64


def environment(tmp_path, **more):
    """Return the environment of a simple instance."""
    secret = tmp_path / "secret"
    secret.write_text("5" * 64 + "\n")
    secret.chmod(0o600)
    return {
        env.JOB_NAME: "rl",
        env.ROLE: "rollout",
        env.ROLE_RANK: "1",
        env.ROLE_SIZE: "2",
        env.GROUP: "1",
        env.INCARNATION: "3",
        env.ATTEMPT: "2",
        env.RESET: "1",
        env.ROLES: '{"rollout": {"launch": "simple", "total": 2, "driver": false}}',
        env.ROLES_URL: f"file://{tmp_path}/directory",
        env.ROLES_SECRET_FILE: str(secret),
        env.CONFIG: '{"lr": 1}',
        **more,
    }


def test_the_place_of_a_process_is_read_from_its_environment(tmp_path):
    """Role, rank, group, incarnation and configuration; the entry has the same values."""
    environ = environment(tmp_path)

    found, entry = context.current(environ), context.entry_of("h", 1, environ=environ)

    assert (found.job, found.role, found.rank, found.size, found.group, found.incarnation) == ("rl", "rollout", 1, 2, 1, 3)
    assert found.config == {"lr": 1}
    assert (entry.role, entry.rank, entry.size, entry.life) == ("rollout", 1, 2, (2, 1, 0, 3))
    assert context.role_specs(environ)["rollout"].driver is False


def test_the_place_is_known_outside_of_a_job_too():
    """Under torchrun and in plain Python."""
    assert context.current({}).size == 1
    assert context.current({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}).rank == 1
    with pytest.raises(RolesError, match="RALLYPOINT_ROLES_URL: not set"):
        context.settings({})


_BROKEN = [
    (env.ROLES_URL, "ftp://x", "expected file:///FOLDER or http://HOST:PORT"),
    (env.ROLES_URL, "file://host/x", "expected file"),
    (env.ROLES_SECRET_FILE, "/nowhere/secret", "cannot be read"),
    (env.ROLES_SECRET_FILE, "", "not set or empty"),
    (env.CONFIG_FILE, "/nowhere/config", "cannot be read"),
]


@pytest.mark.parametrize(("name", "value", "text"), _BROKEN, ids=[f"{name}={value}" for name, value, _ in _BROKEN])
def test_broken_variables_are_named(tmp_path, name, value, text):
    """The error names the variable."""
    environ = environment(tmp_path, **{name: value})

    with pytest.raises(RolesError, match=text):
        (context.current(environ), open_directory(context.settings(environ)))


def test_a_secret_that_others_can_write_is_refused(tmp_path):
    """Another user could replace it."""
    environ = environment(tmp_path)
    (tmp_path / "secret").chmod(0o622)

    with pytest.raises(RolesError, match="no write access for others"):
        context.settings(environ)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"a": 1}', '{"a": {"launch": "x", "total": 1}}', '{"a": {"launch": "simple", "total": -1}}']
)
def test_broken_roles_are_refused(text):
    """The error names the variable."""
    with pytest.raises(WireError, match="RALLYPOINT_ROLES"):
        context.role_specs({env.ROLES: text})
