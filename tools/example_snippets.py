"""Write the parts of example DAGs that the docs show: `python tools/example_snippets.py`.

A page says which: a line `<!-- example: FILE MARKER -->`, and the block of Python after it is what stands in FILE between
`# [START MARKER]` and `# [END MARKER]`, without the indentation that all its lines have.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

__all__ = ["files", "main"]

ROOT = Path(__file__).resolve().parents[1]

PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for room in ("operators", "sensors")
    for path in sorted((ROOT / "docs" / "reference" / room).glob("*.md"))
)

_BLOCK = re.compile(r"(<!-- example: (?P<file>\S+) (?P<marker>\S+) -->\n)```python\n.*?```\n", re.DOTALL)


def files() -> dict[str, str]:
    """Return the text of each page by its path in the repository; raises `ValueError` for a marker that is not there."""
    return {page: _BLOCK.sub(_shown, (ROOT / page).read_text(encoding="utf-8")) for page in PAGES}


def main() -> int:
    """Write the pages; return 0."""
    for path, text in files().items():
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


def _shown(block: re.Match[str]) -> str:
    file, marker = block["file"], block["marker"]
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.search(rf"^ *# \[START {marker}\]\n(.*?)^ *# \[END {marker}\]\n", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"{file}: there is no part between # [START {marker}] and # [END {marker}]")
    return f"{block[1]}```python\n{textwrap.dedent(found[1]).strip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
