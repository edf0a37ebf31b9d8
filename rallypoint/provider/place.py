"""Where a task's job is, as arguments of operators, sensors and triggers. Identifiers only: nothing of it is a secret."""

from __future__ import annotations

from typing import Any, Protocol

from rallypoint.backends.site import KINDS, Site
from rallypoint.provider.errors import OptionError, one_of

__all__ = ["PLACE_FIELDS", "Placed", "check_place", "site_of", "site_words"]

#: Arguments that say where on a backend a job is, and the words of `Site` for them (`context` is what Airflow calls its own).
_WORDS = {"home": "home", "namespace": "namespace", "kubeconfig": "kubeconfig", "cluster_context": "context"}

PLACE_FIELDS = tuple(_WORDS)


class Placed(Protocol):
    """What has those arguments; None is the backend's own default."""

    backend: str
    home: str | None
    namespace: str | None
    kubeconfig: str | None
    cluster_context: str | None


def check_place(backend: str, **given: str | None) -> None:
    """Raise `OptionError` for a backend that there is not, and for an argument that it does not know."""
    one_of("backend", backend, sorted(KINDS))
    known = [field for field, word in _WORDS.items() if word in KINDS[backend]]
    for field, value in given.items():
        if value is not None and field not in known:
            raise OptionError(field, value, f"only {', '.join(known)} with backend {backend!r}")


def site_of(placed: Placed) -> Site:
    """Return where that is."""
    words = {word: getattr(placed, field) or "" for field, word in _WORDS.items()}
    return Site(kind=placed.backend, **words)


def site_words(site: Site) -> dict[str, Any]:
    """Return a site as a trigger's arguments: `backend`, and the words of `Site`."""
    return {"backend": site.kind, **{word: getattr(site, word) for word in _WORDS.values()}}
