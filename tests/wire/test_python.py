"""Our processes find no module in the current folder, whatever another user has put there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rallypoint.wire.python import module_of, run_code, run_entrypoint, run_module

PACKAGE = Path(__file__).parents[2] / "rallypoint"

#: Files that read or show a `-m` of the user.
USERS = {"cli/plan.py", "compat/pytorchjob_generator/convert.py", "job/values.py"}

#: The module that all others must use.
HELPER = "wire/python.py"

#: A file without any of these needs no look.
WORDS = ("sys.executable", '"-m"', '"-c"')

TELL = "import json, sys; print(json.dumps([sys.argv, sys.path, getattr(sys.flags, 'safe_path', False)]))"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; what others have put there leaves a file."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in ("json", "runpy", "base64", "told"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(folder)
    return folder


def told(command: Sequence[str], **environ: str) -> list[object]:
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


def test_a_module_is_found_elsewhere_and_sees_its_arguments(shared: Path, tmp_path: Path) -> None:
    """As with `python -m`, but for the current folder; options of Python are kept, and none is added that a child inherits."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "told.py").write_text(TELL)
    command = run_module("told", "-m", "a b", python=(sys.executable, "-u"))
    argv, path, safe = told(command, PYTHONPATH=str(tmp_path / "lib"))

    assert (command[:3], command[4:]) == ((sys.executable, "-u", "-c"), ("told", "-m", "a b"))
    assert (argv, safe) == ([str(tmp_path / "lib" / "told.py"), "-m", "a b"], False)
    assert isinstance(path, list)
    assert not {"", str(shared)} & set(path)
    assert not (tmp_path / "ran").exists()


def test_code_finds_no_module_there_either(shared: Path, tmp_path: Path) -> None:
    """With its words as arguments."""
    argv, path, _ = told(run_code(TELL, "1", "2"))

    assert argv == ["-c", "1", "2"]
    assert isinstance(path, list)
    assert not {"", str(shared)} & set(path)
    assert not (tmp_path / "ran").exists()


def test_a_module_that_is_not_there_is_named(shared: Path) -> None:
    """As with `python -m`."""
    done = subprocess.run(run_module("rallypoint.none"), capture_output=True, text=True, check=False)

    assert (done.returncode, "No module named rallypoint.none" in done.stderr) == (1, True)


def test_only_modules_of_the_user_are_started_by_the_option() -> None:
    """A worker whose entrypoint is a function begins with a module of ours, which is recognised again."""
    ours = run_entrypoint("rallypoint.training.call", "a:b", python=("python", "-u"))

    assert run_entrypoint("rallypointer", "x", python=("python", "-u")) == ("python", "-u", "-m", "rallypointer", "x")
    assert (module_of(ours[2:]), module_of(ours[2:4]), module_of(("-c", "print()", "x"))) == (
        "rallypoint.training.call",
        None,
        None,
    )


def test_a_function_is_found_in_the_current_folder_and_our_modules_are_not(shared: Path, tmp_path: Path) -> None:
    """What the user names is searched there first, as with `python -m`; but not if Python's own option forbids it."""
    (shared / "mine.py").write_text("def run():\n    print(__file__)\n")
    command = run_module("rallypoint.training.call", "mine:run")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONSAFEPATH": "1"})

    assert done.stdout.strip() == str(shared / "mine.py"), done.stderr
    assert not (tmp_path / "ran").exists()
    assert refused.returncode == (1 if sys.version_info >= (3, 11) else 0)


# --- The whole package ------------------------------------------------------------------------------------------------------


def unsafe(text: str) -> Iterator[int]:
    """Yield the lines of lists with `-m` or `-c`, or with this Python and words from elsewhere; not for `-I` or a shell."""
    tree = ast.parse(text)
    compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.List, ast.Tuple)) or id(node) in compared:
            continue
        words = [part.value if isinstance(part, ast.Constant) else ast.unparse(part) for part in node.elts]
        from_elsewhere = "sys.executable" in words and any(isinstance(part, ast.Starred) for part in node.elts)
        if (from_elsewhere or {"-m", "-c"} & set(words)) and not {"-I", "sh", "/bin/sh"} & set(words):
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        'run([sys.executable, "-m", "rallypoint.agent"])',
        'run((sys.executable, "-c", CODE))',
        'run(*(sys.executable, "-u", "-m", "rallypoint"), "x")',
        'run([*(role.python or ("python",)), "-m", "rallypoint.agent", *words])',
        '_COMMAND = ("-m", "rallypoint.cli.main")',
        "run([sys.executable, *_COMMAND])",
    ],
)
def test_a_line_that_starts_python_by_itself_is_seen(line: str) -> None:
    """In all forms that the package once had."""
    assert list(unsafe(line)) == [1]


def test_no_module_starts_python_by_itself() -> None:
    """Every command line of ours comes from wire/python.py, or is isolated (-I)."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    found = {name for name, text in texts.items() if any(word in text for word in WORDS) and any(unsafe(text))}

    assert found == {HELPER, *USERS}
