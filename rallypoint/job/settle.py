"""Complete a job after reading: apply its labels and annotations, and the defaults of its profile. Pure.

Each field is set by the document, by a label or annotation, or by the profile; two sources must have the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rallypoint.job import several
from rallypoint.job.annotations import ANNOTATIONS, PREFIX, read_annotations
from rallypoint.job.duration import format_duration
from rallypoint.job.errors import JobError, Problem, Step, dotted, show
from rallypoint.job.part import Model
from rallypoint.job.profiles import Key, Place, ProfileSpec, block_of, defaults_of, specs
from rallypoint.job.role import Role
from rallypoint.job.rules import rule_of
from rallypoint.job.values import RefusedError, write_nodes
from rallypoint.wire.plan import Profile

if TYPE_CHECKING:
    from rallypoint.job.fields import JobFields

__all__ = ["Choice", "choices", "settle", "unread"]

_BLOCKS = ("fault_tolerance", "recovery", "health")

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """A label or an annotation, at `path`, whose `text` sets `field` of `block` to `value`."""

    path: str
    text: str
    block: str
    field: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A policy field that the profile has a default for: what the job has, and whether it was `given` or is the default.

    Both values are as the document writes them.
    """

    path: str
    value: Any
    default: Any
    given: bool


def settle(job: JobFields, place: Place) -> dict[str, Any]:
    """Return the fields of a job that was just read in which it differs, once settled; `place` as in `Shape`.

    Raises `JobError` for what its labels, annotations and profile do not allow.
    """
    job, wrong = several.settle(job, place)
    _refuse(wrong)
    said, wrong = _said(job)
    wrong += _misplaced(job, place)
    wrong += _misspelt(job, place)
    wrong += _given_twice(job, said)
    _refuse(wrong)
    job = _with_said(job, said)
    profile, wrong = _profile(job, said)
    _refuse(wrong)
    job = _with_defaults(job, profile)
    _refuse([*_late_reports(job), *_not_in_profile(job, place)])
    return {name: getattr(job, name) for name in ("roles", "profile", "labels", *_blocks())}


def choices(job: JobFields) -> tuple[Choice, ...]:
    """Return every field that the job's profile sets, in the order of its table."""
    return tuple(_choice(job, path, default) for path, default in _defaults(job).items())


def unread(words: Mapping[str, str]) -> dict[str, str]:
    """Return the labels or annotations that set no policy, so that they have a meaning on pods only."""
    read = {key for spec in specs().values() for key in (*spec.LABELS, *spec.ANNOTATIONS)}
    return {key: text for key, text in words.items() if key not in read and not key.startswith(PREFIX)}


def _blocks() -> tuple[str, ...]:
    return (*_BLOCKS, *(spec.BLOCK for spec in specs().values()))


def _choice(job: JobFields, path: str, default: Any) -> Choice:
    block, name = path.split(".")
    part = getattr(job, block)
    rule = rule_of(type(part).model_fields[name].metadata)
    value, default = ((rule.write(item) if rule else item) for item in (getattr(part, name), default))
    return Choice(path=path, value=value, default=default, given=name in part.model_fields_set)


def _defaults(job: JobFields) -> dict[str, Any]:
    found = defaults_of(job.profile, job)
    spec = specs().get(job.profile)
    if spec is None:
        return found
    found = {path: default for path, default in found.items() if path not in spec.WITHOUT_EFFECT}
    return {**found, **{f"{spec.BLOCK}.{name}": value for name, value in spec.block_defaults(job).items()}}


def _refuse(wrong: list[Problem]) -> None:
    if wrong:
        raise JobError(wrong)


# --- what labels and annotations say ---------------------------------------------------------------------------------------


def _said(job: JobFields) -> tuple[list[_Said], list[Problem]]:
    said: list[_Said] = []
    wrong: list[Problem] = []
    for key, text in job.annotations.items():
        if not key.startswith(PREFIX):
            continue
        try:
            found = read_annotations({key: text}, clamp=False)
        except JobError as error:
            wrong += error.problems
        else:
            said += [_say("annotations", key, text, "fault_tolerance", *item) for item in found.values.items()]
    for spec in specs().values():
        for where, keys in (("labels", _labels(job, spec)), ("annotations", spec.ANNOTATIONS)):
            for key, text in getattr(job, where).items():
                if key not in keys:
                    continue
                try:
                    said.append(_say(where, key, text, spec.BLOCK, keys[key].field, keys[key].read(text)))
                except RefusedError as error:
                    allowed = str(error) or keys[key].allowed
                    told = f"{show(text)} is not allowed; expected {allowed}"
                    wrong.append(Problem(path=dotted((where, key)), text=told))
    return said, wrong


