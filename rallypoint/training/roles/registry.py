"""Functions and methods that other instances may call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from rallypoint.training.roles.errors import RolesError

__all__ = ["Method", "declared", "methods_of", "rpc"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__rallypoint_rpc__"
_NAME_LIMIT = 200


@dataclass(frozen=True, kw_only=True)
class Method:
    """One function to call; calls of functions that are not `concurrent` run one after another."""

    call: Callable[..., Any]
    concurrent: bool


_declared: dict[str, Method] = {}


@overload
def rpc(function: F) -> F: ...
@overload
def rpc(*, name: str = "", concurrent: bool = False) -> Callable[[F], F]: ...
def rpc(function: Any = None, *, name: str = "", concurrent: bool = False) -> Any:
    """Declare a function or method that other instances may call by its name.

    A process answers calls after `serve()`; a method also needs its object: `serve(object)`. The instance executes one call
    at a time, in a thread of its own; with `concurrent=True` calls of this function run in parallel.

    Raises:
        RolesError: another function has the same name.

    """
    if function is None:
        return lambda one: _declare(one, name, concurrent=concurrent)
    return _declare(function, name, concurrent=concurrent)


def declared() -> dict[str, Method]:
    """Return the functions that this process has declared; methods are not among them."""
    return dict(_declared)


def methods_of(target: object) -> dict[str, Method]:
    """Return the declared methods of an object; raises `RolesError` if two have the same name."""
    found: dict[str, Method] = {}
    for attribute in dir(type(target)):
        mark = getattr(getattr(type(target), attribute, None), _MARK, None)
        if isinstance(mark, tuple):
            name, concurrent = mark
            if name in found:
                raise RolesError(
                    f"@rpc: {type(target).__qualname__} has two methods with the name {name!r}; rename one of them"
                )
            found[name] = Method(call=getattr(target, attribute), concurrent=concurrent)
    return found


def _declare(function: F, name: str, *, concurrent: bool) -> F:
    name = name or function.__name__
    if not name.isprintable() or len(name) > _NAME_LIMIT or "." in name:
        raise RolesError(f"@rpc: name {name[:80]!r} is not allowed; expected at most {_NAME_LIMIT} characters without '.'")
    outer = function.__qualname__.rpartition(".")[0]
    if outer and not outer.endswith("<locals>"):
        setattr(function, _MARK, (name, concurrent))
        return function
    known = _declared.get(name)
    # A module that is imported again, or once as __main__, declares the same functions again.
    if known is not None and known.call.__qualname__ != function.__qualname__:
        one, other = known.call.__qualname__, function.__qualname__
        raise RolesError(f"@rpc: the functions {one} and {other} have the same name {name!r}; rename one of them")
    _declared[name] = Method(call=function, concurrent=concurrent)
    return function
