"""What can go wrong in a pod, named by what the process does next."""

from __future__ import annotations

from rallypoint.wire.errors import RallypointError

__all__ = ["ConfigError", "LostContactError", "OrphanedError", "StaleError", "StoreError", "UnreachableError", "UsageError"]


class UsageError(RallypointError):
    """The command line is wrong: the process ends with `Exit.USAGE`."""


class ConfigError(RallypointError):
    """It cannot work as it is (port in use, folder not writable, disk full): the process ends with `Exit.CONFIG`."""


class StaleError(RallypointError):
    """A newer attempt or term has taken over: the process ends with `Exit.STALE`."""


class StoreError(RallypointError):
    """The store of a round cannot be served here: the round fails and the next may work."""


class UnreachableError(RallypointError):
    """One exchange with the coordinator did not work; the next may."""


class LostContactError(RallypointError):
    """No coordinator answered for `fence_timeout`: the workers are stopped and the process ends with `Exit.LOST_CONTACT`."""


class OrphanedError(LostContactError):
    """No coordinator answers, and nobody has supervised the job for its lease: the process ends with `Exit.ORPHANED`."""
