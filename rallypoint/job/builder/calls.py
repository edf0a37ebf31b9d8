"""Unchecked values from the calls of a builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rallypoint.job.builder.command import Command
from rallypoint.job.errors import Problem

__all__ = ["JobCalls", "RoleCalls"]


@dataclass(kw_only=True)
class RoleCalls:
    """The calls about one role.

    Attributes:
        written: its name as it was written; None of an elastic role without one.
        entry: the entrypoint; `command` what its command line says, where it is one.
        total, per_group, workers, least, most: counts; None where they were not said.
        env, needs: merged.
        failover: label and timeout of a node group.
        wrong: calls that could not be taken; their paths begin at the role.
    """

    elastic: bool
    written: str | None
    entry: Any
    command: Command | None = None
    total: Any = None
    per_group: Any = None
    workers: Any = None
    least: Any = None
    most: Any = None
    env: dict[str, Any] = field(default_factory=dict)
    needs: dict[str, Any] = field(default_factory=dict)
    driver: bool = True
    failover: tuple[Any, Any] | None = None
    wrong: list[Problem] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name in the document; "" of a role that has none."""
        return str(self.written or "").lower()


@dataclass(kw_only=True)
class JobCalls:
    """The calls about a job.

    Attributes:
        nodes, devices, kind: of the machines; None where they were not said.
        collocate_all: for each call, the roles that it leaves out.
        process_group, node_check: false where they are switched off.
        wrong: calls that could not be taken.
        required: roles that must be there; `allowed` all that may be, where not empty; `never_collocated` by "all".
    """

    nodes: Any = None
    devices: Any = None
    kind: Any = None
    configs: list[Any] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    roles: list[RoleCalls] = field(default_factory=list)
    collocations: list[tuple[str, ...]] = field(default_factory=list)
    collocate_all: list[tuple[str, ...]] = field(default_factory=list)
    process_group: bool = True
    node_check: bool = True
    wrong: list[Problem] = field(default_factory=list)
    required: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    never_collocated: tuple[str, ...] = ()
