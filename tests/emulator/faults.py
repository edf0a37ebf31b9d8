"""What goes wrong on purpose between a client and the server."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from tests.emulator.access import User
from tests.emulator.errors import ApiError
from tests.emulator.paths import Asked

__all__ = ["Fault", "Faults"]

WRITES = ("create", "update", "patch", "delete", "deletecollection")

KINDS = {
    "outage": "connections are closed without an answer",
    "latency": "answers come `seconds` late",
    "conflict": "409 to updates and patches, which are not done",
    "too_many": "429 with Retry-After: `seconds`",
    "error": "500",
    "unavailable": "503",
    "lost_answer": "writes are done and the connection is closed without an answer",
    "cut": "watches and followed logs are cut after `seconds`",
    "deny": "creations are refused by an admission webhook that says `message`",
    "forbid": "403, whatever the Roles say",
}


@dataclass(kw_only=True)
class Fault:
    """One kind of trouble: for whom, how often, how long. Empty lists mean everything."""

    kind: str
    seconds: float = 0.0
    share: float = 1.0
    """The share of the requests that it hits."""
    times: int | None = None
    """It ends after so many hits; None: never."""
    lasts: float | None = None
    """It ends so many seconds after it began; None: never."""
    message: str = "no"
    verbs: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    """As Roles name them: `pods`, `pods/log`."""
    users: tuple[str, ...] = ()
    began: float = field(default_factory=time.monotonic)
    hits: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault is called {self.kind!r}; there are {', '.join(sorted(KINDS))}")
        self.verbs, self.resources, self.users = tuple(self.verbs), tuple(self.resources), tuple(self.users)

    def over(self, now: float) -> bool:
        return (self.times is not None and self.hits >= self.times) or (
            self.lasts is not None and now > self.began + self.lasts
        )

    def means(self, asked: Asked | None, user: User) -> bool:
        if self.users and user.name not in self.users:
            return False
        if asked is None:  # discovery and the like: only a whole outage concerns it
            return not self.verbs and not self.resources
        return (not self.verbs or asked.verb in self.verbs) and (not self.resources or asked.target in self.resources)


@dataclass
class Faults:
    """The troubles that are on. `dice` has a seed, so that a run can be repeated."""

    dice: random.Random = field(default_factory=lambda: random.Random(4))
    active: list[Fault] = field(default_factory=list)

    def add(self, **told: Any) -> Fault:
        fault = Fault(**told)
        self.active.append(fault)
        return fault

    def clear(self, kind: str = "") -> None:
        self.active = [fault for fault in self.active if kind and fault.kind != kind]

    def hit(self, kind: str, asked: Asked | None, user: User) -> Fault | None:
        """The fault of a kind that hits this request, counted; None where there is none."""
        now = time.monotonic()
        self.active = [fault for fault in self.active if not fault.over(now)]
        for fault in self.active:
            if fault.kind == kind and fault.means(asked, user) and self.dice.random() < fault.share:
                fault.hits += 1
                return fault
        return None

    def refuse(self, asked: Asked, user: User) -> None:
        """Raise what a faulty server answers instead of doing what it is asked."""
        if fault := self.hit("too_many", asked, user):
            headers = {"Retry-After": f"{fault.seconds or 1:g}"}
            raise ApiError(429, "TooManyRequests", "too many requests, please try again later", headers=headers)
        if self.hit("error", asked, user):
            raise ApiError(500, "InternalError", "Internal error occurred: etcdserver: request timed out")
        if self.hit("unavailable", asked, user):
            raise ApiError(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if self.hit("forbid", asked, user):
            message = f'{asked.target} is forbidden: User "{user.name}" cannot {asked.verb} resource "{asked.target}"'
            raise ApiError(403, "Forbidden", message)
        if asked.verb in {"update", "patch"} and self.hit("conflict", asked, user):
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise ApiError(409, "Conflict", f'Operation cannot be fulfilled on {asked.resource.plural} "{asked.name}": {why}')
        if asked.verb == "create" and (fault := self.hit("deny", asked, user)):
            raise ApiError(403, "Forbidden", f'admission webhook "deny.emulator" denied the request: {fault.message}')
