"""The job that a command line describes: its file, changed by `--set` and `--name`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rallypoint.job import ElasticJob, JobError, load_job
from rallypoint.job.document import read_document, read_yaml
from rallypoint.job.errors import Problem
from rallypoint.job.spelling import overridden, variables
from rallypoint.wire.errors import RallypointError

__all__ = ["SettingError", "read_job", "with_settings"]

_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")
_KEY = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*")


class SettingError(RallypointError):
    """A `--set` option cannot be applied."""


_NOTHING: Mapping[str, str] = {}


def read_job(
    path: Path,
    *,
    settings: Iterable[str] = (),
    name: str | None = None,
    based: bool = True,
    arguments: Mapping[str, str] = _NOTHING,
    environ: Mapping[str, str] = _NOTHING,
) -> ElasticJob:
    """Return the job of a file, changed by `KEY=VALUE` settings; raises `SettingError` and `JobError`, which name the file.

    Args:
        path: of the job file.
        settings: override the file.
        name: of the job; overrides the file.
        based: relative paths start from the file's folder; if False, they are unchanged (paths in an image).
        arguments: DLRover's arguments, by name; they override the file and the settings.
        environ: variables that are used if nothing else sets a value.
    """
    document = with_settings(read_document(path), settings)
    fields = {} if name is None else {"name": name}
    try:
        if not isinstance(document, dict):
            return load_job(path, based=based)
        _agree(name, arguments.get("job_name"))
        document = variables(environ)(overridden(document, arguments))
        return load_job(document, base=path.parent, based=based, **fields)
    except JobError as error:
        raise error.with_source(str(path)) from None


def _agree(name: str | None, job_name: str | None) -> None:
    if name is not None and job_name not in (None, name):
        told = f"{job_name!r} is not allowed; --name is already {name!r}; expected one value"
        raise JobError([Problem(path="--job-name", text=told)])


def with_settings(document: Any, settings: Iterable[str]) -> Any:
    """Return the document with each `KEY=VALUE` applied; KEY is `nodes`, `env.SEED` or `roles[0].nodes`, VALUE is YAML."""
    document = copy.deepcopy(document)
    for setting in settings:
        _set(document, setting)
    return document


def _set(document: Any, setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not _KEY.fullmatch(key):
        raise SettingError(
            f"--set {setting}: is not allowed; expected KEY=VALUE, with a KEY such as nodes, env.SEED or roles[0].nodes"
        )
    *parents, last = (_step(part) for part in _STEP.findall(key))
    place = document
    for parent in parents:
        place = _enter(place, parent, setting)
    _check(place, last, setting)
    place[last] = _value(setting, text, config=[*parents, last][0] == "config")


def _step(part: str) -> str | int:
    return int(part[1:-1]) if part.startswith("[") else part


def _enter(place: Any, step: str | int, setting: str) -> Any:
    _check(place, step, setting)
    if isinstance(place, dict) and place.get(step) is None:
        place[step] = {}
    return place[step]


def _check(place: Any, step: str | int, setting: str) -> None:
    if isinstance(step, str) and isinstance(place, dict):
        return
    if isinstance(step, int) and isinstance(place, list):
        if step < len(place):
            return
        raise SettingError(f"--set {setting}: index [{step}] is out of range; the list in the file has {len(place)} items")
    if isinstance(step, int):
        raise SettingError(f"--set {setting}: cannot set index [{step}] of {place!r}, which is not a list")
    raise SettingError(f"--set {setting}: cannot set the key {step!r} of {place!r}, which is not a mapping")


def _value(setting: str, text: str, *, config: bool) -> Any:
    try:
        # As in a file: below `config`, numbers may have a decimal point.
        return read_yaml(f"config: {text}")["config"] if config else read_yaml(text)
    except JobError as error:
        raise SettingError(f"--set {setting}: the value is not valid YAML ({error})") from error
