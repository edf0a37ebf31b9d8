"""Command lines of Python that run a module or code of ours and look for no module in the current folder.

`python -m` and `python -c` look there first, also for modules of the standard library. If another user can write to that folder
(for example `/tmp`), a module of that user would run with the rights of this process.

Python's option -P does the same, but images may have Python 3.10, which does not know it; and it is inherited: a worker that is
a fork of our process would see it in `sys.flags`, and pass it on to the processes that it starts. So would PYTHONSAFEPATH.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

__all__ = ["find_in_current_folder", "module_of", "run_code", "run_entrypoint", "run_module"]

#: With `-c`, the current folder is "" on the path. Nothing but a built-in module is imported before it is gone.
_WITHOUT_FOLDER = "import sys; sys.path[:] = filter(None, sys.path); "

_OURS = "rallypoint"

#: What `python -m` does then.
_MODULE = f"{_WITHOUT_FOLDER}import runpy; runpy._run_module_as_main(sys.argv.pop(1))"


def run_module(module: str, *words: str, python: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command line that runs a module with `words`; `python` is this Python unless given, with its options."""
    return (*(python or (sys.executable,)), "-c", _MODULE, module, *words)


def run_code(code: str, *words: str, python: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command line that runs code, which knows `sys`, with `words` in `sys.argv`; `python` as in `run_module`."""
    return (*(python or (sys.executable,)), "-c", _WITHOUT_FOLDER + code, *words)


def run_entrypoint(module: str, *words: str, python: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a worker that is a module: `python -m`, unless the module is ours and calls a function."""
    if module.partition(".")[0] == _OURS:
        return run_module(module, *words, python=python)
    return (*python, "-m", module, *words)


def module_of(words: Sequence[str]) -> str | None:
    """Return the module, if `words`, which follow Python and its options, are those of `run_module`."""
    return words[2] if tuple(words[:2]) == ("-c", _MODULE) and len(words) > 2 else None


def find_in_current_folder() -> None:
    """Look for modules in the current folder first, as `python -m` does: for what the user names, once ours are imported."""
    if getattr(sys.flags, "safe_path", False):
        return
    with contextlib.suppress(FileNotFoundError):  # the folder was deleted
        folder = os.getcwd()  # noqa: PTH109  as text
        if sys.path[:1] != [folder]:
            sys.path.insert(0, folder)
