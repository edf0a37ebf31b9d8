"""DLRover's arguments as options of commands that read a job file, in both spellings: `--max-restarts` and `--max_restarts`.

They override the file, as `--set` does. An option given twice must have the same value both times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rallypoint.cli.options import Where, read_where
from rallypoint.usage import COMPATIBILITY_OPTIONS, UsageParser
from rallypoint.wire.arguments import PLATFORMS, WORDS, Word

__all__ = ["argument_options", "name_option", "place_of"]


class _Once(argparse.Action):
    """Stores one value, in either spelling; a second, different value is an error."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        value = "true" if self.nargs == 0 else str(values)
        known = namespace.arguments if isinstance(namespace.arguments, dict) else {}
        before = known.get(self.dest)
        if before is not None and before != value:
            parser.error(
                f"{option_string} {value}: is not allowed; {self.option_strings[0]} is already set to {before}; expected "
                "one value"
            )
        namespace.arguments = {**known, self.dest: value}


def argument_options(parser: UsageParser) -> None:
    """Add the options; their values are collected in `arguments`, as text by name."""
    parser.set_defaults(arguments={})
    group = parser.group(COMPATIBILITY_OPTIONS)
    for word in WORDS.values():
        if word.name not in ("job_name", "namespace"):
            _add(group, word)


def name_option(parser: UsageParser, text: str) -> None:
    """Add `--name`, which DLRover calls `--job_name`."""
    parser.add_argument("--name", help=text)
    _add(parser.group(COMPATIBILITY_OPTIONS), WORDS["job_name"])


def _add(group: Any, word: Word) -> None:
    spellings = dict.fromkeys((word.flag, "--" + word.name))
    more = {"metavar": word.metavar} if word.metavar else {"nargs": 0}
    # Absent if the option is not given: the job has the defaults.
    group.add_argument(*spellings, dest=word.name, action=_Once, default=argparse.SUPPRESS, help=word.text, **more)


def place_of(args: argparse.Namespace, environ: Mapping[str, str]) -> Where:
    """Return where the job of a command line is: from its options, else from its file, else from the environment.

    If the command line overrides `platform` or `namespace` of the file, `arguments` sets the new value.
    """
    from rallypoint.job.platform import backend_of  # noqa: PLC0415  pydantic is slow to import, and --help does without

    said = _said(Path(args.file), args.settings)
    platform = args.arguments.get("platform")
    if platform is not None:
        if platform not in PLATFORMS:
            args.usage_error(f"--platform {platform}: is not allowed; expected one of {', '.join(PLATFORMS)}")
        meant = backend_of(platform)
        if args.backend is not None and args.backend != meant:
            args.usage_error(f"--platform {platform}: is not allowed; it conflicts with --backend {args.backend}")
        args.backend = meant
    if args.backend is None and said.get("platform"):
        args.backend = backend_of(said["platform"])
    origins = {}
    if args.namespace is None and said.get("namespace"):
        args.namespace, origins["namespace"] = said["namespace"], f"{args.file}: namespace"
    where = read_where(args, environ, args.usage_error, origins)
    overruled = {"platform": where.site.kind, "namespace": where.site.namespace}
    args.arguments = {
        **args.arguments,
        **{name: value for name, value in overruled.items() if said.get(name) and value and said[name] != value},
    }
    return where


def _said(path: Path, settings: Iterable[str]) -> dict[str, str]:
    """Return the backend and namespace in a job file and its annotations; {} for a manifest or settings."""
    from rallypoint.cli.jobfile import with_settings  # noqa: PLC0415  as above
    from rallypoint.job.document import read_document  # noqa: PLC0415
    from rallypoint.job.errors import JobError  # noqa: PLC0415
    from rallypoint.job.spelling import place_in, spell  # noqa: PLC0415

    # The command reports a missing file, after it has checked its other arguments.
    document = with_settings(read_document(path), settings) if path.is_file() else None
    if not isinstance(document, Mapping) or "apiVersion" in document or "containerImage" in document:
        return {}
    try:
        document = spell(document).document
    except JobError as error:
        raise error.with_source(str(path)) from None
    return place_in(document)
