"""The defaults of each profile: what a policy field holds that the job does not give. One table for all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rallypoint.job.rules import Rule, choice
from rallypoint.wire.plan import Plan, Profile

if TYPE_CHECKING:
    from rallypoint.job.mindcluster import MindCluster

__all__ = ["DEFAULTS", "MOST_RESETS", "PROFILE", "defaults_of"]

#: What a job file may give as `fault_tolerance.retry_limit`.
MOST_RESETS = 100
_NAMES = choice(*(profile.value for profile in Profile))

PROFILE = Rule(
    kind=_NAMES.kind,
    allowed=_NAMES.allowed,
    read=lambda value: Profile(_NAMES.read(value)),
    write=lambda profile: profile.value,
    schema=_NAMES.schema,
)

_LADDER: Mapping[str, Any] = {
    "fault_tolerance.retry_limit": Plan.retry_limit,
    "fault_tolerance.admission_grace_period": Plan.admission_grace,
    "fault_tolerance.warmup_grace_period": Plan.warmup_grace,
    "fault_tolerance.failure_grace_period": Plan.failure_grace,
    "fault_tolerance.retry_pause_period": Plan.retry_pause,
    "fault_tolerance.forceful_deletion_grace_period": Plan.forceful_deletion_grace,
    "fault_tolerance.deletion_on_failure_grace_period": Plan.deletion_on_failure_grace,
    "fault_tolerance.success_ttl": Plan.success_ttl,
    "fault_tolerance.no_progress_limit": Plan.no_progress_limit,
    "fault_tolerance.pending_timeout": Plan.pending_timeout,
    "fault_tolerance.pending_fail_strategy": Plan.pending_fail_strategy,
    "recovery.max_restarts": Plan.max_restarts,
    "recovery.node_replacements": Plan.node_replacements,
    "recovery.max_hangs": Plan.max_hangs,
    "health.node_lease": Plan.node_lease,
    "health.report_interval": Plan.report_interval,
}

#: What each profile sets, by the field's path in the document. The models' own defaults are those of `ladder`.
DEFAULTS: Mapping[Profile, Mapping[str, Any]] = {
    Profile.LADDER: _LADDER,
    # The reference replaces no pod and knows nothing of steps; its warm-up is what judges a pod that stays pending.
    Profile.APPWRAPPER: {
        **_LADDER,
        "fault_tolerance.no_progress_limit": 0,
        "fault_tolerance.pending_fail_strategy": -1,
        "recovery.node_replacements": 0,
    },
    Profile.MINDCLUSTER: {
        **_LADDER,
        "fault_tolerance.retry_limit": 0,
        "fault_tolerance.no_progress_limit": 0,
        "recovery.max_restarts": 32767,
        "recovery.node_replacements": 0,
        # It reports less often: three reports fit into a lease, as elsewhere.
        "health.node_lease": 15.0,
        "health.report_interval": 5.0,
    },
}


def defaults_of(profile: Profile, block: MindCluster) -> dict[str, Any]:
    """Return every default of a profile; in `mindcluster` two of them follow the `fault_retry_times` of its block."""
    if profile is not Profile.MINDCLUSTER:
        return dict(DEFAULTS[profile])
    return {
        **DEFAULTS[profile],
        "fault_tolerance.retry_limit": min(block.fault_retry_times, MOST_RESETS),
        "recovery.node_replacements": block.fault_retry_times,
    }
