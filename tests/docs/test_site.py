"""`make site` is strict: a broken link, a missing image, or a page outside of the navigation fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import site

pytest.importorskip("sphinx")

ROOT = Path(__file__).parents[2]


def test_the_navigation_has_every_page() -> None:
    """The index is the root of the navigation."""
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}

    assert sorted(name for names in site.NAVIGATION.values() for name in names) == sorted(pages - {"index"})


@pytest.mark.parametrize(
    ("text", "succeeds"),
    [
        pytest.param("[other](other.md#a-part)", True, id="a link"),
        pytest.param("[other](missing.md)", False, id="a link to a missing page"),
        pytest.param("[other](other.md#missing)", False, id="a link to a missing heading"),
        pytest.param("![picture](missing.png)", False, id="a missing image"),
    ],
)
def test_a_broken_link_or_a_missing_image_fails(tmp_path: Path, text: str, succeeds: bool) -> None:
    """With the settings of the site."""
    source = tmp_path / "source"
    (source / "_static").mkdir(parents=True)
    (source / "_static" / "site.css").write_text("")
    (source / "conf.py").write_text(site.CONF)
    (source / "index.md").write_text(f"# Index\n\n{text}\n\n```{{toctree}}\nother\n```\n")
    (source / "other.md").write_text("# Other\n\n## A part\n\nText.\n")

    assert (site.render(source, tmp_path / "site") == 0) is succeeds
