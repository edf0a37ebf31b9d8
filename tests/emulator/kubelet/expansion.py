"""References in the words of a command line and in the values of variables, as the kubelet replaces them.

https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["expanded"]

#: A dollar sign that stands for itself, or a reference: it ends at the next closing parenthesis, whatever is before it.
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with every `$$` as `$`, and each `$(NAME)` as the value of its variable; others stay as they are."""
    return _REFERENCE.sub(lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text)
