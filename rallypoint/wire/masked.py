"""Secrets in the environment and arguments of a job, which logs and errors must not show.

An operator knows which of its rendered values Airflow masks, such as the password of a connection. It stores where these
values are (`mask_spec`), not the values themselves, in a variable of the job. Each process that shows others what a script
wrote reads that variable and replaces the values by `***`, as Airflow does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rallypoint.wire.env import MASKED

__all__ = ["HIDDEN", "Masking", "mask_of", "mask_spec"]

#: Takes the place of a secret; Airflow's own word.
HIDDEN = "***"

Masking = Callable[[str], str]

#: Characters of the shortest secret that is masked, as in Airflow.
_SHORTEST = 5


def mask_spec(env: Mapping[str, str], args: Sequence[str], redact: Callable[[str, str], str]) -> str:
    """Return where secrets are, as JSON text; "" if there are none.

    `redact` returns the value that is shown in the place of a value, given with its name.
    """
    named = [(name, name, value) for name, value in env.items() if name != MASKED]
    numbered = [(place, "", value) for place, value in enumerate(args)]
    found = [[key, *_place(value, redact(name, value))] for key, name, value in (*named, *numbered)]
    hidden = [one for one in found if len(one) == 3]
    return json.dumps(hidden) if hidden else ""


def _place(value: str, shown: str) -> tuple[int, ...]:
    """Return where the secret of a value begins and ends; nothing if it has none."""
    if shown == value:
        return ()
    before, _, after = shown.partition(HIDDEN)
    if HIDDEN in after or not value.startswith(before) or not value.endswith(after):
        return 0, len(value)
    return len(before), len(value) - len(after)


def mask_of(env: Mapping[str, str], args: Sequence[str]) -> Masking:
    """Return the function that masks the secrets of a job in a text."""
    secrets = sorted({text for text in _secrets(env, args) if len(text) >= _SHORTEST}, key=len, reverse=True)
    if not secrets:
        return lambda text: text
    pattern = re.compile("|".join(map(re.escape, secrets)))
    return lambda text: pattern.sub(HIDDEN, text)


def _secrets(env: Mapping[str, str], args: Sequence[str]) -> Iterator[str]:
    try:
        spec: Any = json.loads(env.get(MASKED) or "[]")
        for key, begin, end in spec:
            value = env[key] if isinstance(key, str) else args[key]
            yield value[begin:end]
    except (ValueError, TypeError, LookupError):  # a script can write its own plan
        return
