"""`rallypoint plan`: the effects of a submission, without submitting."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rallypoint.cli.arguments import argument_options, name_option, place_of
from rallypoint.cli.document import json_text
from rallypoint.cli.options import Commands, add_job_command, job_file_options, world_words
from rallypoint.cli.plain import fact_lines
from rallypoint.cli.services import Services
from rallypoint.cli.values import Fact
from rallypoint.usage import KUBERNETES_OPTIONS
from rallypoint.wire.plan import Entry, Plan

if TYPE_CHECKING:
    from rallypoint.backends.contract import Blueprint
    from rallypoint.backends.kubernetes.dryrun import Refusal
    from rallypoint.backends.roles import RolesError
    from rallypoint.job.settle import Choice

__all__ = ["add", "plan_lines", "run"]

#: Width of the column of object kinds.
_KIND = 9

#: Width of the column of values; a longer value moves the next column to the right.
_VALUE = 24

_DESCRIPTION = """\
Show what `rallypoint submit FILE` would do: the settings in FILE, other settings
that differ from the defaults, and the objects to create. The command starts no
job and creates no objects. With --all, the command also shows the complete job
with all default values. With --dry-run=server, the exit code is 1 if the API
server rejects an object.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_job_command(commands, "plan", "show what `rallypoint submit` would do", _DESCRIPTION)
    parser.usage = "%(prog)s [options] FILE"
    job_file_options(parser)
    name_option(parser, "name of the job; overrides the name in FILE")
    argument_options(parser)
    parser.add_argument(
        "--all", action="store_true", help="also show the complete job with all default values, and the content of each object"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the plan as one JSON document")
    form.add_argument(
        "--objects", action="store_true", help="print only the objects that a submission creates, as YAML documents"
    )
    parser.group(KUBERNETES_OPTIONS).add_argument(
        "--dry-run",
        choices=("server",),
        help="server: the API server validates the objects, but does not store them",
    )
    parser.set_defaults(run=run, place=place_of, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    if args.dry_run and args.where.site.on_this_machine:
        args.usage_error(f"--dry-run {args.dry_run} is not allowed with backend local; expected backend kubernetes")
    from rallypoint.backends.roles import RolesError  # noqa: PLC0415  pydantic is slow to import, and --help does without

    try:
        blueprint, refused = asyncio.run(_blueprint(args.services, args))
    except RolesError as error:
        _print_roles(error, args)
        raise
    if args.objects:
        print(_documents(blueprint), end="")
    elif args.json:
        print(json_text(_document(blueprint) | ({} if refused is None else {"refusals": refused})))
    else:
        print("\n".join(plan_lines(blueprint, complete=args.all)))
        if refused is not None and not refused:
            print("\n".join(_section("API server", ["accepts all objects"])))
    for refusal in refused or ():
        print(f"rallypoint: the API server rejects {refusal.kind} {refusal.name}: {refusal.reason}", file=sys.stderr)
    return 1 if refused else 0


def _print_roles(error: RolesError, args: argparse.Namespace) -> None:
    """Print a valid job with several roles; the error reports that the backend cannot run it yet."""
    from rallypoint.cli.roles import role_lines  # noqa: PLC0415  as above

    if args.objects:
        return
    if args.json:
        print(json_text({"version": 1, "job": error.job.to_document(), "plan": None, "objects": [], "refused": str(error)}))
    else:
        print("\n".join(role_lines(error.job, complete=args.all)), flush=True)


async def _blueprint(services: Services, args: argparse.Namespace) -> tuple[Blueprint, tuple[Refusal, ...] | None]:
    """Return the plan, and the objects that the API server rejects; None without a dry run."""
    from rallypoint.cli.work import drawn  # noqa: PLC0415  pydantic is slow to import, and --help does without

    async with services.backend(args.where) as backend:
        blueprint = drawn(backend, args)
        return blueprint, await services.refusals(args.where.site, blueprint) if args.dry_run else None


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
    from rallypoint.job.profiles import MOST_RESETS  # noqa: PLC0415  as above
    from rallypoint.job.secret_env import env_warnings  # noqa: PLC0415  as above

    beyond = (
        f"{path}: {value} is in force; a job file holds at most {MOST_RESETS}" for path, value in _in_force(blueprint).items()
    )
    return (*blueprint.notes, *beyond, *env_warnings(blueprint.job))


def _in_force(blueprint: Blueprint) -> Mapping[str, int]:
    """Return the settings whose value in the plan exceeds the limits of a job file, by path."""
    own, value = blueprint.job.fault_tolerance.retry_limit, blueprint.plan.budgets.retry_limit
    return {"fault_tolerance.retry_limit": value} if value != own else {}


def _choices(blueprint: Blueprint) -> tuple[Choice, ...]:
    from rallypoint.job.settle import choices  # noqa: PLC0415  as above

    beyond = _in_force(blueprint)
    return tuple(dataclasses.replace(choice, value=beyond.get(choice.path, choice.value)) for choice in choices(blueprint.job))


def plan_lines(blueprint: Blueprint, *, complete: bool = False) -> Iterator[str]:
    """Yield the plan as lines of text; `complete` adds every setting and the complete objects."""
    from rallypoint.job.compile_roles import has_roles  # noqa: PLC0415  as above
    from rallypoint.job.document import write_yaml  # noqa: PLC0415  as above

    plan = blueprint.plan
    # The plan of an AppWrapper or a Ray cluster has no roles: its controller, or the driver in the cluster, decides about them.
    if has_roles(blueprint.job):
        from rallypoint.cli.roles import role_lines  # noqa: PLC0415  as above

        yield from role_lines(blueprint.job)
    else:
        yield f"Job {plan.name}: {world_words(plan)}, profile {plan.profile.value}"
        yield f"  {_command(plan)}"
    yield from _section("Settings given in the file, and settings that differ from the defaults", _setting_lines(blueprint))
    if complete:
        yield from _section("Complete job", write_yaml(blueprint.job.to_document()).splitlines())
        yield from _section(f"Defaults of profile {plan.profile.value}", _profile_lines(blueprint))
    lines = _object_lines if complete else _object_line
    yield from _section("Objects to create, in this order", (line for item in blueprint.objects for line in lines(item)))
    if blueprint.warnings:
        yield from _section("Warnings", (f"- {warning}" for warning in blueprint.warnings))
    if notes := _notes(blueprint):
        yield from _section("Notes", (f"- {note}" for note in notes))
    if not complete:
        yield from ("", "All other settings have their default values; --all shows the complete job and all objects.")


def _setting_lines(blueprint: Blueprint) -> Iterator[str]:
    from rallypoint.cli.settings import notable_settings  # noqa: PLC0415  as above

    beyond = _in_force(blueprint)
    found = [
        dataclasses.replace(setting, value=beyond.get(setting.path, setting.value))
        for setting in notable_settings(blueprint.job)
    ]
    if not found:
        yield "none"
        return
    texts = [_value(setting.value) for setting in found]
    width = min(_VALUE, max(map(len, texts)))
    yield from fact_lines(
        Fact(label=setting.path, text=f"{text:<{width}}  {setting.origin}".rstrip())
        for setting, text in zip(found, texts, strict=True)
    )


def _profile_lines(blueprint: Blueprint) -> Iterator[str]:
    chosen = _choices(blueprint)
    width = max(len(_value(choice.value)) for choice in chosen)
    yield from fact_lines(
        Fact(label=choice.path, text=f"{_value(choice.value):<{width}}  {_origin(choice)}") for choice in chosen
    )


def _origin(choice: Choice) -> str:
    return f"set; default: {_value(choice.default)}" if choice.given else "default"


def _value(value: object) -> str:
    """Return a value as YAML has it on one line."""
    return value if isinstance(value, str) and "\n" not in value else json.dumps(value)


def _command(plan: Plan) -> str:
    start = {Entry.SCRIPT: ("python", "-u"), Entry.MODULE: ("python", "-u", "-m"), Entry.COMMAND: ()}[plan.entry]
    return shlex.join((*start, plan.entrypoint, *plan.args))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield title
    for line in lines:
        yield f"  {line}".rstrip()


def _object_line(item: dict[str, Any]) -> Iterator[str]:
    """Yield the kind of an object and its name or path."""
    if "apiVersion" in item:
        yield f"{item['kind']} {item['metadata']['name']}"
    else:
        kind, name = next(iter(_named(item).items()))
        yield f"{kind:<{_KIND}}{_text(name)}"


def _object_lines(item: dict[str, Any]) -> Iterator[str]:
    """Yield the kind of an object and its name or path; then its content, indented."""
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
