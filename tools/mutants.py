"""Change one comparison, constant or condition at a time, and look whether the tests notice.

    python tools/mutants.py --seed 1 --count 30                 draw 30 mutants and run the unit tests on each
    python tools/mutants.py --seed 1 --count 30 --list          only list them
    python tools/mutants.py --seed 1 --count 30 --only 4,17     two of them

Mutants are drawn with equal chances for each place in the named folders of the package. Each is tried in a copy of this
checkout: first the tests of the same folder, then all other unit tests, then the live sample (`--live`). The first failed test
kills the mutant. The exit code is 1 when fewer than `--least` of them were killed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("supervision", "agent/rendezvous", "capabilities")
COPIED = ("rallypoint", "tests", "tools", "benchmarks", "dags_examples", "docs", "pyproject.toml", "constraints.txt")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change: `index` counts the changeable places of the file in the order of `places`."""

    path: Path
    index: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def main() -> int:
    """Draw mutants and try them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="seed of the draw")
    parser.add_argument("--count", type=int, default=30, help="number of mutants (30)")
    parser.add_argument("--least", type=int, default=28, help="how many must be killed (28)")
    parser.add_argument("--only", default="", help="numbers of the mutants to try, such as 4,17")
    parser.add_argument("--folder", action="append", help=f"folders of the package ({', '.join(FOLDERS)})")
    parser.add_argument("--live", action="store_true", help="also run the live tests that are not extended")
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    given = parser.parse_args()
    drawn = draw(ROOT, given.folder or FOLDERS, seed=given.seed, count=given.count)
    numbers = [int(number) for number in given.only.split(",") if number] or range(1, len(drawn) + 1)
    if given.list:
        print(*(f"{number:>3}  {drawn[number - 1]}" for number in numbers), sep="\n")
        return 0
    killed = sum(_try(number, drawn[number - 1], live=given.live) for number in numbers)
    print(f"{killed} of {len(numbers)} mutants were killed")
    return int(killed < (given.least if not given.only else len(numbers)))


def draw(root: Path, folders: Sequence[str], *, seed: int, count: int) -> list[Mutant]:
    """Return `count` different mutants, drawn with equal chances among all places of the folders."""
    paths = sorted({path for folder in folders for path in (root / "rallypoint" / folder).rglob("*.py")})
    everything = [mutant for path in paths for mutant in mutants(path.read_text(), path.relative_to(root))]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def mutants(text: str, path: Path) -> Iterator[Mutant]:
    """Yield each mutant of a file."""
    tree = ast.parse(text)
    for index, node in enumerate(places(tree)):
        changed = _changed(copy.deepcopy(node))
        yield Mutant(path=path, index=index, line=node.lineno, before=ast.unparse(node), after=ast.unparse(changed))


def mutated(text: str, index: int) -> str:
    """Return the source with the place `index` changed; comments and layout are lost."""
    tree = ast.parse(text)
    _changed(list(places(tree))[index])
    return ast.unparse(tree)


def places(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions that can be changed: comparisons, `and` and `or`, `not`, numbers and truth values in functions."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body:
                yield from _places_in(statement)


def _places_in(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr)):
        return  # A function inside has its own turn; texts for people are no behaviour.
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield node
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool() | int() | float()):
            yield node
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _places_in(child)


def _changed(node: ast.expr) -> ast.expr:
    """Change a place where it stands, and return it."""
    match node:
        case ast.Compare(ops=[operator]):
            node.ops = [_COMPARISONS[type(operator)]()]
        case ast.BoolOp(op=operator):
            node.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            node.operand = ast.UnaryOp(op=ast.Not(), operand=operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case _:
            raise ValueError(ast.dump(node))
    return node


def _try(number: int, mutant: Mutant, *, live: bool) -> bool:
    """Run the tests on a mutant; return whether one failed, and print which part of them did."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rallypoint-mutant-") as folder:
        place = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
        changed = place / mutant.path
        changed.write_text(mutated(changed.read_text(), mutant.index))
        failed = next((test for _, paths in _parts(mutant, live=live) if (test := _first_failure(place, paths))), "")
    seconds = time.monotonic() - began
    print(f"{number:>3}  {'killed' if failed else 'SURVIVED':<8} {seconds:>6.0f} s  {mutant}", flush=True)
    if failed:
        print(f"     by {failed}", flush=True)
    return bool(failed)


def _parts(mutant: Mutant, *, live: bool) -> Iterator[tuple[str, list[str]]]:
    own = next((folder for folder in mutant.path.parents if (ROOT / "tests" / folder.relative_to("rallypoint")).is_dir()), None)
    near = [] if own is None else [str(Path("tests") / own.relative_to("rallypoint"))]
    if near and near != ["tests"]:
        yield near[0], near
    ignored = ("tests/live", "tests/cluster", "tests/packaging", *near)
    yield "other unit tests", ["tests", *(f"--ignore={path}" for path in ignored)]
    if live:
        yield "live tests", ["tests/live", "tests/cluster"]


def _first_failure(place: Path, paths: list[str]) -> str:
    """Return the name of a failed test, or an empty string."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-m", "not extended", "-p", "no:cacheprovider", *paths]
    environ = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    if done.returncode in (0, 5):
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return named[1] if named else f"pytest, exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
