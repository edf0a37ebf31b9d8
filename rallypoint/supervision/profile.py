"""Rules of a profile that answers faults in a way of its own; the other profiles follow `running.py`. Pure."""

from __future__ import annotations

from typing import Protocol, cast

from rallypoint.profiles import part_of
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.turn import Step, Turn
from rallypoint.wire.plan import Profile
from rallypoint.wire.status import Verdict

__all__ = ["SupervisorRules", "rules_of"]


class SupervisorRules(Protocol):
    """The module `supervisor` of a profile's package."""

    def answer_losses(self, turn: Turn) -> Step:
        """Answer lost nodes and flagged hosts, or wait; called in each turn of an attempt that runs."""
        ...

    def answer_verdict(self, turn: Turn, verdict: Verdict) -> Step:
        """Answer the verdict of a coordinator that ended its attempt as failed, unless the verdict allows no retry."""
        ...

    def forceful_grace(self, policy: Policy) -> float:
        """Return the seconds after which a deletion is forced; negative forces it at once."""
        ...


def rules_of(profile: Profile) -> SupervisorRules | None:
    """Return the rules of a profile; None for a profile of the core."""
    module = part_of(profile, "supervisor")
    return None if module is None else cast("SupervisorRules", module)
