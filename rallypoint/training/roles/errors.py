"""Errors of calls between roles, named by what the caller does next."""

from __future__ import annotations

import queue

from rallypoint.wire.errors import RallypointError

__all__ = [
    "AuthenticationError",
    "CallTimeoutError",
    "ProtocolError",
    "QueueEmptyError",
    "QueueFullError",
    "RemoteError",
    "Restarted",
    "RolesError",
    "UnreachableError",
    "ValueTypeError",
]


class RolesError(RallypointError):
    """A call between roles failed; each leaf below names what to do."""


class Restarted(RolesError):  # noqa: N818  the name that the job's documentation gives it
    """The instance was restarted: its memory is new, and whether an unanswered call was executed is unknown.

    The next call of the same group reaches the new instance. Send it again what it needs, such as weights.

    Attributes:
        role, rank: of the instance.
        incarnation: number of its new life.
    """

    def __init__(self, role: str, rank: int, incarnation: int) -> None:
        super().__init__(
            f"{role}/{rank} was restarted and is now incarnation {incarnation}; send its data again, then repeat the call"
        )
        self.role, self.rank, self.incarnation = role, rank, incarnation


class RemoteError(RolesError):
    """The called function raised an exception.

    Attributes:
        role, rank: of the instance.
        type_name, message: of the exception.
        traceback: text of its traceback, shortened to 16 KiB.
    """

    def __init__(self, role: str, rank: int, *, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{role}/{rank} raised {type_name}: {message}")
        self.role, self.rank, self.type_name, self.message, self.traceback = role, rank, type_name, message, traceback


class CallTimeoutError(RolesError, TimeoutError):
    """The call did not finish within its timeout; whether it was executed is unknown."""


class UnreachableError(CallTimeoutError):
    """The instance did not announce itself, or ended and no successor announced itself, within the timeout."""


class ValueTypeError(RolesError, TypeError):
    """A value has a type that calls cannot carry, or is too large."""


class ProtocolError(RolesError):
    """The other side sent bytes that are not allowed; the connection is closed."""


class AuthenticationError(ProtocolError):
    """The other side does not have the secret of this job."""


class QueueEmptyError(RolesError, queue.Empty):
    """The queue had no item within the timeout."""


class QueueFullError(RolesError, queue.Full):
    """The queue had no free place within the timeout."""
