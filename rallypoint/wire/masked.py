"""Secrets in the environment and arguments of a job, which logs and errors must not show.

An operator knows which of its rendered values Airflow masks, such as the password of a connection. It stores where these
values are (`mask_spec`), not the values themselves, in a variable of the job. Each process that shows others what a script
wrote reads that variable and replaces the values by `***`, as Airflow does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rallypoint.wire import sanitize
from rallypoint.wire.env import MASKED

if TYPE_CHECKING:
    from rallypoint.wire.plan import Plan

__all__ = ["HIDDEN", "Masking", "mask_of", "mask_of_plan", "mask_spec", "masked_json", "secrets_in", "secrets_of"]

#: Takes the place of a secret; Airflow's own word.
HIDDEN = "***"

Masking = Callable[[str], str]

#: Characters of the shortest secret that is masked, as in Airflow.
_SHORTEST = 5

#: Secrets of all attempts of a job, their characters, and those of the notes of where they are; above that whole texts are
#: masked.
_MOST, _MOST_CHARS, _MOST_NOTED = 256, 16 * 1024, 64 * 1024

#: Notes of places of secrets: one secret may be in many variables.
_MOST_PLACES = 1024

#: Lines of all secrets: each is masked by itself, since logs and errors are shown line by line.
_MOST_LINES = 256
_LINE_END = re.compile(r"\s*(?:[\r\n]|\\n)\s*")

#: Characters of the shortest text that may be cut; such a text is also searched for the beginning of a secret at its end.
_CUT = 500

#: What stands where a line was cut (tail.py): behind it, and before the end of a line whose beginning was not read.
_MARK, _MOST_MARKS = re.compile(r"( \.\.\. \(\d+ bytes more\)|(?:^|(?<=: ))\.\.\. )"), 8

#: Values that are no secrets, whatever the name of their variable, such as TOKENIZERS_PARALLELISM: masked, they would be
#: missing in each line of a log.
_SWITCHES = frozenset(("true", "false", "none", "null", "enabled", "disabled"))

#: Comparisons of characters that the secrets of a text may need, and of ends of a text with the beginning of a secret. A script
#: can write texts in which secrets begin everywhere and end nowhere.
_MOST_COMPARED, _MOST_BEGINNINGS = 200_000, 256

#: Of more secrets than a few, those whose beginnings a text has are searched for, in so many characters in all.
_FEW, _MOST_SCANNED = 64, 1_000_000

#: Characters of a value in which several secrets are told apart, and places at which the end of one is looked for.
_SEARCHED, _TRIES = 16 * 1024, 1024


def mask_spec(env: Mapping[str, str], args: Sequence[str], redact: Callable[[str, str], str]) -> str:
    """Return where secrets are, as JSON text; "" if there are none.

    Arguments are numbered from the end, the last is -1: a plan has other words before those of the job.
    `redact` returns the value that is shown in the place of a value, given with its name.
    """
    named = [(name, name, value) for name, value in env.items() if name != MASKED]
    numbered = [(place - len(args), "", value) for place, value in enumerate(args)]
    hidden = [
        [key, begin, end]
        for key, name, value in (*named, *numbered)
        for begin, end in _places(value, redact(name, value), functools.partial(redact, ""))
        if value[begin:end] != HIDDEN
    ]
    return json.dumps(hidden) if hidden else ""


def _places(value: str, shown: str, redact: Callable[[str], str]) -> list[tuple[int, int]]:
    """Return where the secrets of a value begin and end: all of the value where they cannot be told apart."""
    if shown == value or value.strip().lower() in _SWITCHES:
        return []
    whole = [(0, len(value))]
    first, *between = shown.split(HIDDEN)
    if not between or not value.startswith(first) or not value.endswith(between[-1]):
        return whole
    begin, end = len(first), len(value) - len(between.pop())
    if not between:
        return [(begin, end)]
    if len(value) > _SEARCHED:
        return whole
    found = []
    for text in between:
        stop = _stop(value, begin, text, redact)
        if stop < 0:
            return whole
        found.append((begin, stop))
        begin = stop + len(text)
    return [*found, (begin, end)] if redact(value[begin:end]) == HIDDEN else whole


def _stop(value: str, begin: int, text: str, redact: Callable[[str], str]) -> int:
    """Return where a secret ends that `text` follows; -1 if that is not found. The secret may have that text in it."""
    stop = begin
    for _ in range(_TRIES):
        stop = value.find(text, stop + 1)
        if stop < 0 or redact(value[begin:stop]) == HIDDEN:
            return stop
    return -1


def mask_of(env: Mapping[str, str], args: Sequence[str]) -> Masking:
    """Return the function that masks the secrets of a process in a text: the whole text if there are too many of them.

    It is `str` if there are none.
    """
    return _mask([(env, args)])


def mask_of_plan(plan: Plan) -> Masking:
    """Return the function that masks the secrets of a job, with those of all its roles, as `mask_of` does."""
    return _mask(_values(plan), plan.hidden)


def secrets_of(plan: Plan) -> tuple[str, ...]:
    """Return the secrets that `mask_of_plan` masks, for the `hidden` of another plan; of too many, enough to mask all."""
    return _listed(_bounded(_values(plan), plan.hidden))


def secrets_in(values: Iterable[tuple[str, str]], redact: Callable[[str, str], str]) -> tuple[str, ...]:
    """Return the secrets in values that are given with their names, for the `hidden` of a plan; as `mask_spec` finds them."""
    found = (
        value[begin:end]
        for name, value in values
        for begin, end in _places(value, redact(name, value), functools.partial(redact, ""))
        if value[begin:end] != HIDDEN
    )
    return _listed(_bounded((), found))


def _listed(secrets: Mapping[str, None] | None) -> tuple[str, ...]:
    return (" " * (_MOST_CHARS + 1),) if secrets is None else tuple(secrets)


def _values(plan: Plan) -> Iterator[tuple[Any, Any]]:
    """Yield the environment and the arguments of a plan and of its roles."""
    yield plan.env, plan.args
    for role in plan.roles:
        told = role.get("plan")
        if isinstance(told, Mapping):
            yield told.get("env"), told.get("args")


def _bounded(values: Iterable[tuple[Any, Any]], hidden: Iterable[str]) -> dict[str, None] | None:
    """Return the secrets in their order; None if there are too many of them."""
    secrets: dict[str, None] = {}
    size = 0
    for place, secret in enumerate(itertools.chain(_secrets(values), hidden)):
        if secret not in secrets:
            secrets[secret] = None
            size += len(secret)
        if place >= _MOST_PLACES or len(secrets) > _MOST or size > _MOST_CHARS:
            return None
    return secrets


def _mask(values: Iterable[tuple[Any, Any]], hidden: Iterable[str] = ()) -> Masking:
    secrets = _bounded(values, hidden)
    if secrets is None:
        return _hidden
    lines = {line for secret in secrets for line in _LINE_END.split(secret) if re.search(r"\w", line)}
    if len(lines) > _MOST_LINES:
        return _hidden
    # The longest first: one may be part of another. A pattern of all of them would cost pattern times text in one call.
    ordered = sorted((secret for secret in secrets.keys() | lines if len(secret) >= _SHORTEST), key=len, reverse=True)
    return _Mask(ordered) if ordered else str


class _Mask:
    """Masks secrets that are ordered by their length, the longest first."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self._reversed = [secret[::-1] for secret in secrets]
        self._length = sum(map(len, secrets))
        #: Characters of all secrets that begin alike, by their beginning.
        self._beginnings: dict[str, int] = {}
        for secret in secrets:
            begin = secret[:_SHORTEST]
            self._beginnings[begin] = self._beginnings.get(begin, 0) + len(secret)

    def __call__(self, text: str) -> str:
        begun = self._begun(text)
        if len(begun) > _FEW and len(text) * len(begun) > _MOST_SCANNED:
            return HIDDEN
        if len(text) * self._length > _MOST_COMPARED and self._compared(text, begun) > _MOST_COMPARED:
            return HIDDEN
        long = len(text) >= _CUT
        for secret in begun:
            text = text.replace(secret, HIDDEN)
        if text.startswith("... ") or ": ... " in text or " bytes more)" in text:
            return self._without_cut(text, long=long)
        return _without_begun(text, self._secrets) if long else text

    def _begun(self, text: str) -> Sequence[str]:
        """Return the secrets that may be in a text: if there are many, those whose beginnings are."""
        if len(self._secrets) <= _FEW:
            return self._secrets
        if len(self._beginnings) <= _FEW:
            found = {begin for begin in self._beginnings if begin in text}
        else:
            found = {text[place : place + _SHORTEST] for place in range(len(text) - _SHORTEST + 1)}
        return [secret for secret in self._secrets if secret[:_SHORTEST] in found]

    def _compared(self, text: str, begun: Sequence[str]) -> int:
        """Return an upper limit of the characters that a search for secrets compares; a beginning may overlap with itself."""
        beginnings = {secret[:_SHORTEST] for secret in begun}
        return sum(_SHORTEST * text.count(begin) * self._beginnings[begin] for begin in beginnings)

    def _without_cut(self, text: str, *, long: bool) -> str:
        """Return a text without parts of secrets where a mark says that a line was cut."""
        parts = _MARK.split(text, _MOST_MARKS)
        for place in range(0, len(parts), 2):
            before, after = parts[place - 1] if place else "", parts[place + 1] if place + 1 < len(parts) else ""
            if after.startswith(" ") or (long and not after):
                parts[place] = _without_begun(parts[place], self._secrets)
            if before.startswith("."):
                parts[place] = _without_begun(parts[place][::-1], self._reversed)[::-1]
        if _MARK.search(parts[-1]):
            parts[-1] = HIDDEN
        return "".join(parts)


