"""Measure the structure of the package: sizes, record fields, import circles, and the files of each optional capability.

    python tools/structure.py                  the tree of this checkout
    python tools/structure.py --tree FOLDER    another checkout, for a comparison
    python tools/structure.py --json           the same as JSON

A code line is a line of a token that is neither a comment nor a docstring. An import circle is a group of modules that import
each other, function-level and type-only imports included. A file belongs to a capability when one of its
identifiers matches the capability's pattern; words in comments and docstrings do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "rallypoint"

#: Records whose fields are counted: class name, and a part of the path of its module.
RECORDS = (
    ("Plan", "wire/plan"),
    ("State", "rendezvous"),
    ("JobRecord", "supervision"),
    ("Settings", "agent"),
    ("JobStatus", "wire/status"),
    ("AgentReport", "wire"),
)

#: Identifiers of each optional capability.
CAPABILITIES: Mapping[str, str] = {
    "hang detection": r"hang",
    "stragglers": r"straggler",
    "node check": r"check_level|node_check|network_check|comm_perf|check_program",
    "snapshot replicas": r"replica(s|_every|_limit)?(_|$)",
    "worker commands": r"worker_?command|save_request|stop_request",
    "user hooks": r"pre_check_op|failover_extension",
    "tuned batch": r"tuned|tuning",
    "metrics": r"metrics",
}

_NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass(frozen=True, kw_only=True)
class Module:
    """One parsed file; `imports` are the modules of the package that it imports anywhere."""

    name: str
    path: Path
    tree: ast.Module
    text: str
    imports: frozenset[str] = frozenset()


def main() -> int:
    """Print the figures of a tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to measure; default: this one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures = measure(given.tree)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        print(*(f"{name:<44} {value}" for name, value in figures.items()), sep="\n")
    return 0


def measure(tree: Path) -> dict[str, int]:
    """Return each figure of the package in `tree` by its name."""
    modules = read(tree)
    circles = list(import_circles({module.name: module.imports for module in modules}))
    return {
        "files": len(modules),
        "lines": sum(len(module.text.splitlines()) for module in modules),
        "code lines": sum(code_lines(module) for module in modules),
        "modules imported by exactly one other": imported_once(modules),
        "import circles": len(circles),
        "modules in an import circle": sum(map(len, circles)),
        **{f"fields of {name}": fields(modules, name, where) for name, where in RECORDS},
        **{f"files of {name}": len(files_of(modules, pattern)) for name, pattern in CAPABILITIES.items()},
    }


def read(tree: Path) -> list[Module]:
    """Return the modules of the package, parsed, with their imports resolved."""
    paths = sorted((tree / PACKAGE).rglob("*.py"))
    names = {_name(path, tree): path for path in paths}
    found = []
    for name, path in names.items():
        text = path.read_text()
        parsed = ast.parse(text)
        imports = frozenset(_imports(parsed, names)) - {name}
        found.append(Module(name=name, path=path.relative_to(tree), tree=parsed, text=text, imports=imports))
    return found


def code_lines(module: Module) -> int:
    """Return the number of lines that hold code."""
    docstrings = set(_docstring_lines(module.tree))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in _NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def imported_once(modules: Iterable[Module]) -> int:
    """Return how many modules are imported by exactly one other; packages do not count."""
    modules = list(modules)
    counts = {module.name: sum(module.name in other.imports for other in modules) for module in modules}
    return sum(counts[module.name] == 1 for module in modules if module.path.name != "__init__.py")


def import_circles(graph: Mapping[str, frozenset[str]]) -> Iterator[frozenset[str]]:
    """Yield each group of modules that can all reach each other (strongly connected, two or more members)."""
    reach = {name: _reachable(name, graph) for name in graph}
    done: set[str] = set()
    for name in graph:
        circle = frozenset(other for other in reach[name] if name in reach[other])
        if name not in done and len(circle) > 1:
            done |= circle
            yield circle


def fields(modules: Iterable[Module], name: str, where: str) -> int:
    """Return the number of annotated fields of the largest class `name` in modules whose path has `where` in it."""
    classes = (
        node
        for module in modules
        if where in str(module.path)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return max((sum(isinstance(line, ast.AnnAssign) for line in node.body) for node in classes), default=0)


def files_of(modules: Iterable[Module], pattern: str) -> list[Path]:
    """Return the files that have an identifier in which `pattern` is found."""
    word = re.compile(pattern, re.IGNORECASE)
    return [module.path for module in modules if any(word.search(name) for name in _identifiers(module.tree))]


def _name(path: Path, tree: Path) -> str:
    return ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__")


def _imports(tree: ast.Module, names: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names or node.module in names:
                    yield inner if inner in names else node.module


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _reachable(start: str, graph: Mapping[str, frozenset[str]]) -> set[str]:
    seen: set[str] = {start}
    todo = [start]
    while todo:
        for name in graph.get(todo.pop(), frozenset()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def _identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case _:
                pass


if __name__ == "__main__":
    sys.exit(main())
