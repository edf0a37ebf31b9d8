"""A job's own word on its failures: the base of a class that `fault_tolerance.dynamic_failover_extension` names.

Where the job runs the agent of each node loads the class once, in a process of its own, and asks it whenever workers of the
node ended badly, before any rule. The module is imported with the job's environment from its working directory, or from beside
its script.
"""

from __future__ import annotations

import abc

from rallypoint.wire.failover import Failover, Failure
from rallypoint.wire.incident import Culprit

__all__ = ["Culprit", "Failover", "FailoverExtension", "Failure"]


class FailoverExtension(abc.ABC):
    """Decides about failures. It is constructed without arguments, and lives as long as its node's agent."""

    @abc.abstractmethod
    def decide(self, failure: Failure) -> Failover:
        """Return what is to be done: NORMAL (rules and table decide), NODE, GLOBAL or ABORT.

        To raise is NORMAL, and so is to take longer than ten seconds; both are told with the incident.
        """
