"""`python -m rallypoint.training.call [--process-group] MODULE:NAME [arguments]`: a worker whose entrypoint is a function.

The function is called without arguments; of a class, an object is made and its `run()` is called. What follows the name is in
`sys.argv`. As of a script, `sys.exit()` and 0 are a success, and the exit code of an exception is 1.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rallypoint.wire import env
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.python import find_in_current_folder

__all__ = ["TargetError", "find", "main"]

_GROUP = "--process-group"


class TargetError(RallypointError):
    """The function cannot be found; the text says where it was looked for."""


def main(arguments: Sequence[str]) -> None:
    """Call the function that the arguments name."""
    grouped, rest = arguments[:1] == [_GROUP], list(arguments)
    if grouped:
        rest.pop(0)
    if not rest:
        raise TargetError("arguments: none given; expected [--process-group] MODULE:NAME")
    sys.argv = rest
    called = find(rest[0])
    with _group() if grouped else contextlib.nullcontext():
        _serve()
        called()


def find(target: str) -> Callable[[], Any]:
    """Return what `module:name` stands for; raises `TargetError`."""
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside of the module
        raise TargetError(f"{target}: no module {error.name!r} on the Python path; add its folder to PYTHONPATH") from error
    except AttributeError as error:
        raise TargetError(f"{target}: module {module} has no attribute {name!r}") from error
    if not isinstance(found, type):
        return _require_callable(target, found)
    if not hasattr(found, "run"):
        raise TargetError(f"{target}: class {name} has no method run()")
    return lambda: _run(found())


def _run(made: Any) -> None:
    """Call `run()` of an object; if the script uses calls between roles, other instances can call its methods."""
    _serve(made)
    made.run()


def _serve(target: object = None) -> None:
    """Answer calls of other roles if this process belongs to such a job and has declared functions with `@rpc`."""
    registry = sys.modules.get("rallypoint.training.roles.registry")
    if registry is None or not os.environ.get(env.ROLES_URL):
        return
    if registry.declared() or registry.methods_of(target):
        from rallypoint.training.roles.service import serve  # noqa: PLC0415  for scripts that use it

        serve(target)


def _require_callable(target: str, found: Any) -> Callable[[], Any]:
    if callable(found):
        called: Callable[[], Any] = found
        return called
    raise TargetError(f"{target}: {type(found).__name__} is not a function or class")


def _group() -> AbstractContextManager[Any]:
    from rallypoint.training.groups import process_group  # noqa: PLC0415  torch is for those who ask for a group

    return process_group()


if __name__ == "__main__":
    find_in_current_folder()
    main(sys.argv[1:])
