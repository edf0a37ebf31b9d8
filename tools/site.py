"""Build the documentation site: `python tools/site.py` writes it to .make/site. Any warning of Sphinx is an error, and so is a
public parameter of an operator or sensor that has no description.

The pages are plain Markdown with relative links, so that the repository's web view shows them too. The site adds the
navigation, and a copy of each file outside docs/ that a page links to.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

__all__ = ["CONF", "NAVIGATION", "build", "main", "prepare", "render"]

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / ".make" / "site-source", ROOT / ".make" / "site"

#: Caption of each part of the navigation, and its pages in order. A page of docs/ that is missing here fails the build.
NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "": ("get-started",),
    "Tutorials": (
        "tutorials/from-torchrun",
        "tutorials/from-kubernetes-pod-operator",
        "tutorials/on-kubernetes",
        "tutorials/recovery-in-place",
        "tutorials/a-hang-explained",
    ),
    "Guides: Airflow": ("guides/airflow", "guides/connection", "guides/ui"),
    "Guides: commands": ("guides/cli", "guides/agent"),
    "Guides: training scripts": (
        "guides/training",
        "guides/roles",
        "guides/recovery",
        "guides/snapshots",
        "guides/warm-starts",
        "guides/integrations",
        "guides/launch-agent",
        "guides/tuned-batch",
    ),
    "Guides: health": ("guides/hangs", "guides/node-check", "guides/pre-checks", "guides/metrics"),
    "Guides: where jobs run": (
        "guides/ray",
        "guides/kubernetes",
        "guides/local-backend",
        "guides/tls",
        "guides/appwrapper",
        "guides/pytorchjob-generator",
        "guides/mindcluster",
    ),
    "Reference": (
        "reference/job",
        "reference/cli",
        "reference/arguments",
        "reference/torchrun",
        "reference/output",
        "reference/operators",
        "reference/sensors",
        "reference/verdicts",
        "reference/timers",
        "reference/payloads",
        "reference/airflow-matrix",
    ),
    "Explanation": ("explanation/architecture", "explanation/supervision"),
    "Benchmarks": ("benchmarks/index", "benchmarks/gpu", "benchmarks/hang-corpus"),
    "Help": ("troubleshooting", "glossary"),
}

CONF = """\
project = "Rallypoint"
html_title = "Rallypoint"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False}
pygments_style = "friendly"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
"""

CSS = """\
table { font-size: 0.85em; display: block; overflow-x: auto; margin-left: 0 !important; width: fit-content; max-width: 100%; }
td, th { min-width: 5em; }
.sidebar-drawer { width: calc(50% - 24em); }
.main, .content, article { min-width: 0; }
.literal .pre { display: inline-block; max-width: 100%; overflow-wrap: break-word; text-indent: 0; }
td:first-child .pre { white-space: nowrap; }
img { max-width: 100%; height: auto; }
.highlight .go { color: inherit; }
.content { width: 52em; }
@media (max-width: 82em) { .content { width: auto; max-width: 100%; } }
@media (max-width: 46em) { .headerlink { display: none; } }
"""

_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def build(source: Path = SOURCE, site: Path = SITE) -> int:
    """Build the site; return 0, or the exit code of the check of the operators pages or of Sphinx."""
    if importlib.util.find_spec("airflow") is not None:
        code = subprocess.run([sys.executable, ROOT / "tools/operators_page.py", "--check"], cwd=ROOT, check=False).returncode
        if code:
            return code
    prepare(source)
    return render(source, site)


def render(source: Path, site: Path) -> int:
    """Run Sphinx; return its exit code, which is not 0 after any warning, such as a broken link or a missing image."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(source), str(site)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def prepare(source: Path) -> None:
    """Write the sources of the site: the pages, the files they link to, the navigation and the settings."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source)
    pending = [(path, f"docs/{path.relative_to(source).as_posix()}") for path in sorted(source.rglob("*.md"))]
    copied: set[str] = set()
    while pending:
        path, origin = pending.pop()
        text, targets = _rewritten(path.read_text(encoding="utf-8"), origin, path.relative_to(source).as_posix())
        path.write_text(text, encoding="utf-8")
        for target in sorted(targets - copied):
            copied.add(target)
            copy = source / "repository" / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target, copy)
            if copy.suffix == ".md":
                copy.write_text("---\norphan: true\n---\n" + copy.read_text(encoding="utf-8"), encoding="utf-8")
                pending.append((copy, target))
    index = source / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + _navigation(), encoding="utf-8")
    (source / "conf.py").write_text(CONF, encoding="utf-8")
    (source / "_static").mkdir()
    (source / "_static" / "site.css").write_text(CSS, encoding="utf-8")


def _rewritten(text: str, origin: str, page: str) -> tuple[str, set[str]]:
    """Return the page with its links changed to the layout of the site, and the repository files that it links to."""
    targets: set[str] = set()

    def rewrite(match: re.Match[str]) -> str:
        path = os.path.normpath(PurePosixPath(origin).parent / match["target"])
        if "://" in match["target"] or not (ROOT / path).is_file():
            return match[0]
        inside = path.startswith("docs/")
        if not inside:
            targets.add(path)
        new = path.removeprefix("docs/") if inside else f"repository/{path}"
        return os.path.relpath(new, PurePosixPath(page).parent) + (match["anchor"] or "")

    return _LINK.sub(rewrite, text), targets


def _navigation() -> str:
    parts = []
    for caption, pages in NAVIGATION.items():
        options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
        parts.append("\n".join(["", "```{toctree}", *options, "", *pages, "```", ""]))
    return "".join(parts)


def main() -> int:
    """Build the site into the folder of the command line, or .make/site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=SITE, help="folder of the site (default: .make/site)")
    output = parser.parse_args().output
    code = build(SOURCE, output)
    if code == 0:
        print(f"site: {output / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
