"""The argument `get_logs`: ranks whose output a task logs. Pure, and imported when a DAG is parsed."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.provider.errors import OptionError

__all__ = ["ALL", "GetLogs", "check_get_logs", "ranks_of"]

#: Type of `get_logs`: no rank (False), rank 0 (True), `ALL` ranks, or a list.
GetLogs = bool | str | Sequence[int]

ALL = "all"


def check_get_logs(value: object) -> None:
    """Raise `OptionError` unless `value` selects ranks."""
    if isinstance(value, bool) or value == ALL:
        return
    ranks = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not ranks or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise OptionError("get_logs", value, "True (rank 0), False, 'all', or a list of ranks")


def ranks_of(get_logs: GetLogs) -> frozenset[int] | None:
    """Return the selected ranks, None for all."""
    if isinstance(get_logs, bool):
        return frozenset({0}) if get_logs else frozenset()
    return None if isinstance(get_logs, str) else frozenset(get_logs)
