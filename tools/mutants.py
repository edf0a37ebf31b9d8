"""Change one comparison, constant or condition at a time, and look whether the tests notice.

    python tools/mutants.py --seed 1 --count 30                 draw 30 mutants and run the unit tests on each
    python tools/mutants.py --seed 1 --count 30 --list          only list them
    python tools/mutants.py --seed 1 --count 30 --only 4,17     two of them

Mutants are drawn with equal chances for each place in the named folders of the package; a change elsewhere, or a moved module,
does not change the draw. Each is tried in a copy of this checkout: first the test files that name the changed module, then the
tests of the same folder, then all other unit tests, then the live sample (`--live`). A mutant is killed by a test that fails
with the mutant, also alone, and passes without it, and by a part that takes more than `LIMIT` seconds.
The exit code is 1 when fewer than `--least` of them were killed.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import hashlib
import os
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

#: The folders whose tests start real processes or build wheels.
APART = ("tests/live", "tests/cluster", "tests/ray", "tests/packaging")

#: So many files are run in one process.
FEW = 6

#: No part of the tests takes as long as that; a mutant may make one wait for ever. In seconds.
LIMIT = 1500.0

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
    """One change.

    `index` counts the changeable places of the file in the order of `places`; `key` names the place as long as its function
    stays as it is.
    """

    path: Path
    index: int
    line: int
    before: str
    after: str
    key: str

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
    return sorted(everything, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())[:count]


def mutants(text: str, path: Path) -> Iterator[Mutant]:
    """Yield each mutant of a file."""
    alike: collections.Counter[str] = collections.Counter()
    for index, (function, node) in enumerate(places(ast.parse(text))):
        changed = _changed(copy.deepcopy(node))
        before, after = ast.unparse(node), ast.unparse(changed)
        known = f"{function} {before} {after}"
        alike[known] += 1
        yield Mutant(path=path, index=index, line=node.lineno, before=before, after=after, key=f"{known} {alike[known]}")


def mutated(text: str, index: int) -> str:
    """Return the source with the place `index` changed; comments and layout are lost."""
    tree = ast.parse(text)
    _changed(list(places(tree))[index][1])
    return ast.unparse(tree)


def places(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions that can be changed, with the names of their functions.

    They are comparisons, `and` and `or`, `not`, numbers and truth values.
    """
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body:
                yield from ((function.name, place) for place in _places_in(statement))


def _places_in(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr)):
        return  # A function inside has its own turn; texts for people are no behaviour.
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # It asserts what is always so.
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
        for name in _files():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
        changed = place / mutant.path
        changed.write_text(mutated(changed.read_text(), mutant.index))
        failed = next((test for paths in parts(ROOT, mutant, live=live) if (test := _killer(place, paths))), "")
    seconds = time.monotonic() - began
    print(f"{number:>3}  {'killed' if failed else 'SURVIVED':<8} {seconds:>6.0f} s  {mutant}", flush=True)
    if failed:
        print(f"     by {failed}", flush=True)
    return bool(failed)


def _files() -> list[str]:
    """Return the files of this checkout, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    named = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in named if (ROOT / name).is_file()]


def parts(root: Path, mutant: Mutant, *, live: bool) -> Iterator[list[str]]:
    """Yield what to run, as arguments of pytest, the most likely to fail first."""
    naming = [str(path) for path in naming_files(root, mutant.path)]
    if naming:
        yield naming
    own = next((folder for folder in mutant.path.parents if (root / "tests" / folder.relative_to("rallypoint")).is_dir()), None)
    near = [] if own is None else [str(Path("tests") / own.relative_to("rallypoint"))]
    if near and near != ["tests"]:
        yield [*near, *_without(naming)]
    yield ["tests", *_without([*APART, *naming, *near])]
    if live:
        yield ["tests/live", "tests/cluster"]


def _without(paths: Sequence[str]) -> list[str]:
    return [f"--ignore={path}" for path in paths]


def naming_files(root: Path, module: Path) -> list[Path]:
    """Return the unit test files in which the name of the module stands, in whichever form of import."""
    package, _, name = ".".join(module.with_suffix("").parts).rpartition(".")
    pattern = re.compile(rf"{re.escape(package)}\.{name}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    files = [path.relative_to(root) for path in sorted((root / "tests").rglob("test_*.py")) if pattern.search(path.read_text())]
    return [path for path in files if not str(path).startswith(APART)]


def _killer(place: Path, paths: list[str]) -> str:
    """Return the name of a test that fails alone with the mutant and passes alone without it, or an empty string.

    A test may also fail because of the tests before it or of a busy machine.
    """
    others = list[str]()
    while test := _first_failure(place, [*paths, *others]):
        if "::" not in test or (_first_failure(place, [test]) and not _first_failure(ROOT, [test])):
            return test
        others.append(f"--deselect={test}")
    return ""


def _first_failure(place: Path, paths: list[str]) -> str:
    """Return the name of a failed test, or an empty string."""
    # Two processes read the tests twice, which a few files are not worth.
    cores = "0" if len(paths) <= FEW and all(path.partition("::")[0].endswith(".py") for path in paths) else "2"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", cores, "--dist", "loadfile", "-m", "not extended"]
    command += ["-p", "no:cacheprovider", *paths]
    environ = {**os.environ, "PYTHONPATH": str(place)}
    try:
        done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"a test that does not end within {LIMIT:.0f} s"
    if done.returncode in (0, 5):
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return named[1] if named else f"pytest, exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
