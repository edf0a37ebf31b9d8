"""Files for their owner alone, replaced in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.wire.private import replace_file


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