def _without_begun(text: str, secrets: Sequence[str]) -> str:
    """Return a text that may have been cut without the beginning of a secret at its end: without more if it is long to find."""
    cut, left = len(text), _MOST_BEGINNINGS
    for secret in secrets:
        place = text.find(secret[:_SHORTEST], max(0, len(text) - len(secret) + 1), cut + _SHORTEST)
        first = place
        while place >= 0 and left > 0 and not secret.startswith(text[place:]):
            left -= 1
            place = text.find(secret[:_SHORTEST], place + 1)
        if left <= 0:
            place = first
        cut = place if 0 <= place < cut else cut
    return text if cut == len(text) else text[:cut] + HIDDEN


def masked_json(value: Any, mask: Masking) -> Any:
    """Return a JSON value with all its texts masked; the keys of objects are kept."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [masked_json(item, mask) for item in value]
    return {key: masked_json(item, mask) for key, item in value.items()} if isinstance(value, dict) else value


def _hidden(text: str) -> str:
    return HIDDEN if text else text


def _secrets(values: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """Return the secrets that the notes name, up to what is wrong in one: a script can write its own plan."""
    left = _MOST_NOTED
    for env, args in values:
        noted = env.get(MASKED) if isinstance(env, Mapping) else None
        if not isinstance(noted, str) or not noted:
            continue
        left -= len(noted)
        if left < 0:
            yield noted  # too long to read, and so too long a secret
            return
        with contextlib.suppress(ValueError, TypeError, LookupError):
            for key, begin, end in sanitize.parse(noted):
                value = env[key] if isinstance(key, str) else args[key]
                yield value[begin:end] if isinstance(value, str) else ""