def _labels(job: JobFields, spec: ProfileSpec) -> dict[str, Key]:
    """Return the labels that set fields of a profile; some do so only if something else chooses the profile."""
    named = {"profile", spec.BLOCK} & job.model_fields_set
    chosen = (
        specs().get(job.profile) is spec
        or (named == {spec.BLOCK})
        or any(key in job.labels and known.chooses for key, known in spec.LABELS.items())
        or any(key in job.annotations for key in spec.ANNOTATIONS)
    )
    return {key: known for key, known in spec.LABELS.items() if known.chooses or chosen}


def _say(where: str, key: str, text: str, block: str, field: str, value: Any) -> _Said:
    return _Said(path=dotted((where, key)), text=text, block=block, field=field, value=value)


def _misplaced(job: JobFields, place: Place) -> Iterator[Problem]:
    """Yield keys without an effect where they are: a label among the annotations, or a key of the job in a role."""
    labels = [key for spec in specs().values() for key, known in spec.LABELS.items() if known.chooses]
    annotations = [*(key for spec in specs().values() for key in spec.ANNOTATIONS), *(f"{PREFIX}{key}" for key in ANNOTATIONS)]
    for where, other, keys in (("annotations", "labels", labels), ("labels", "annotations", annotations)):
        for key in keys:
            if key in getattr(job, where):
                yield Problem(path=dotted((where, key)), text=f"has no effect in {where}; move this key to {other}")
            for index, role in enumerate(job.roles):
                if key in getattr(role, other) and key not in getattr(job, other):
                    path = dotted(place(("roles", index, other, key)))
                    yield Problem(path=path, text=f"has no effect in a role; move this key to {other} at the top level")


def _misspelt(job: JobFields, place: Place) -> Iterator[Problem]:
    """Yield labels and annotations that look like those of a profile, but are not."""
    parts: list[tuple[tuple[Step, ...], Mapping[str, str]]] = []
    for where in ("labels", "annotations"):
        parts += [((where,), getattr(job, where))]
        parts += [(place(("roles", index, where)), getattr(role, where)) for index, role in enumerate(job.roles)]
    for path, words in parts:
        for key, text in words.items():
            why = next(filter(None, (spec.why_unread(key, text) for spec in specs().values())), "")
            if why:
                yield Problem(path=dotted((*path, key)), text=why)


def _given_twice(job: JobFields, said: Iterable[_Said]) -> Iterator[Problem]:
    for item in said:
        block = getattr(job, item.block)
        value = getattr(block, item.field)
        if item.field in block.model_fields_set and value != item.value:
            told = f"it conflicts with {item.block}.{item.field}; set one of them"
            yield Problem(path=item.path, text=f"{show(item.text)} is not allowed; {told}")


def _with_said(job: JobFields, said: Iterable[_Said]) -> JobFields:
    """Return the job with what was said as if the document had given it; roles have the job's labels and annotations."""
    updates: dict[str, dict[str, Any]] = {}
    for item in said:
        updates.setdefault(item.block, {})[item.field] = item.value
    blocks: dict[str, Any] = {name: getattr(job, name).model_copy(update=update) for name, update in updates.items()}
    return job.model_copy(update={**blocks, "roles": tuple(_inheriting(role, job) for role in job.roles)})


def _inheriting(role: Role, job: JobFields) -> Role:
    words = {name: {**getattr(job, name), **getattr(role, name)} for name in ("labels", "annotations")}
    return role.model_copy(update=words) if any(words.values()) else role


# --- the profile -----------------------------------------------------------------------------------------------------------


