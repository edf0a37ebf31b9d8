"""The measures of the house, read from the source itself."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("rallypoint", "tests", "benchmarks", "dags_examples", "tools")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
TESTS = [path for path in SOURCES if path.name.startswith("test_")]

FILE_LINES = 500
FUNCTION_LINES = 50
MEDIAN_LINES = 8


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_files_and_functions_are_small(path):
    """No file over 500 lines, no function of 50 or more: what is longer has a seam that nobody has looked for."""
    long = [f"{function.name}: {_lines(function)}" for function in _functions(path) if _lines(function) >= FUNCTION_LINES]

    assert len(path.read_text().splitlines()) <= FILE_LINES
    assert long == []


def test_most_functions_fit_in_a_glance():
    """Half of all functions of the package have at most eight lines."""
    lines = [_lines(function) for path in (ROOT / "rallypoint").rglob("*.py") for function in _functions(path)]

    assert statistics.median(lines) <= MEDIAN_LINES


@pytest.mark.parametrize("path", TESTS, ids=_id)
def test_tests_say_what_must_be_true(path):
    """Each test has a docstring: the sentence that must be true."""
    silent = [f.name for f in _functions(path) if f.name.startswith("test_") and not ast.get_docstring(f)]

    assert silent == []


@pytest.mark.parametrize("path", [path for path in SOURCES if path.is_relative_to(ROOT / "tests")], ids=_id)
def test_tests_use_fakes_not_patches(path):
    """No test needs `unittest.mock`: where one would, a seam is missing."""
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {getattr(node, "module", None) or alias.name for node in imports for alias in node.names}

    assert not {"unittest", "unittest.mock", "mock"} & modules
