"""Texts that a container gets as a job wrote them. Pure.

In `command`, `args` and the values of `env`, Kubernetes replaces `$(NAME)` by a variable of the container, and `$$` by `$`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["literal", "literals", "unescaped", "variables"]


def literal(text: str) -> str:
    """Return what a manifest contains for a text that Kubernetes shall not change."""
    return text.replace("$", "$$")


def literals(words: Iterable[str]) -> list[str]:
    """Return what a manifest contains for the words of a command line."""
    return [literal(word) for word in words]


def variables(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the entries of `env` for an environment."""
    yield from ({"name": name, "value": literal(value)} for name, value in values.items())


def unescaped(text: str) -> str:
    """Return what Kubernetes makes of a text without references."""
    return text.replace("$$", "$")
