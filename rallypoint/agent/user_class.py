"""A class of the user's, named in a job: loaded and made, or an error that says what is wrong with the name."""

from __future__ import annotations

import importlib
from typing import Any

from rallypoint.agent.errors import ConfigError

__all__ = ["load_class", "make", "raised"]


def load_class(module_name: str, name: str, where: str) -> type[Any]:
    """Return the class; raises `ConfigError`, which begins with `where` it is named. What the module raises is told, too."""
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: cannot import module {module_name}: {raised(error)}") from error
    cls = getattr(module, name, None)
    if not isinstance(cls, type):
        what = f"module {module_name} has no class {name}"
        raise ConfigError(f"{where}: {what if cls is None else f'{name} in module {module_name} is not a class'}")
    return cls


def make(cls: type[Any], where: str) -> Any:
    """Return an instance, made without arguments; raises `ConfigError`."""
    try:
        return cls()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{where}: cannot create an object of class {cls.__name__} without arguments: {raised(error)}"
        ) from error


def raised(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
