"""The type and the range of each field of a `LaunchConfig`; what fields mean together is checked in `settle.py`. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.agent.launch.config import LaunchConfig

__all__ = ["require_valid"]


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """`holds` for the values that are allowed, which `expected` describes."""

    holds: Callable[[Any], bool]
    expected: str


def _integer(least: int) -> _Rule:
    def holds(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return _Rule(holds=holds, expected=f"an integer of at least {least}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_path(value: object) -> bool:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return isinstance(text, str) and bool(text) and "\0" not in text


def _or_none(rule: _Rule) -> _Rule:
    return _Rule(holds=lambda value: value is None or rule.holds(value), expected=f"None or {rule.expected}")


_TEXT = _Rule(holds=_is_text, expected="a string of printable characters")
_NAME = _Rule(
    holds=lambda value: _is_text(value) and bool(value.strip()), expected="a non-empty string of printable characters"
)
_SECONDS = _Rule(holds=_is_seconds, expected="a number of seconds, 0 or more")
_KEYED = _Rule(
    holds=lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    expected="a dict with string keys",
)

#: The fields whose values are compared, or read by a function of their own, are not listed.
_RULES: Mapping[str, _Rule] = {
    "min_nodes": _integer(1),
    "max_nodes": _integer(1),
    "nproc_per_node": _integer(1),
    "run_id": _TEXT,
    "role": _NAME,
    "rdzv_endpoint": _TEXT,
    "rdzv_backend": _TEXT,
    "rdzv_configs": _KEYED,
    "rdzv_timeout": _Rule(
        holds=lambda value: _is_seconds(value) or (value == -1 and not isinstance(value, bool)),
        expected="a number of seconds, 0 or more, or -1 to use rdzv_configs",
    ),
    "max_restarts": _integer(0),
    "monitor_interval": _Rule(holds=lambda value: _is_seconds(value) and value > 0, expected="more than 0 seconds"),
    "start_method": _TEXT,
    "log_dir": _or_none(_Rule(holds=_is_path, expected="a non-empty path")),
    "metrics_cfg": _KEYED,
    "log_line_prefix_template": _or_none(_Rule(holds=lambda value: isinstance(value, str), expected="a string")),
    "local_addr": _or_none(_NAME),
    "signals_to_handle": _TEXT,
    "virtual_local_rank": _Rule(holds=lambda value: isinstance(value, bool), expected="True or False"),
    "shutdown_timeout": _or_none(_SECONDS),
}


def require_valid(config: LaunchConfig) -> None:
    """Raise `ValueError` for the first field with a value that is not allowed; it names the field, the value and what is."""
    if not isinstance(config, LaunchConfig):
        raise ValueError(f"config: {config!r} is not allowed; expected a LaunchConfig of rallypoint.agent")  # noqa: TRY004
    for name, rule in _RULES.items():
        value = getattr(config, name)
        if not rule.holds(value):
            raise ValueError(f"{name}: {value!r} is not allowed; expected {rule.expected}")
    if config.min_nodes > config.max_nodes:
        given = f"{config.min_nodes}, {config.max_nodes}"
        raise ValueError(f"min_nodes, max_nodes: {given} is not allowed; expected 1 <= MIN <= MAX")
