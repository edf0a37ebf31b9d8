"""One door for a job in any form: a file, a dict, keyword arguments, or a job that is one already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rallypoint.job.document import read_document
from rallypoint.job.errors import JobError, Problem, show
from rallypoint.job.model import ElasticJob

__all__ = ["JobSource", "load_job"]

JobSource = str | os.PathLike[str] | Mapping[str, Any] | ElasticJob


def load_job(
    source: JobSource | None = None, /, *, base: str | Path | None = None, based: bool = True, **fields: Any
) -> ElasticJob:
    """Return the job that `source` describes, with `fields` in the place of its top-level keys of the same name.

    Args:
        source: path of a YAML or JSON file, a document as a dict, or a job; None for a job of `fields` alone.
        base: folder that relative paths of the job start from; without it the file's folder, or else the current one.
        based: false leaves relative paths as they are written: those of a job whose pods have them in their image.
        fields: keys of the document: `load_job(name="digits", entrypoint="train.py", nodes="1:2")`.

    Raises:
        JobError: it cannot be read or is not a job; the text names every problem.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _job(read_document(path), fields, Path(base or path.parent) if based else None, source=str(path))
    document = source.to_document() if isinstance(source, ElasticJob) else {} if source is None else source
    return _job(document, fields, Path(base or Path.cwd()) if based else None, source="")


def _job(document: Any, fields: Mapping[str, Any], base: Path | None, *, source: str) -> ElasticJob:
    try:
        job = ElasticJob.model_validate(_merged(document, fields))
        return job if base is None else job.with_base(base)
    except JobError as error:
        raise error.with_source(source) from None


def _merged(document: Any, fields: Mapping[str, Any]) -> Any:
    if not fields:
        return document
    if not isinstance(document, Mapping):
        raise JobError(
            [Problem(path="job", text=f"{show(document)} is not allowed; expected a mapping with name and entrypoint")]
        )
    return {**document, **fields}
