from __future__ import annotations

import os

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.registry import home_of, open_backend, spawn_supervisor
from rallypoint.backends.site import Site, SiteError
from rallypoint.wire.env import HOME


@pytest.mark.parametrize(
    ("words", "field", "text"),
    [
        pytest.param(
            {"kind": "slurm"},
            "backend",
            "'slurm' is not allowed; expected one of kubernetes, local, ray",
            id="kind",
        ),
        pytest.param(
            {"namespace": "team-a"},
            "namespace",
            "'team-a' is not allowed with backend local; settings of this backend: home",
            id="a namespace of this machine",
        ),
        pytest.param(
            {"kind": "kubernetes", "home": "/data"},
            "home",
            "'/data' is not allowed with backend kubernetes; settings of this backend: namespace, context, kubeconfig",
            id="a folder of a cluster",
        ),
    ],
)
def test_a_site_that_cannot_be(words, field, text):
    """Field, value and what is allowed are named."""
    with pytest.raises(SiteError) as raised:
        Site(**words)

    assert (raised.value.field, raised.value.text) == (field, text)


def test_the_backend_says_the_same():
    """Whoever opens a backend by its words sees one sort of error."""
    with pytest.raises(BackendError, match="namespace: 'team-a' is not allowed with backend local"):
        open_backend("local", namespace="team-a")


def test_the_home_of_a_site(tmp_path, monkeypatch):
    """Its own, or else that of the environment."""
    monkeypatch.setenv(HOME, str(tmp_path / "usual"))

    assert home_of(Site(home=str(tmp_path / "other"))) == tmp_path / "other"
    assert home_of(Site(kind="kubernetes")) == tmp_path / "usual"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("kind", ["kubernetes", "ray"])
@pytest.mark.parametrize("theirs", [".", "KIND", "KIND/default"])
def test_no_supervisor_starts_in_the_home_of_another_user(tmp_path, monkeypatch, kind, theirs):
    """Its log could be a link to any file."""
    home, target = tmp_path / "home", tmp_path / "target"
    folder = home / theirs.replace("KIND", kind)
    folder.mkdir(parents=True)
    target.mkdir()
    os.chown(folder, 65534, 65534)
    if theirs == "KIND":
        (folder / "default").symlink_to(target)
    monkeypatch.setenv(HOME, str(home))
    where = {"address": "http://127.0.0.1:9"} if kind == "ray" else {}

    with pytest.raises(BackendError, match="the folder belongs to user 65534, but this process runs as user 0"):
        spawn_supervisor("digits", Site(kind=kind, **where))
    assert list(target.iterdir()) == []
