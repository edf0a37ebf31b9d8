"""What a job's workers run: the words of `mainProgram` where they are plain words, a shell where one must read them. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Any

from rallypoint.job.errors import Problem, show
from rallypoint.job.generator.load import SettingsError
from rallypoint.job.generator.script import program
from rallypoint.job.generator.settings import Settings

__all__ = ["entry"]

_NOTHING = "a script with its arguments, or an empty value if setupCommands are set"
_OPERATORS = frozenset(";&|<>()\n")
_EXPANDED = frozenset("$`*?[~{#!")


def entry(settings: Settings) -> dict[str, Any]:
    """Return the fields of a role that say what runs; raises `SettingsError` for what only a shell of torchrun's could run."""
    text = re.sub(r"\\\n", " ", program(settings))
    setup = [command.rstrip("\n") for command in settings.setup_commands]
    if not text:
        return {"entrypoint": ["sh", "-e", "-c", "\n".join(setup)]} if setup else _refuse(settings, _NOTHING)
    return {**_program(settings, text), "setup_commands": setup, "nproc_per_node": settings.workers_per_pod}


def _program(settings: Settings, text: str) -> dict[str, Any]:
    active = _active(text)
    if active & _OPERATORS:
        return _refuse(settings, "one program with its arguments, without ; & | < > and ( )")
    try:
        words = shlex.split(text)
    except ValueError as error:
        return _refuse(settings, f"a command line with balanced quotes ({str(error).lower()})")
    if words[0].startswith("-") and words[0] not in {"-m", "--module"}:
        return _refuse(settings, "a script or -m MODULE with its arguments; set torchrun's flags as fields of the job")
    if active & _EXPANDED:
        return {"entrypoint": ["sh", "-c", f"exec python -u {text}"]}
    if words[0] in {"-m", "--module"}:
        return {"entrypoint": " ".join(("-m", *words[1:2])), "args": words[2:]}
    script, *args = words
    return {"entrypoint": {"script": script} if re.search(r"\s", script) else script, "args": args}


def _refuse(settings: Settings, allowed: str) -> dict[str, Any]:
    raise SettingsError([Problem(path="mainProgram", text=f"{show(settings.main_program)} is not allowed; expected {allowed}")])


def _active(text: str) -> frozenset[str]:
    """Return the characters that a shell would do something about: those behind a backslash or between quotes are inert."""
    active, quote, escaped = set(), "", False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
            active |= {char} & {"$", "`"} if quote == '"' else set()
        elif char in "'\"":
            quote = char
        else:
            active.add(char)
    return frozenset(active)
