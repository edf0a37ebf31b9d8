"""The settings of a job that its author gave or that differ from the defaults. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.job import load_job
from rallypoint.job.model import ElasticJob
from rallypoint.job.part import Model
from rallypoint.wire.plan import Profile

__all__ = ["Setting", "notable_settings"]

#: Paths that are made absolute on reading, which marks them as set.
_PATHS = frozenset({"workdir", "dir", "checkpoint_dir"})

_SKIPPED = frozenset({"name", "entrypoint"})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a resolved job.

    Attributes:
        path: dotted path in the job document.
        value: as in the document.
        origin: where the value comes from.
    """

    path: str
    value: Any
    origin: str


def notable_settings(job: ElasticJob) -> tuple[Setting, ...]:
    """Return the settings that the user gave, then those that differ from the defaults of a job without settings."""
    values = dict(_leaves(job.to_document()))
    defaults = dict(_leaves(load_job(name=job.name, entrypoint=job.roles[0].entrypoint, based=False).to_document()))
    given = set(_given(job, values))
    found = []
    for path, value in values.items():
        if path in _SKIPPED or (path not in given and defaults.get(path, "") == value):
            continue
        found.append(Setting(path=path, value=value, origin=_origin(job, path, value, defaults, given=path in given)))
    return tuple(sorted(found, key=lambda setting: setting.path not in given))


def _origin(job: ElasticJob, path: str, value: Any, defaults: Mapping[str, Any], *, given: bool) -> str:
    if not given:
        if path.rsplit(".", maxsplit=1)[-1] in _PATHS:
            return "absolute path"
        of_profile = job.profile is not Profile.LADDER and path in defaults
        return f"from profile {job.profile.value}" if of_profile else "derived"
    default = defaults.get(path)
    if default is None:
        return ""
    return "same as the default" if default == value else f"default: {default}"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def _given(job: ElasticJob, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the document that the user set. Paths made absolute on reading count as derived."""
    short = "entrypoint" in values
    marked = [*_marked(job, "")]
    for index, role in enumerate(job.roles):
        marked += [*_marked(role, "" if short else f"roles[{index}]")]
    for path in values:
        if path.split(".")[-1] in _PATHS:
            continue
        if any(path == known or path.startswith((f"{known}.", f"{known}[")) for known in marked):
            yield path


def _marked(model: Model, path: str) -> Iterator[str]:
    for name in sorted(model.model_fields_set):
        here = f"{path}.{name}" if path else name
        value = getattr(model, name)
        if isinstance(value, Model):
            yield from _marked(value, here)
        elif name != "roles":
            yield here
