"""Paths of mounts in commands and variables."""

from __future__ import annotations

import pytest

from tests.emulator.kubelet.volumes import Mounts


@pytest.fixture
def mounts(tmp_path):
    for name in ("etc", "tmp", "deep"):
        (tmp_path / name).mkdir()
    return Mounts((("/etc/rp", tmp_path / "etc"), ("/tmp", tmp_path / "tmp"), ("/tmp/deep", tmp_path / "deep")))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param("/etc/rp", "{etc}", id="the mount itself"),
        pytest.param("/etc/rp/plan.json", "{etc}/plan.json", id="a file in it"),
        pytest.param("--plan=/etc/rp/plan.json", "--plan={etc}/plan.json", id="after an option"),
        pytest.param("cat /etc/rp/a /tmp/no/b; ls", "cat {etc}/a {tmp}/no/b; ls", id="in a script"),
        pytest.param("/tmp/deep/x", "{deep}/x", id="the deepest mount"),
        pytest.param("/etc/rpx/a", "/etc/rpx/a", id="a longer name"),
        pytest.param("http://host/tmp/a", "http://host/tmp/a", id="a URL"),
        pytest.param("relative/tmp/a", "relative/tmp/a", id="below something else"),
    ],
)
def test_paths_of_mounts_are_rewritten(mounts, tmp_path, text, after):
    """And nothing else."""
    assert mounts.rewrite(text) == after.format(**{name: tmp_path / name for name in ("etc", "tmp", "deep")})


def test_what_only_the_machine_has_is_left(tmp_path):
    """A file of this machine below a mounted folder stands for one of the image."""
    script = tmp_path / "script.py"
    script.touch()
    folder = tmp_path / "mounted"
    folder.mkdir()
    mounts = Mounts(((str(tmp_path), folder),))

    assert mounts.rewrite(str(script)) == str(script)
    (folder / "script.py").touch()
    assert mounts.rewrite(str(script)) == str(folder / "script.py")
