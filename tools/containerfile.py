"""The Containerfile as instructions, and what is wrong with it. Pure but for reading whether copied files exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Instruction", "expand", "problems", "read"]

_KNOWN = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction: its word, the rest of it, and the line that it begins on."""

    word: str
    rest: str
    line: int


def read(text: str) -> list[Instruction]:
    """Return the instructions in order; a line that ends in a backslash goes on in the next one."""
    found: list[Instruction] = []
    going_on = False
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        ends, stripped = stripped.endswith("\\"), stripped.removesuffix("\\").strip()
        if going_on:
            last = found.pop()
            found.append(Instruction(word=last.word, rest=f"{last.rest} {stripped}", line=last.line))
        else:
            word, _, rest = stripped.partition(" ")
            found.append(Instruction(word=word, rest=rest.strip(), line=number))
        going_on = ends
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with `${NAME}` replaced; what is not known stays as it is."""
    return _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)


def problems(instructions: Sequence[Instruction], root: Path) -> list[str]:
    """Return what is wrong, `line N: ...`; `root` is the folder that files are copied from."""
    found = [*_shape(instructions), *_variables(instructions), *_steps(instructions, root), *_end(instructions)]
    return [f"line {line}: {text}" for line, text in sorted(found)]


def _shape(instructions: Sequence[Instruction]) -> Iterator[tuple[int, str]]:
    for step in instructions:
        if step.word not in _KNOWN:
            yield step.line, f"{step.word} is not used here; known are {', '.join(sorted(_KNOWN))}"
    first = next((step for step in instructions if step.word != "ARG"), None)
    if first is None or first.word != "FROM":
        yield 1, "nothing but ARG stands before the first FROM"
    images = _arguments(step for step in instructions if step.word == "ARG")
    for step in instructions:
        if step.word == "FROM":
            image = expand(step.rest.split()[0], images)
            if ":" not in image.rpartition("/")[2] or image.endswith(":latest"):
                yield step.line, f"{image} names no version"


def _arguments(steps: Iterator[Instruction]) -> dict[str, str]:
    return {name: value for name, _, value in (step.rest.partition("=") for step in steps)}


def _variables(instructions: Sequence[Instruction]) -> Iterator[tuple[int, str]]:
    before: set[str] = set()
    known: set[str] | None = None
    for step in instructions:
        if step.word == "FROM":
            yield from ((step.line, f"${{{name}}} is not known") for name in _VARIABLE.findall(step.rest) if name not in before)
            known = set()
        elif step.word == "ARG":
            (before if known is None else known).add(step.rest.partition("=")[0])
        else:
            unknown = (name for name in _VARIABLE.findall(step.rest) if name not in (known or ()))
            yield from ((step.line, f"${{{name}}} is not known in this stage") for name in unknown)


def _steps(instructions: Sequence[Instruction], root: Path) -> Iterator[tuple[int, str]]:
    for step in instructions:
        if step.word == "RUN":
            yield from ((step.line, text) for text in _run(step.rest))
        if step.word == "COPY" and not step.rest.startswith("--from="):
            missing = [name for name in step.rest.split()[:-1] if not (root / name).exists()]
            yield from ((step.line, f"{name} is not there to be copied") for name in missing)
        if step.word == "WORKDIR" and not step.rest.startswith("/"):
            yield step.line, "the folder is absolute"
        if step.word == "CMD" and not _is_list(step.rest):
            yield step.line, "a command is a JSON list: no shell stands between the signal and the process"


def _run(command: str) -> Iterator[str]:
    if re.search(r"\bpip (install|wheel)\b", command) and "--no-cache-dir" not in command:
        yield "pip keeps no cache in a layer (--no-cache-dir)"
    if re.search(r"\bsudo\b|\bapt-get (dist-)?upgrade\b|\bcd \S+ (;|&&)", command):
        yield "no sudo, no upgrade of the base, no cd (WORKDIR)"
    if "${" in re.sub(r'"[^"]*"', "", command):
        yield "variables are quoted"


def _is_list(text: str) -> bool:
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def _end(instructions: Sequence[Instruction]) -> Iterator[tuple[int, str]]:
    last = [step for step in instructions if step.word in {"FROM", "USER"}][-1]
    if last.word != "USER" or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", last.rest):
        yield last.line, "the last user is a number that is not root's"
