"""`rallypoint render`: convert settings of the pytorchjob-generator to Kubernetes objects or to a job file."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from rallypoint.cli.options import Commands, add_command, set_option
from rallypoint.wire.errors import RallypointError

__all__ = ["add", "run"]

_DESCRIPTION = """\
Print the AppWrapper and PyTorchJob that a settings.yaml of the
pytorchjob-generator describes, for `kubectl create -f -`. With --job, print a
job file for `rallypoint submit`. All keys of the generator's Helm chart are
supported; an unknown key is an error. The command does not contact a cluster.

The pods of an elastic job wait for a Secret. `rallypoint render --secret` prints
this Secret. If --owner is the UID of the AppWrapper, Kubernetes deletes the
Secret together with the AppWrapper. To create the AppWrapper, and then the
Secret, run these commands:

  rallypoint render settings.yaml | kubectl create -f -
  uid=$(kubectl get appwrapper NAME -o jsonpath={.metadata.uid})
  rallypoint render settings.yaml --secret --owner $uid | kubectl create -f -
"""


class OutputError(RallypointError):
    """The output cannot be written."""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "render", "convert a settings.yaml of the pytorchjob-generator to Kubernetes manifests", _DESCRIPTION
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="settings.yaml of the pytorchjob-generator, YAML or JSON")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--job", action="store_true", help="print a job file for `rallypoint submit` instead of an AppWrapper")
    what.add_argument(
        "--secret", action="store_true", help="print the Secret that an elastic job needs, with a new random token"
    )
    parser.add_argument(
        "--owner", metavar="UID", default="", help="UID of the AppWrapper that owns the Secret; only with --secret"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="file to write the output to (default: standard output)"
    )
    set_option(parser, "a key of FILE to a YAML value, as in --set numPods=8")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the converted settings; notes go to stderr."""
    if args.owner and not args.secret:
        raise RallypointError("--owner: is allowed only together with --secret")
    what = "job" if args.job else "secret" if args.secret else "appwrapper"
    text, notes = render(args.file, settings=args.settings, what=what, owner=args.owner)
    if args.output is None:
        print(text, end="")
    else:
        _write(args.output, text, mode=0o600 if args.secret else 0o666)
    for note in notes:
        print(f"rallypoint: note: {note}", file=sys.stderr)
    return 0


def render(
    path: Path, *, settings: Iterable[str] = (), what: str = "appwrapper", owner: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Return the YAML of an `appwrapper`, a `job` or a `secret`, and its notes.

    Raises `SettingError` and `JobError`, which name the file, and `RallypointError` for settings without a Secret.
    """
    # pydantic is slow to import, and --help does without.
    from rallypoint.cli.jobfile import with_settings  # noqa: PLC0415
    from rallypoint.compat.pytorchjob_generator import appwrapper, elastic_job, notes, read_settings, secret_object  # noqa: PLC0415
    from rallypoint.job import JobError  # noqa: PLC0415
    from rallypoint.job.document import read_document, write_yaml  # noqa: PLC0415

    document = with_settings(read_document(path), settings)
    try:
        read = read_settings(document)
        if what == "job":
            converted = elastic_job(read)
            return write_yaml(converted.document), converted.notes
    except JobError as error:
        raise error.with_source(str(path)) from None
    if what == "secret":
        if not read.elastic or read.insecure_token:
            raise RallypointError(
                f"--secret: the job of {path} needs no Secret; expected pytorchjob-generator settings with elastic: "
                "true and without insecureToken"
            )
        return write_yaml(secret_object(read, owner=owner)), ()
    return write_yaml(appwrapper(read)), tuple(notes(read))


def _write(path: Path, text: str, *, mode: int) -> None:
    """Write a file; a new one gets `mode`, and one that exists loses the rights that are not in it."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            if mode == 0o600 and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fchmod(file.fileno(), mode)
            file.write(text)
    except OSError as error:
        raise OutputError(f"{path}: cannot write the file: {error.strerror}") from error
