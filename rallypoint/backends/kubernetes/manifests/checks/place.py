"""Where in a job's document something is wrong, and how it is told. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rallypoint.job.errors import show

__all__ = ["DNS_LABEL", "DNS_NAME", "Place", "Wrong", "is_dns_label", "is_dns_name"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)

#: What names are allowed to be, for messages.
DNS_LABEL = "1 to 63 lower-case letters, digits and '-', with a letter or a digit at both ends"
DNS_NAME = "1 to 253 lower-case letters, digits, '-' and '.', with a letter or a digit at both ends"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One thing that is wrong at `path` of the document."""

    path: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in the document, written as in all our errors: `roles.trainer.volumes[0].name`."""

    path: str = ""

    def at(self, *steps: str | int) -> Place:
        """Return a place below this one."""
        path = self.path
        for step in steps:
            path += f"[{step}]" if isinstance(step, int) else f".{step}"
        return Place(path=path.removeprefix("."))

    def wrong(self, text: str) -> Wrong:
        """Return that something is wrong here."""
        return Wrong(path=self.path, text=text)

    def refused(self, value: object, allowed: str) -> Wrong:
        """Return that `value` is not allowed here, and what is."""
        return self.wrong(f"{show(value)} is not allowed; expected {allowed}")


def is_dns_label(value: object) -> bool:
    """Return whether `value` may be the name of a container, of a volume or of a Service."""
    return isinstance(value, str) and len(value) <= 63 and _LABEL.fullmatch(value) is not None


def is_dns_name(value: object) -> bool:
    """Return whether `value` may be the name of most objects."""
    return isinstance(value, str) and len(value) <= 253 and _NAME.fullmatch(value) is not None
