"""Profiles of a job: the defaults of each, and the interface of the packages that implement further ones. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from rallypoint.job.errors import Problem, Step
from rallypoint.job.part import Model
from rallypoint.job.role import Role
from rallypoint.job.rules import MOST_RESETS, Rule, choice
from rallypoint.profiles import PACKAGES, part_of
from rallypoint.wire.plan import Budgets, GracePeriods, Plan, Profile, RendezvousSettings

__all__ = [
    "MOST_RESETS",
    "PROFILE",
    "Key",
    "Place",
    "ProfileSpec",
    "block_of",
    "defaults_of",
    "specs",
    "warnings_of",
    "with_blocks",
]

#: Converts a path of the normal form of a document to the path where the value stands.
Place = Callable[[tuple[Step, ...]], tuple[Step, ...]]

M = TypeVar("M", bound=Model)

_NAMES = choice(*(profile.value for profile in Profile))

PROFILE = Rule(
    kind=_NAMES.kind,
    allowed=_NAMES.allowed,
    read=lambda value: Profile(_NAMES.read(value)),
    write=lambda profile: profile.value,
    schema=_NAMES.schema,
)

#: Defaults of the policies by their path in the document. The models' own defaults are those of `ladder`.
_LADDER: Mapping[str, Any] = {
    "fault_tolerance.retry_limit": Budgets.retry_limit,
    "fault_tolerance.admission_grace_period": GracePeriods.admission_grace,
    "fault_tolerance.warmup_grace_period": GracePeriods.warmup_grace,
    "fault_tolerance.failure_grace_period": GracePeriods.failure_grace,
    "fault_tolerance.retry_pause_period": GracePeriods.retry_pause,
    "fault_tolerance.forceful_deletion_grace_period": GracePeriods.forceful_deletion_grace,
    "fault_tolerance.deletion_on_failure_grace_period": GracePeriods.deletion_on_failure_grace,
    "fault_tolerance.success_ttl": GracePeriods.success_ttl,
    "fault_tolerance.no_progress_limit": Budgets.no_progress_limit,
    "fault_tolerance.pending_timeout": GracePeriods.pending_timeout,
    "fault_tolerance.pending_fail_strategy": GracePeriods.pending_fail_strategy,
    "recovery.max_restarts": Budgets.max_restarts,
    "recovery.node_replacements": Budgets.node_replacements,
    "recovery.max_hangs": Budgets.max_hangs,
    "health.node_lease": RendezvousSettings.node_lease,
    "health.report_interval": RendezvousSettings.report_interval,
}

#: AppWrapper replaces no pod and knows no training steps; its warm-up period limits pods that stay pending.
_APPWRAPPER: Mapping[str, Any] = {
    "fault_tolerance.no_progress_limit": 0,
    "fault_tolerance.pending_fail_strategy": -1,
    "recovery.node_replacements": 0,
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A label or annotation that sets a field of a profile's block.

    Attributes:
        field: of the block.
        allowed: completes the sentence "'x' is not allowed; expected ...".
        read: returns the value of its text; raises `RefusedError`.
        chooses: a job that has the key and no `profile` has this profile.
    """

    field: str
    allowed: str
    read: Callable[[str], Any]
    chooses: bool = True


class ProfileSpec(Protocol):
    """The module `document` of a profile's package.

    Attributes:
        BLOCK: the key of its block in the document.
        MODEL: the model of the block.
        Fields: a model with one field: the block.
        LATER: fields of the block that jobs of earlier versions had not.
        LABELS, ANNOTATIONS: keys of the job that set fields of the block.
        WITHOUT_EFFECT: paths of settings without an effect in this profile, and what to do instead.
        SUMMARY, TITLE, CHOSEN, NOTE: for the reference page: of the profile, its name, what chooses it, a remark on defaults.
    """

    BLOCK: str
    MODEL: type[Model]
    Fields: type[Model]
    LATER: tuple[str, ...]
    LABELS: Mapping[str, Key]
    ANNOTATIONS: Mapping[str, Key]
    WITHOUT_EFFECT: Mapping[str, str]
    SUMMARY: str
    TITLE: str
    CHOSEN: str
    NOTE: str

    def defaults(self, block: Any) -> dict[str, Any]:
        """Return the defaults of policies, by path, that differ from those of `ladder`."""
        ...

    def block_defaults(self, job: Any) -> dict[str, Any]:
        """Return the default of each field of the block in a job."""
        ...

    def derived(self, block: Any, given: set[str], roles: Iterable[Role], annotations: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of the block that follow from other fields and from the roles, without those that are `given`."""
        ...

    def added_labels(self, block: Any) -> dict[str, str]:
        """Return labels that the profile adds to the job."""
        ...

    def why_unread(self, key: str, text: str) -> str:
        """Return why a label or annotation is an error that looks like one of the profile; "" for any other."""
        ...

    def problems(self, job: Any, place: Place) -> Iterator[Problem]:
        """Yield what the profile does not allow in a job."""
        ...

    def plan_fields(self, block: Any, role: Role, retry_limit: int) -> dict[str, Any]:
        """Return fields of a role's plan; variables in `env` have lower priority than the role's own."""
        ...

    def warnings(self, plan: Plan) -> Iterator[str]:
        """Yield warnings about a plan, for the submitting user."""
        ...


@functools.cache
def specs() -> Mapping[Profile, ProfileSpec]:
    """Return the document specs of the registered packages by profile."""
    return {profile: cast("ProfileSpec", part_of(profile, "document")) for profile in PACKAGES}


def with_blocks(fields: type[M]) -> type[M]:
    """Return the model of a job's fields with the blocks of the registered profiles."""
    kind: Any = type(fields)
    parts = tuple(spec.Fields for spec in specs().values())
    made: type[M] = kind(
        fields.__name__.lstrip("_"), (*parts, fields), {"__module__": fields.__module__, "__doc__": fields.__doc__}
    )
    return made


def block_of(job: Any, spec: ProfileSpec) -> Any:
    """Return the block of a profile in a job."""
    return getattr(job, spec.BLOCK)


def defaults_of(profile: Profile, job: Any = None) -> dict[str, Any]:
    """Return the defaults of a profile by path; those of some profiles follow the block of `job`."""
    if profile is Profile.APPWRAPPER:
        return {**_LADDER, **_APPWRAPPER}
    spec = specs().get(profile)
    if spec is None:
        return dict(_LADDER)
    return {**_LADDER, **spec.defaults(spec.MODEL() if job is None else block_of(job, spec))}


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Return the warnings of the profile about a plan."""
    spec = specs().get(plan.profile)
    return () if spec is None else tuple(spec.warnings(plan))
