"""Place of a task's job, as arguments of operators, sensors and triggers. Identifiers only, no secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.site import KINDS, LOCAL, Site
from rallypoint.provider.errors import OptionError, one_of

__all__ = ["PLACE_FIELDS", "Place", "Placed", "check_place", "place_of"]

#: Arguments for the place on a backend, and the fields of `Site` for them (Airflow already uses the name `context`).
_WORDS = {"home": "home", "namespace": "namespace", "kubeconfig": "kubeconfig", "cluster_context": "context"}

#: Fields of `Site` that only the connection of a Ray cluster sets.
_OF_RAY = ("address", "storage")

#: The templated arguments of operators and sensors with a place.
PLACE_FIELDS = ("conn_id", *_WORDS)


class Placed(Protocol):
    """Protocol of objects with these arguments; None selects the connection's value, or else the backend's default."""

    backend: str | None
    conn_id: str | None
    home: str | None
    namespace: str | None
    kubeconfig: str | None
    cluster_context: str | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Arguments of a task about the place of its job, and the connection with the rest. It may be stored as plain text.

    Each process that opens the backend reads the connection (`backend_access.resolve`): a worker, a triggerer, the tab.

    Attributes:
        backend: `local`, `kubernetes` or `ray`; "" selects that of the connection, or `local`.
        conn_id: Airflow connection of type `rallypoint` or `kubernetes`; "" for none.
        home, namespace, kubeconfig, context: as in `Site`; they override the connection.
        address, storage: as in `Site`; set only by the connection, and stored with a deferred task.
    """

    backend: str = ""
    conn_id: str = ""
    home: str = ""
    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    address: str = ""
    storage: str = ""

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Place:
        """Return the place in a mapping, which may contain other keys; the inverse of `words`."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{word: str(value or "") for word, value in words.items() if word in known})

    def words(self) -> dict[str, str]:
        """Return the place as a trigger's arguments; fields of Ray clusters only if the backend is `ray`."""
        found = dataclasses.asdict(self)
        return {word: value for word, value in found.items() if value or word not in _OF_RAY}

    @property
    def site(self) -> Site:
        """The site without the values of the connection. Raises `SiteError`."""
        words = {word: getattr(self, word) for word in (*_WORDS.values(), *_OF_RAY)}
        return Site(kind=self.backend or LOCAL, **words)


def check_place(backend: str | None, *, conn_id: str | None = None, **given: str | None) -> None:
    """Raise `OptionError` for an unknown backend, and for an argument that the backend does not have.

    Errors that depend on the connection are detected when the task runs.
    """
    if backend is None and conn_id is not None:
        return
    kind = LOCAL if backend is None else backend
    one_of("backend", kind, sorted(KINDS))
    known = [field for field, word in _WORDS.items() if word in KINDS[kind]]
    for field, value in given.items():
        if value is not None and field not in known:
            raise OptionError(field, value, f"no value; backend {kind!r} accepts only the arguments {', '.join(known)}")


def place_of(placed: Placed) -> Place:
    """Return the place in the rendered arguments of an operator or sensor."""
    words = {word: getattr(placed, field) or "" for field, word in _WORDS.items()}
    return Place(backend=placed.backend or "", conn_id=placed.conn_id or "", **words)
