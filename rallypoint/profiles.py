"""Profiles that are implemented outside the core, each by a package of `rallypoint.compat`.

A package has, as far as it needs them:

- `document.py`: its block, labels, annotations and defaults in the job document (`rallypoint.job.profiles.ProfileSpec`),
- `supervisor.py`: how the supervisor answers faults (`rallypoint.supervision.profile.SupervisorRules`),
- `coordinator.py`: how the coordinator answers faults (`rallypoint.agent.rendezvous.profile.CoordinatorRules`),
- `node.py`: its part of the node agent (`rallypoint.agent.node.profile.NodeRules`).

The core works with none of them: modules are loaded by the names below.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import ModuleType

from rallypoint.wire.plan import Profile

__all__ = ["PACKAGES", "part_of"]

#: The registered packages by profile.
PACKAGES: Mapping[Profile, str] = {Profile.MINDCLUSTER: "rallypoint.compat.mindcluster"}


@functools.cache
def part_of(profile: Profile, part: str) -> ModuleType | None:
    """Return the module `part` of a profile's package; None for a profile of the core."""
    package = PACKAGES.get(profile)
    return None if package is None else importlib.import_module(f"{package}.{part}")
