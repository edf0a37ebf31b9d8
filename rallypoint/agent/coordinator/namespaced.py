"""How an object of a cluster is named on a command line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Namespaced"]


@dataclass(frozen=True, kw_only=True)
class Namespaced:
    """A namespaced object's name, written `NAMESPACE/NAME`."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, *, namespace: str = "") -> Namespaced:
        """Read it; without a slash it is in `namespace`. Raises `ValueError` where either is missing."""
        first, slash, last = text.rpartition("/")
        place = cls(namespace=first if slash else namespace, name=last)
        if not place.namespace or not place.name or "/" in place.namespace:
            raise ValueError(f"name of a ConfigMap: {text!r} is not allowed; expected NAMESPACE/NAME")
        return place

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
