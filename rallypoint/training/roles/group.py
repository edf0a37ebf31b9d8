"""Calls to the instances of a role."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rallypoint.training.roles.errors import RolesError, UnreachableError
from rallypoint.training.roles.network import DEFAULT_TIMEOUT, Network, Target, require_timeout, this_network
from rallypoint.training.roles.peers import size_of, spec_of
from rallypoint.wire.roles import entry_name

__all__ = ["Reply", "RoleGroup"]

#: Instances that are called at the same time.
_PARALLEL = 64


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Answer of one instance: its value, or the error of the call."""

    rank: int
    value: Any = None
    error: RolesError | None = None


class RoleGroup:
    """All instances of one role.

    A call to an instance that was restarted since the last call of this group raises `Restarted` once; the next call reaches
    the new instance. Calls are executed at most once, and are not repeated. A group may be used in several threads.

    Args:
        role: name of the role.
        timeout: seconds that each call may take in all, from the search for the instance to its answer.

    """

    def __init__(self, role: str, *, timeout: float = DEFAULT_TIMEOUT, network: Network | None = None) -> None:
        self._network = this_network() if network is None else network
        self.role, self.timeout = role, require_timeout(timeout)
        self._spec = spec_of(role)
        self._targets: dict[int, Target] = {}

    def with_timeout(self, timeout: float) -> RoleGroup:
        """Return the same group with another timeout in seconds."""
        group = RoleGroup(self.role, timeout=timeout, network=self._network)
        group._targets = self._targets
        return group

    def ranks(self) -> range:
        """Return the ranks of the role: those of the current round of an elastic role. Raises `OSError`."""
        return range(size_of(self.role, self._spec, self._network))

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function of all instances at the same time; return their values by rank.

        Waits for all instances; then raises the error of the lowest rank, as `call_rank` does.
        """
        replies = self.try_call(method, *args, **kwargs)
        return [_value(reply) for reply in replies]

    def try_call(self, method: str, /, *args: Any, **kwargs: Any) -> tuple[Reply, ...]:
        """Call a function of all instances at the same time; return values and errors by rank."""
        return _together(self.ranks(), lambda rank: self._call(rank, method, args, kwargs))

    def call_rank(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of one instance and return its value.

        Raises:
            Restarted: the instance was restarted since the last call, or during this one.
            RemoteError: the function raised an exception.
            UnreachableError: the instance does not run, and no successor has started within the timeout.
            CallTimeoutError: the instance did not answer within the timeout.
            ValueTypeError: an argument has a type that calls cannot carry.

        """
        return self._call(rank, method, args, kwargs)

    def call_rank0(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the instance with rank 0; as `call_rank`."""
        return self._call(0, method, args, kwargs)

    def call_batch(self, method: str, /, *columns: Sequence[Any], **kwargs: Any) -> list[Any]:
        """Call a function once for each item, divided among the instances; return the values in the order of the items.

        `call_batch("score", prompts, answers)` calls `score(prompts[i], answers[i])` on instance `i % size`. Keyword arguments
        go to every call. An instance executes its items one after another. Raises the error of the first item that failed.
        """
        items = _rows(columns)
        ranks = self.ranks()
        if not ranks and items:
            raise UnreachableError(f"{self.role}: the role has no instance")

        def work(rank: int) -> list[Any]:
            return [self._call(rank, method, row, kwargs) for row in items[rank :: len(ranks)]]

        replies = _together(ranks[: len(items)], work)
        shares = [_value(reply) for reply in replies]
        return [shares[index % len(ranks)][index // len(ranks)] for index in range(len(items))]

    def _call(self, rank: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        target = self._targets.get(rank)
        if target is None:
            if type(rank) is not int or rank < 0:
                raise RolesError(f"rank: {rank!r} is not allowed; expected a number of at least 0")
            made = Target(self._network, entry_name(self.role, rank), f"{self.role}/{rank}")
            target = self._targets.setdefault(rank, made)
        return target.call(method, args, kwargs, self.timeout)


def _together(ranks: Sequence[int], call: Callable[[int], Any]) -> tuple[Reply, ...]:
    """Call instances at the same time; return their replies by rank."""

    def attempt(rank: int) -> Reply:
        try:
            return Reply(rank=rank, value=call(rank))
        except RolesError as error:
            return Reply(rank=rank, error=error)

    if len(ranks) <= 1:
        return tuple(attempt(rank) for rank in ranks)
    with ThreadPoolExecutor(min(len(ranks), _PARALLEL), thread_name_prefix="rallypoint-call") as pool:
        return tuple(pool.map(attempt, ranks))


def _rows(columns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise RolesError(f"call_batch: argument lists of lengths {sorted(lengths)} are not allowed; expected equal lengths")
    return list(zip(*columns, strict=True))


def _value(reply: Reply) -> Any:
    if reply.error is not None:
        raise reply.error
    return reply.value
