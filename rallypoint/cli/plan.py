"""`rallypoint plan`: what a submission would do."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rallypoint.cli.arguments import argument_options, name_option, place_of
from rallypoint.cli.document import json_text
from rallypoint.cli.doors import Doors
from rallypoint.cli.options import Commands, add_job_command, job_file_options, world_words
from rallypoint.cli.plain import fact_lines
from rallypoint.cli.values import Fact
from rallypoint.wire.plan import Entry, Plan

if TYPE_CHECKING:
    from rallypoint.backends.contract import Blueprint
    from rallypoint.backends.kubernetes.dryrun import Refusal
    from rallypoint.job.settle import Choice

__all__ = ["add", "plan_lines", "run"]

#: Width of the column that tells the kinds of objects.
_KIND = 9

_DESCRIPTION = """\
Show what `rallypoint submit FILE` would do: the job with every default resolved,
and what would be created. Nothing is started and nothing is written. With --dry-run
the exit code is 1 when the API server would refuse any of it.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "plan", "show what a submission would do", _DESCRIPTION)
    job_file_options(parser)
    name_option(parser, "name of the job, in the place of the file's")
    argument_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--objects", action="store_true", help="print what would be created alone, as YAML documents")
    parser.add_argument(
        "--dry-run",
        choices=("server",),
        help="kubernetes: send each object to the API server, which keeps nothing, and tell what it refuses",
    )
    parser.set_defaults(run=run, place=place_of, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    if args.dry_run and args.where.site.on_this_machine:
        args.usage_error(f"--dry-run {args.dry_run} is not allowed with backend local; nobody is asked there")
    blueprint, refused = asyncio.run(_blueprint(args.doors, args))
    if args.objects:
        print(_documents(blueprint), end="")
    elif args.json:
        print(json_text(_document(blueprint) | ({} if refused is None else {"refusals": refused})))
    else:
        print("\n".join(plan_lines(blueprint)))
        if refused is not None and not refused:
            print("\n".join(_section("The API server", ["would take every object of it"])))
    for refusal in refused or ():
        print(f"rallypoint: the API server refuses {refusal.kind} {refusal.name}: {refusal.reason}", file=sys.stderr)
    return 1 if refused else 0


async def _blueprint(doors: Doors, args: argparse.Namespace) -> tuple[Blueprint, tuple[Refusal, ...] | None]:
    """Return the plan, and what a server refuses of it; None where none was asked."""
    from rallypoint.cli.work import drawn  # noqa: PLC0415  pydantic is slow to import, and --help does without

    async with doors.backend(args.where) as backend:
        blueprint = drawn(backend, args)
        return blueprint, await doors.refusals(args.where.site, blueprint) if args.dry_run else None


def _document(blueprint: Blueprint) -> dict[str, Any]:
    chosen = _choices(blueprint)
    return {
        "version": 1,
        "job": blueprint.job.to_document(),
        "profile": blueprint.plan.profile,
        "defaults": {choice.path: choice.value for choice in chosen if not choice.given},
        "given": {choice.path: choice.value for choice in chosen if choice.given},
        "plan": blueprint.plan,
        "objects": blueprint.objects,
        "notes": _notes(blueprint),
        "warnings": blueprint.warnings,
    }


def _documents(blueprint: Blueprint) -> str:
    from rallypoint.job.document import write_yaml  # noqa: PLC0415  as above

    return "---\n".join(write_yaml(item) for item in blueprint.objects)


def _notes(blueprint: Blueprint) -> tuple[str, ...]:
    from rallypoint.job.secret_env import env_warnings  # noqa: PLC0415  as above

    return (*blueprint.notes, *env_warnings(blueprint.job))


def _choices(blueprint: Blueprint) -> tuple[Choice, ...]:
    from rallypoint.job.settle import choices  # noqa: PLC0415  as above

    return choices(blueprint.job)


def plan_lines(blueprint: Blueprint) -> Iterator[str]:
    """Yield the plan as people read it."""
    from rallypoint.job.document import write_yaml  # noqa: PLC0415  as above

    plan = blueprint.plan
    yield f"Job {plan.name}: {world_words(plan)}, each of which runs"
    yield f"  {_command(plan)}"
    yield from _section("The job, every default resolved", write_yaml(blueprint.job.to_document()).splitlines())
    yield from _section(f"Profile {plan.profile.value}: what it sets, and what was given instead", _profile_lines(blueprint))
    objects = (line for item in blueprint.objects for line in _object_lines(item))
    yield from _section("Would be created, in this order", objects)
    if blueprint.warnings:
        yield from _section("Warnings", (f"- {warning}" for warning in blueprint.warnings))
    if notes := _notes(blueprint):
        yield from _section("Notes", (f"- {note}" for note in notes))


def _profile_lines(blueprint: Blueprint) -> Iterator[str]:
    chosen = _choices(blueprint)
    width = max(len(_value(choice.value)) for choice in chosen)
    yield from fact_lines(
        Fact(label=choice.path, text=f"{_value(choice.value):<{width}}  {_origin(choice)}") for choice in chosen
    )


def _origin(choice: Choice) -> str:
    return f"given; the default is {_value(choice.default)}" if choice.given else "default"


def _value(value: object) -> str:
    """Return a value as YAML has it on one line."""
    return value if isinstance(value, str) else json.dumps(value)


def _command(plan: Plan) -> str:
    start = {Entry.SCRIPT: ("python", "-u"), Entry.MODULE: ("python", "-u", "-m"), Entry.COMMAND: ()}[plan.entry]
    return shlex.join((*start, plan.entrypoint, *plan.args))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield title
    for line in lines:
        yield f"  {line}".rstrip()


def _object_lines(item: dict[str, Any]) -> Iterator[str]:
    """Yield what kind of thing it is and its name or path; then the rest of it, indented."""
    if "apiVersion" in item:
        yield from _manifest_lines(item)
        return
    (kind, name), *rest = ((key, _text(value)) for key, value in _named(item).items())
    yield f"{kind:<{_KIND}}{name}"
    for line in fact_lines(Fact(label=key, text=text) for key, text in rest):
        yield f"{'':<{_KIND}}{line}"


def _manifest_lines(item: dict[str, Any]) -> Iterator[str]:
    from rallypoint.job.document import write_yaml  # noqa: PLC0415  as above

    yield f"{item['kind']} {item['metadata']['name']}"
    yield from (f"    {line}" for line in write_yaml(item).splitlines())


def _named(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object with its kind as the key of what names it."""
    name = next((key for key in ("name", "path") if key in item), "kind")
    return {str(item.get("kind", "object")): item[name], **{k: v for k, v in item.items() if k not in ("kind", name)}}


def _text(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
