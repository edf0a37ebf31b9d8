"""Build the submitted job from an operator's arguments: a document, completed by fields, with the name of the task's job."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rallypoint.job import ElasticJob, JobError, load_job, spelling
from rallypoint.job.document import read_json, read_yaml
from rallypoint.job.errors import Problem, show
from rallypoint.job.platform import backend_of
from rallypoint.job.spelling import spell, variables
from rallypoint.provider.connections.connection import NO_DEFAULTS, Defaults
from rallypoint.provider.connections.defaults import with_arguments, with_defaults, with_policies

__all__ = ["JOB_FILES", "annotate", "build_job", "place_in", "read_source", "spelled"]

#: Extensions of job files. Other text is the document itself.
JOB_FILES = (".yaml", ".yml", ".json")

_NOTHING: Mapping[str, str] = {}

#: Fields of a role that an operator may set for all roles of a job at once.
_OF_EACH_ROLE = ("image", "env", "workdir")

#: Descriptions of the expected mapping of an argument.
_HOLDS = {"job": "a mapping with an entrypoint", "settings": "a mapping with a jobName", "manifest": "a mapping with a kind"}

_TEMPLATE = (
    "{} is not allowed as the result of a template; expected a mapping, or YAML or JSON text. To complete the path of a file, "
    "write the extension after the template, as in 'jobs/{{{{ params.name }}}}.yaml'"
)


def read_source(
    source: Any, *, written: Any, folder: Path, render: Callable[[str], Any], field: str = "job"
) -> tuple[dict[str, Any], Path]:
    """Return the document that an operator's argument names, and the folder that its relative paths start from.

    Only the author of a DAG may name a file: a template can complete a path, but the argument itself must end with the
    extension, and the file must be in the folder that the argument names before the template.

    Args:
        source: None, a mapping, the path of a job file, or the text of one.
        written: the argument before its templates were rendered.
        folder: relative paths of job files, and of documents that have no file, start here.
        render: renders the templates in a file's text.
        field: the argument, for errors.

    Raises:
        JobError: the file does not exist, or does not contain a mapping; or the result of a template may not name it.
    """
    if source is None:
        return {}, folder
    if isinstance(source, Mapping):
        return dict(source), folder
    if not isinstance(source, str):
        raise JobError(
            [Problem(path=field, text=f"{show(source)} is not allowed; expected a mapping, a file path, or YAML or JSON text")]
        )
    if isinstance(written, str) and _is_path(written):
        return _read_file(_path_of(source.strip(), written.strip(), folder, field), render, field)
    if _is_path(source):
        raise JobError([Problem(path=field, text=_TEMPLATE.format(show(source)))])
    return _mapping(_parse(source), field), folder


def build_job(
    document: Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    name: str,
    base: Path | None,
    defaults: Defaults = NO_DEFAULTS,
    environ: Mapping[str, str] = _NOTHING,
) -> ElasticJob:
    """Return the job of a document whose keys are overridden by those `fields` that are not None.

    A mapping (a policy block, `env`, `resources`) completes the document's own, key by key; everything else takes its place.
    In a document with several roles, `_OF_EACH_ROLE` completes each role, whose own values have priority.
    Relative paths start from `base`; with None they stay as they are: those of an image. What is in neither is as the variables
    of `environ` say, which are DLRover's arguments, and then as `defaults` say. Raises `JobError`.
    """
    document = spelled(document)
    given = {key: value for key, value in fields.items() if value is not None}
    document, given = _into_roles(document, given)
    merged = {key: _complete(document.get(key), value) for key, value in given.items()}
    whole = variables(environ)({**document, **merged, "name": name})
    whole = with_policies(with_arguments(whole, defaults.arguments), defaults.policies)
    return with_defaults(load_job(whole, base=base, based=base is not None), defaults)


def spelled(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with DLRover's arguments, also from annotations, converted to fields; raises `JobError`."""
    return dict(spell(document).document)


def place_in(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the `platform`, as a backend, and the `namespace` of a spelled document; raises `JobError` for one not there."""
    found = spelling.place_in(document)
    return {**found, "platform": backend_of(found["platform"])} if "platform" in found else found


def annotate(job: ElasticJob, notes: Mapping[str, str]) -> ElasticJob:
    """Return the job with annotations on itself and on each role.

    They are part of the spec, so two tasks with jobs of the same name never share a job: the second submission is rejected.
    """
    roles = tuple(role.model_copy(update={"annotations": {**role.annotations, **notes}}) for role in job.roles)
    return job.model_copy(update={"annotations": {**job.annotations, **notes}, "roles": roles})


def _into_roles(document: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a document whose roles have what is given for each of them, and what is left for the document itself."""
    roles, shared = document.get("roles"), {key: given[key] for key in _OF_EACH_ROLE if key in given}
    if not isinstance(roles, (Mapping, list, tuple)) or not shared:
        return document, given

    def completed(role: Any) -> Any:
        if not isinstance(role, Mapping):
            return role  # the job model reports it
        return {**role, **{key: _complete(value, role.get(key)) if key in role else value for key, value in shared.items()}}

    whole = (
        {name: completed(role) for name, role in roles.items()} if isinstance(roles, Mapping) else list(map(completed, roles))
    )
    return {**document, "roles": whole}, {key: value for key, value in given.items() if key not in shared}


def _complete(own: Any, given: Any) -> Any:
    if isinstance(own, Mapping) and isinstance(given, Mapping):
        return {**own, **given}
    return given


def _is_path(text: str) -> bool:
    return "\n" not in text.strip() and text.strip().lower().endswith(JOB_FILES)


def _path_of(source: str, written: str, folder: Path, field: str) -> Path:
    """Return the path of a file; raises `JobError` if the result of a template leaves the folder that is written before it."""
    if source == written:
        return folder / Path(source).expanduser()
    # The parts before the template are the same in both; a value can make the common beginning longer, but not shorter.
    parts = Path(source).parts
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, Path(written).parts, strict=False)))
    within = Path(os.path.normpath(folder / Path(*parts[:same]).expanduser()))
    path = Path(os.path.normpath(within.joinpath(*parts[same:])))
    if path.is_relative_to(within):
        return path
    text = f"{show(source)} is not allowed as the result of a template; expected a file in the folder {within}"
    raise JobError([Problem(path=field, text=text)])


def _read_file(path: Path, render: Callable[[str], Any], field: str) -> tuple[dict[str, Any], Path]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError([Problem(path=field, text=f"cannot be read; {reason}")], str(path)) from error
    try:
        return _mapping(_parse(render(text), json=path.suffix.lower() == ".json"), field), path.parent
    except JobError as error:
        raise error.with_source(str(path)) from None


def _parse(text: Any, *, json: bool = False) -> Any:
    if not isinstance(text, str):  # a DAG that renders its templates to native objects
        return text
    return read_json(text) if json else read_yaml(text)


def _mapping(document: Any, field: str) -> dict[str, Any]:
    if isinstance(document, Mapping):
        return dict(document)
    allowed = _HOLDS.get(field, "a mapping")
    raise JobError([Problem(path=field, text=f"{show(document)} is not allowed; expected {allowed}")])
