"""The FILE of a submission: a job file, settings of the pytorchjob-generator, or a manifest, and its conversion."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.cli.jobfile import read_job, with_settings
from rallypoint.compat.pytorchjob_generator import appwrapper, elastic_job, notes, read_settings
from rallypoint.job import JobError, load_job
from rallypoint.job.document import read_document
from rallypoint.job.errors import Problem, show
from rallypoint.job.spelling import overridden
from rallypoint.wire.arguments import WORDS, ambient
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.plan import Kind

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Blueprint

__all__ = ["KindError", "drawn"]


class KindError(RallypointError):
    """The backend does not support this kind of job."""


def drawn(backend: Backend, args: argparse.Namespace, *, orphan_policy: str | None = None) -> Blueprint:
    """Return the blueprint of the job of a command line; raises `JobError`, `KindError` and the backend's errors.

    `orphan_policy` becomes the job's own setting, so that its file says what holds, and a later submission of that file is the
    same job. A manifest has none: what its controller does without a supervisor is the controller's to say.
    """
    chosen = [] if orphan_policy is None else [f"fault_tolerance.orphan_policy={orphan_policy}"]
    kind, here = None if args.kind is None else Kind(args.kind), args.where.site.on_this_machine
    document = read_document(args.file)
    manifest = isinstance(document, Mapping) and {"apiVersion", "kind"} <= document.keys()
    settings = isinstance(document, Mapping) and {"jobName", "containerImage"} <= document.keys()
    if here and (manifest or settings or kind not in {None, Kind.PODS}):
        what = f"--kind {args.kind}" if args.kind is not None else f"{args.file}"
        raise KindError(f"{what}: this kind of job runs only on Kubernetes; add --backend kubernetes")
    if args.arguments.keys() - {"platform"} and (manifest or (settings and kind is not Kind.PODS)):
        flags = ", ".join(WORDS[name].flag for name in args.arguments)
        raise KindError(f"{flags}: only allowed with a job file, and {args.file} is a manifest; use --set to change a manifest")
    # Only a cluster has kinds.
    cluster: Any = backend
    blueprint: Blueprint
    if manifest:
        made = _named(with_settings(document, args.settings), args.name)
        blueprint = cluster.plan_manifest(made, kind=_wrapping(kind, args.file))
        return blueprint
    if settings:
        return _of_settings(cluster, document, kind, args)
    job = read_job(
        args.file,
        settings=[*args.settings, *chosen],
        name=args.name,
        based=here,
        arguments=args.arguments,
        environ=ambient(os.environ),
    )
    if kind in {None, Kind.PODS}:
        return backend.plan(job)
    blueprint = cluster.plan_as(job, kind)
    return blueprint


def _of_settings(cluster: Any, document: Any, kind: Kind | None, args: argparse.Namespace) -> Blueprint:
    """Return settings as an AppWrapper, unless another kind is requested."""
    named = {} if args.name is None else {"jobName": args.name}
    blueprint: Blueprint
    try:
        read = read_settings({**with_settings(document, args.settings), **named})
        if kind is Kind.PODS:
            converted = elastic_job(read)
            blueprint = cluster.plan(load_job(overridden(converted.document, args.arguments), based=False))
            return dataclasses.replace(blueprint, notes=(*blueprint.notes, *converted.notes))
        manifest = appwrapper(read)
    except JobError as error:
        raise error.with_source(str(args.file)) from None
    blueprint = cluster.plan_manifest(manifest, kind=kind or Kind.APPWRAPPER)
    return dataclasses.replace(blueprint, notes=(*blueprint.notes, *notes(read)))


def _named(manifest: dict[str, Any], name: str | None) -> dict[str, Any]:
    metadata = manifest.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise JobError(
            [Problem(path="metadata", text=f"{show(metadata)} is not allowed; expected a mapping such as {{name: JOB_NAME}}")]
        )
    metadata = metadata or {}
    if not (name or metadata.get("name")):
        raise JobError([Problem(path="metadata.name", text="is missing; set the name of the job here, or pass --name")])
    return {**manifest, "metadata": {**metadata, **({} if name is None else {"name": name})}}


def _wrapping(kind: Kind | None, path: Path) -> Kind | None:
    if kind is Kind.PODS:
        raise KindError(f"--kind pods: {path} is a manifest; expected a job file or pytorchjob-generator settings")
    return kind
