"""Whose output a task tells. Pure, and read wherever a DAG is parsed."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.provider.errors import OptionError

__all__ = ["ALL", "GetLogs", "check_get_logs", "ranks_of"]

#: What `get_logs` may be: no rank, rank 0 (True), `ALL` of them, or some.
GetLogs = bool | str | Sequence[int]

ALL = "all"


def check_get_logs(value: object) -> None:
    """Raise `OptionError` unless `value` says which ranks."""
    if isinstance(value, bool) or value == ALL:
        return
    ranks = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not ranks or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise OptionError("get_logs", value, "True (rank 0), False, 'all', or a list of ranks")


def ranks_of(get_logs: GetLogs) -> frozenset[int] | None:
    """Return the ranks that are meant, None for all of them."""
    if isinstance(get_logs, bool):
        return frozenset({0}) if get_logs else frozenset()
    return None if isinstance(get_logs, str) else frozenset(get_logs)
