"""Where a task's job is, as arguments of operators, sensors and triggers. Identifiers only: nothing of it is a secret."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rallypoint.backends.site import KINDS, LOCAL, Site
from rallypoint.provider.errors import OptionError, one_of

__all__ = ["PLACE_FIELDS", "Place", "Placed", "check_place", "place_of"]

#: Arguments that say where on a backend a job is, and the words of `Site` for them (`context` is what Airflow calls its own).
_WORDS = {"home": "home", "namespace": "namespace", "kubeconfig": "kubeconfig", "cluster_context": "context"}

#: Words of `Site` that only the connection of a Ray cluster says.
_OF_RAY = ("address", "storage", "runtime_env")

#: The templated arguments of whatever is at a place.
PLACE_FIELDS = ("conn_id", *_WORDS)


class Placed(Protocol):
    """What has those arguments; None is what the connection says, or else the backend's own default."""

    backend: str | None
    conn_id: str | None
    home: str | None
    namespace: str | None
    kubeconfig: str | None
    cluster_context: str | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a task itself says of where its job is, and which connection says the rest. It may be stored as plain text.

    The connection is read by whoever goes there (`backend_access.resolve`): a worker, a triggerer, the page in the UI.

    Attributes:
        backend: `local`, `kubernetes` or `ray`; "" is what the connection says, and without one `local`.
        conn_id: Airflow's connection, of type `rallypoint` or `kubernetes`; "" is none.
        home, namespace, kubeconfig, context: as in `Site`; what is given here wins over the connection.
        address, storage, runtime_env: as in `Site`; of the connection alone, and kept with a task that waits.
    """

    backend: str = ""
    conn_id: str = ""
    home: str = ""
    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    address: str = ""
    storage: str = ""
    runtime_env: str = ""

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Place:
        """Return the place of `words`, in which there may be others as well; the opposite of `words`."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{word: str(value or "") for word, value in words.items() if word in known})

    def words(self) -> dict[str, str]:
        """Return the place as a trigger's arguments; what only a Ray cluster has is left out elsewhere."""
        found = dataclasses.asdict(self)
        return {word: value for word, value in found.items() if value or word not in _OF_RAY}

    @property
    def site(self) -> Site:
        """Where that is, as far as it is known without the connection. Raises `SiteError`."""
        words = {word: getattr(self, word) for word in (*_WORDS.values(), *_OF_RAY)}
        return Site(kind=self.backend or LOCAL, **words)


def check_place(backend: str | None, *, conn_id: str | None = None, **given: str | None) -> None:
    """Raise `OptionError` for a backend that there is not, and for an argument that it does not know.

    What only the connection can tell is found when the task runs.
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
    """Return what the arguments of an operator or a sensor say, their templates filled in."""
    words = {word: getattr(placed, field) or "" for field, word in _WORDS.items()}
    return Place(backend=placed.backend or "", conn_id=placed.conn_id or "", **words)