def _profile(job: JobFields, said: Iterable[_Said]) -> tuple[Profile, list[Problem]]:
    """Return the profile: the named one, or the one that labels, annotations or a block choose; a conflict is a problem."""
    said = tuple(said)
    for profile, spec in specs().items():
        words = [(item.path, item.text) for item in said if item.block == spec.BLOCK]
        block = block_of(job, spec).model_fields_set or spec.BLOCK in job.model_fields_set
        if job.profile is profile or not (words or block):
            continue
        if "profile" not in job.model_fields_set:
            return profile, []
        why = f"it requires profile {profile.value}, but the profile is {job.profile.value}; remove one of them"
        wrong = [Problem(path=path, text=f"{show(text)} is not allowed; {why}") for path, text in words]
        return job.profile, wrong or [Problem(path=spec.BLOCK, text=f"is not allowed; {why}")]
    return job.profile, []


def _with_defaults(job: JobFields, profile: Profile) -> JobFields:
    blocks: dict[str, Any] = {name: getattr(job, name) for name in _blocks()}
    spec = specs().get(profile)
    if spec is not None:
        block = blocks[spec.BLOCK]
        follow = spec.derived(block, block.model_fields_set, job.roles, job.annotations)
        job = job.model_copy(update={spec.BLOCK: _completed(block, follow)})
        blocks[spec.BLOCK] = block_of(job, spec)
    for path, value in defaults_of(profile, job).items():
        name, field = path.split(".")
        if field not in blocks[name].model_fields_set:
            blocks[name] = _completed(blocks[name], {field: value})
    job = job.model_copy(update={"profile": profile, **blocks})
    return job if spec is None else _labelled(job, spec)


def _labelled(job: JobFields, spec: ProfileSpec) -> JobFields:
    labels = {**spec.added_labels(block_of(job, spec)), **job.labels}
    job = job.model_copy(update={"labels": labels})
    return job.model_copy(update={"roles": tuple(_inheriting(role, job) for role in job.roles)})


def _completed(block: M, values: Mapping[str, Any]) -> M:
    """Return the block with defaults, which do not count as given."""
    whole = type(block).model_construct(_fields_set=set(block.model_fields_set), **{**dict(block), **values})
    return cast("M", whole)


def _late_reports(job: JobFields) -> Iterator[Problem]:
    """Yield a report interval of which two do not fit into a lease: a late report would cost a healthy node its place.

    It is checked once the profile's defaults are known. One that only follows from the profile is no problem: an agent reports
    at least three times in a lease (`pace_of`).
    """
    health = job.health
    given = {"report_interval"} if job.profile in specs() else {"report_interval", "node_lease"}
    if given & health.model_fields_set and health.report_interval >= health.node_lease / 2:
        allowed = f"less than half of node_lease ({format_duration(health.node_lease)})"
        told = f"{show(format_duration(health.report_interval))} is not allowed; expected {allowed}"
        yield Problem(path="health.report_interval", text=told)


def _not_in_profile(job: JobFields, place: Place) -> list[Problem]:
    if job.profile is Profile.APPWRAPPER:
        return list(_not_in_appwrapper(job, place))
    spec = specs().get(job.profile)
    return [] if spec is None else [*_without_effect(job, spec), *spec.problems(job, place)]


def _not_in_appwrapper(job: JobFields, place: Place) -> Iterator[Problem]:
    for index, role in enumerate(job.roles):
        if role.nodes.min != role.nodes.max:
            path, value = dotted(place(("roles", index, "nodes"))), write_nodes(role.nodes)
            allowed = "one number of nodes, because a job with profile appwrapper has a fixed number of nodes"
            yield Problem(path=path, text=f"{show(value)} is not allowed; expected {allowed}")
    for path, allowed in (
        ("recovery.node_replacements", "0 with profile appwrapper, which replaces no nodes"),
        ("fault_tolerance.pending_fail_strategy", "-1 with profile appwrapper, whose warm-up clock limits pending nodes"),
    ):
        chosen = _choice(job, path, defaults_of(job.profile, job)[path])
        if chosen.value != chosen.default:
            yield Problem(path=path, text=f"{show(chosen.value)} is not allowed; expected {allowed}")


def _without_effect(job: JobFields, spec: ProfileSpec) -> Iterator[Problem]:
    for path, instead in spec.WITHOUT_EFFECT.items():
        chosen = _choice(job, path, defaults_of(Profile.LADDER).get(path, 0.0))
        if chosen.given and chosen.value != chosen.default:
            yield Problem(path=path, text=f"{show(chosen.value)} has no effect with profile {job.profile.value}; {instead}")
