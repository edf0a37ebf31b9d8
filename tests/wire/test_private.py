"""Files for their owner alone, replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rallypoint.wire.private import claim_folder, replace_file


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("content", ["new\n", b"new\n", "", "é" * 100_000])
def test_a_file_is_replaced(tmp_path: Path, content: str | bytes, durable: bool) -> None:
    """The new file is its owner's alone, and nothing is left beside it."""
    path = tmp_path / "file"
    path.write_text("old and longer\n")

    replace_file(path, content, durable=durable)

    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """A folder in its place is an error, and leaves nothing beside it."""
    path = tmp_path / "file"
    path.mkdir()

    with pytest.raises(OSError, match="directory"):
        replace_file(path, "new")

    assert list(tmp_path.iterdir()) == [path]


def test_text_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """Half of a surrogate pair has no bytes."""
    path = tmp_path / "file"
    path.write_text("old")

    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_below_one_for_everybody_is_claimed(tmp_path: Path) -> None:
    """Folders of this user are created with mode 0700, and used again."""
    leaf = tmp_path / "job" / "attempt-1"
    for _ in range(2):
        claim_folder(tmp_path, leaf)

    assert [path.stat().st_mode & 0o777 for path in (leaf.parent, leaf)] == [0o700, 0o700]
    assert list(leaf.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create a folder of another user")
@pytest.mark.parametrize("whose", ["job", "job/attempt-1"])
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, whose: str) -> None:
    """Its owner could replace everything in it."""
    taken = tmp_path / whose
    taken.mkdir(parents=True)
    os.chown(taken, 1234, 1234)

    with pytest.raises(PermissionError, match="belongs to user 1234, who could replace the files in it"):
        claim_folder(tmp_path, tmp_path / "job" / "attempt-1" / "node-0.1")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Another user may have created it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(NotADirectoryError, match="a link or a file"):
        claim_folder(tmp_path, tmp_path / "job" / "attempt-1")

    assert list((tmp_path / "elsewhere").iterdir()) == []
