"""Environments that lack things: exactly what one extra brings, and nothing else of what is installed here.

Installing torch anew for a test would take minutes and a network. Instead the distributions that an extra asks for, and
those that they ask for in turn, are found among the installed ones and linked file by file into a fresh environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["Bare", "Result", "bare", "closure"]

CACHE = "__pycache__"


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a program ended: its exit code, what it printed, and its errors (torch without numpy warns there)."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Bare:
    """An environment of its own under `root`."""

    root: Path

    @property
    def site_packages(self) -> Path:
        """Where its distributions are."""
        return next(self.root.glob("lib/python3*/site-packages"))

    def run(self, program: str, *args: str) -> Result:
        """Run a program of this environment, far from the repository and from the variables that lead to it."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RALLYPOINT_"))}
        command = [str(self.root / "bin" / program), *args]
        done = subprocess.run(command, cwd=self.root, env=variables, capture_output=True, text=True, check=False)
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)

    def python(self, code: str) -> Result:
        """Run a few lines of Python in it."""
        return self.run("python", "-c", code)


def bare(root: Path, wheel: Path, extra: str) -> Bare:
    """Make an environment in `root` with the wheel and what its `extra` asks for."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(root)
    made = Bare(root=root)
    wanted = [requirement for requirement in _requires(wheel) if _applies(requirement, {extra})]
    for distribution in closure(wanted):
        _link(distribution, made.site_packages)
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", wheel], check=True)
    return made


def closure(requirements: Iterable[Requirement]) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions that satisfy the requirements, and all those that they ask for in turn."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen = set()
    todo = list(requirements)
    while todo:
        requirement = todo.pop()
        key = (_normal(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(requirement.name)
        found[key[0]] = distribution
        asked = (Requirement(text) for text in distribution.requires or ())
        todo += [child for child in asked if _applies(child, requirement.extras)]
    return [found[name] for name in sorted(found)]


def _requires(wheel: Path) -> list[Requirement]:
    metadata = next(iter(importlib.metadata.distributions(path=[str(wheel)])))
    return [Requirement(text) for text in metadata.requires or ()]


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _link(distribution: importlib.metadata.Distribution, target: Path) -> None:
    """Link the files below site-packages; scripts live elsewhere, start lines (.pth) act on the whole environment.

    Compiled files are linked by their folder: torch alone would take as long to compile as all tests here take.
    """
    for file in distribution.files or ():
        if ".." in file.parts or file.suffix in {".pth", ".pyc"}:
            continue
        link, real = target.joinpath(*file.parts), Path(str(distribution.locate_file(file)))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(real)
        compiled, cache = real.parent / CACHE, link.parent / CACHE
        if real.suffix == ".py" and link.parent != target and compiled.is_dir() and not cache.exists():
            cache.symlink_to(compiled)
