"""Style rules that a test can check, read from the source itself."""

from __future__ import annotations

import ast
import functools
import statistics
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("rallypoint", "tests", "benchmarks", "dags_examples", "tools")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = [path for path in SOURCES if path.name.startswith("test_")]

FILE_LINES = 500
FUNCTION_LINES = 50
MEDIAN_LINES = 8
MOCKS = {"unittest", "unittest.mock", "mock"}


Function = ast.FunctionDef | ast.AsyncFunctionDef
_KEPT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)


@functools.cache
def _statements(path: Path) -> list[ast.stmt]:
    """Functions and imports of a file, wherever they are: no expression has one in it."""
    found: list[ast.stmt] = []
    later: list[ast.AST] = [ast.parse(path.read_text())]
    while later:
        for node in ast.iter_child_nodes(later.pop()):
            if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
                later.append(node)
            if isinstance(node, _KEPT):
                found.append(node)
    return found


def _functions(path: Path) -> Iterator[Function]:
    return (node for node in _statements(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _named(path: Path, name: str) -> str:
    return f"{path.relative_to(ROOT)}:{name}"


def _lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_functions_are_short():
    """Every function has fewer than 50 lines."""
    long = [_named(path, f"{f.name}: {_lines(f)}") for path in SOURCES for f in _functions(path) if _lines(f) >= FUNCTION_LINES]

    assert long == []


def test_files_are_short():
    """Every file has at most 500 lines."""
    lines = {path: len(path.read_text().splitlines()) for path in SOURCES}

    assert [_named(path, str(count)) for path, count in lines.items() if count > FILE_LINES] == []


def test_most_functions_fit_in_a_glance():
    """Half of all functions of the package have at most eight lines."""
    lines = [_lines(function) for path in (ROOT / "rallypoint").rglob("*.py") for function in _functions(path)]

    assert statistics.median(lines) <= MEDIAN_LINES


def test_each_test_has_a_docstring():
    """The docstring of a test is the sentence that must be true."""
    tests = [(path, f) for path in TESTS for f in _functions(path) if f.name.startswith("test_")]

    assert [_named(path, f.name) for path, f in tests if not ast.get_docstring(f)] == []


def test_tests_use_fakes_not_patches():
    """No test imports `unittest.mock`: code that needs it lacks an argument."""
    patched = [path for path in SOURCES if path.is_relative_to(ROOT / "tests") and MOCKS & set(_imports(path))]

    assert [str(path.relative_to(ROOT)) for path in patched] == []


def _imports(path: Path) -> Iterator[str]:
    for node in _statements(path):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
