"""Run a page of docs/: its files are written, its commands are run, and their output is compared with the page.

    python -m tests.live.doc_pages docs/get-started.md            # compare
    python -m tests.live.doc_pages --write docs/get-started.md    # put the present output into the page

A fenced block after `<!-- file: NAME -->` is the content of that file; every block of YAML must be one. A `console` block holds
commands (`$ ...`) and their output. All commands of a page run in one shell. `...` on a line of its own stands for any lines,
at the end of a line for the rest of it. Digits, hexadecimal ids and the order of lines are not compared. The page's folder is
shown as /home/ada, that of an image as /opt/training.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HOME", "Block", "Command", "Shell", "blocks", "check", "differences", "same"]

ROOT = Path(__file__).parents[2]

#: How the pages show the folder in which they are run, and the folder of an image.
HOME = "/home/ada"
IMAGE = "/opt/training"

_FENCE = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)```\n", re.DOTALL)
_DONE = "__done__"
_MASKS = (
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"/tmp/[^\s)]+"), "/tmp/#"),
    (re.compile(r"\d+(?:[.:,]\d+)*"), "#"),
    (re.compile(r"(?:# ?(?:ms|s|m|h)\b ?)+"), "# s "),
    (re.compile(r"# steps?\b"), "# steps"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"─+|-{3,}"), "-"),
)


@dataclass(frozen=True)
class Command:
    """A command of a page and the output that the page shows."""

    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block: a file, or commands."""

    language: str
    file: str
    text: str
    start: int

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands of a console block."""
        found: list[tuple[str, list[str]]] = []
        continued = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif continued:
                found[-1] = (f"{found[-1][0]}\n{line}", [])
            elif found:
                found[-1][1].append(line)
            continued = bool(found) and not found[-1][1] and found[-1][0].endswith("\\")
        return tuple(Command(text, tuple(output)) for text, output in found)


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that are files or commands; raises `ValueError` for YAML that is neither."""
    found = []
    for match in _FENCE.finditer(page):
        block = Block(match["language"], match["file"] or "", match["text"], match.start())
        if block.language == "yaml" and not block.file:
            raise ValueError(f"a block of YAML without <!-- file: NAME -->: {block.text[:60]!r}")
        if block.file or block.language == "console":
            found.append(block)
    return found


class Shell:
    """One bash for all commands of a page. Its process group is killed at the end."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run one command; return its exit code and its lines."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\necho {_DONE} $?\n")
        self._bash.stdin.flush()
        lines = []
        for line in self._bash.stdout:
            text, done, code = line.rstrip("\n").partition(_DONE + " ")
            if text or not done:
                shown = text.replace(f"{self._folder}/image", IMAGE).replace(str(self._folder), HOME)
                lines.append(shown.rstrip())
            if done:
                return int(code), lines
        raise RuntimeError(f"the shell ended in {command!r}: {lines}")

    def close(self) -> None:
        """End the shell and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


def same(shown: str, seen: str) -> bool:
    """Whether a line of the page stands for a line of output."""
    if shown.endswith("..."):
        return _masked(seen).startswith(_masked(shown[:-3]).rstrip())
    return _masked(shown) == _masked(seen)


def differences(shown: tuple[str, ...], seen: list[str]) -> str:
    """Return the first difference between the page and the output, or an empty text."""
    pattern = [line for line in shown if line.strip() and line.strip() != "..."]
    if not any(line.strip() for line in shown):
        return ""
    lines = [line for line in seen if line.strip()]
    for line in pattern:
        found = next((index for index, candidate in enumerate(lines) if same(line, candidate)), None)
        if found is None:
            return f"the page shows {line!r}, which the output does not have"
        del lines[found]
    if lines and "..." not in (line.strip() for line in shown):
        return f"the page does not show {lines[0]!r}"
    return ""


def check(page: str, folder: Path, env: Mapping[str, str]) -> Iterator[tuple[Block, Command, int, list[str]]]:
    """Write the files of a page and run its commands in a folder, in order."""
    shell = Shell(folder, env)
    try:
        for block in blocks(page):
            if block.file:
                file = folder / _placed(block.file, folder)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_placed(block.text, folder))
                continue
            for command in block.commands:
                code, lines = shell.run(_placed(command.text, folder))
                yield block, command, code, lines
    finally:
        shell.close()


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of the shell of a page: the programs of this environment, and no state of the user."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(folder),
        "RALLYPOINT_HOME": str(folder / ".rallypoint"),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",
    }


def _placed(text: str, folder: Path) -> str:
    return text.replace(IMAGE, f"{folder}/image").replace(HOME, str(folder))


def _masked(line: str) -> str:
    for mask, sign in _MASKS:
        line = mask.sub(sign, line)
    return line.strip()


def _written(block: Block, outputs: Mapping[str, list[str]]) -> str:
    parts = []
    for command in block.commands:
        parts += [f"$ {command.text}", *_renewed(command.output, outputs[command.text])]
    return "\n".join(parts) + "\n"


def _renewed(shown: tuple[str, ...], seen: list[str]) -> list[str]:
    """Return the output for the page: all of it, or the nearest lines where the page leaves lines out."""
    if not shown:
        return []
    if "..." not in (line.strip() for line in shown):
        return seen
    nearest = ([line] if line.strip() == "..." else difflib.get_close_matches(line, seen, 1, 0.4) for line in shown)
    return [line for lines in nearest for line in lines]


def main() -> int:
    """Run pages; return 1 when one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the present output into the pages")
    parser.add_argument("--show", action="store_true", help="print all output")
    parser.add_argument("page", nargs="+", type=Path)
    options = parser.parse_args()
    wrong = 0
    for path in options.page:
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            outputs: dict[int, dict[str, list[str]]] = {}
            for block, command, code, lines in check(text, folder, environment(folder)):
                outputs.setdefault(block.start, {})[command.text] = lines
                found = differences(command.output, lines)
                if options.show:
                    print(f"$ {command.text}", *lines, f"[exit code {code}]", sep="\n", flush=True)
                if found or code:
                    wrong += 1
                    print(f"{path}: $ {command.text}: exit code {code}; {found}", flush=True)
        if options.write:
            for block in reversed([block for block in blocks(text) if not block.file]):
                end = text.index(block.text, block.start) + len(block.text)
                text = text[: end - len(block.text)] + _written(block, outputs[block.start]) + text[end:]
            path.write_text(text, encoding="utf-8")
    return int(wrong > 0 and not options.write)


if __name__ == "__main__":
    sys.exit(main())
