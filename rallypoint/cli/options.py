"""Options of several commands, and types of arguments."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

from rallypoint.backends.site import KINDS, KUBERNETES, LOCAL, Site, SiteError
from rallypoint.usage import ADVANCED_OPTIONS, KUBERNETES_OPTIONS, RAY_OPTIONS, HelpFormat, UsageParser
from rallypoint.wire.arguments import PLATFORMS, WORDS
from rallypoint.wire.env import BACKEND
from rallypoint.wire.plan import Kind, Plan
from rallypoint.wire.role_plans import role_plans

__all__ = [
    "Commands",
    "Where",
    "add_command",
    "add_job_command",
    "job_file_options",
    "natural",
    "read_where",
    "set_option",
    "site_options",
    "spell_command",
    "world_words",
]

#: Type that `add_subparsers` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[UsageParser]"  # noqa: SLF001


def add_command(commands: Commands, name: str, summary: str, description: str) -> UsageParser:
    """Return the parser of a new command that uses no backend."""
    return commands.add_parser(name, help=summary, description=description, formatter_class=HelpFormat)


def add_job_command(commands: Commands, name: str, summary: str, description: str) -> UsageParser:
    """Return the parser of a new command that uses a backend."""
    parser = add_command(commands, name, summary, description)
    # An option after the command overrides the same option before it.
    site_options(parser, default=argparse.SUPPRESS)
    return parser


def set_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--set KEY=VALUE`, collected as `settings`; `what` follows "set"."""
    parser.add_argument(
        "--set", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=f"set {what}; may be repeated"
    )


def site_options(parser: UsageParser, *, default: str | None) -> None:
    """Add the options that select the backend and the place of jobs."""
    parser.add_argument(
        "--backend",
        choices=sorted(KINDS),
        default=default,
        help=f"where jobs run: local, kubernetes or ray (default: ${BACKEND}, otherwise {LOCAL})",
    )
    group = parser.group(KUBERNETES_OPTIONS)
    parser.group(ADVANCED_OPTIONS).add_argument(
        "--home",
        metavar="DIR",
        type=_path,
        default=default,
        help="folder in which the local backend stores jobs (default: $RALLYPOINT_HOME, otherwise ~/.rallypoint)",
    )
    group.add_argument(
        "--namespace",
        metavar="NS",
        default=default,
        help="namespace of the jobs on Kubernetes (default: that of the kubeconfig context) or Ray (default: rallypoint)",
    )
    group.add_argument(
        "--context", metavar="NAME", default=default, help="kubeconfig context to use (default: the current context)"
    )
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=_path,
        default=default,
        help="kubeconfig file to use (default: $KUBECONFIG, otherwise ~/.kube/config)",
    )
    _ray_options(parser, default=default)


def _ray_options(parser: UsageParser, *, default: str | None) -> None:
    group = parser.group(RAY_OPTIONS)
    group.add_argument(
        "--address",
        metavar="URL",
        default=default,
        help="URL of the Ray cluster's dashboard, such as http://head:8265 (default: $RAY_API_SERVER_ADDRESS)",
    )
    group.add_argument(
        "--storage",
        metavar="DIR",
        default=default,
        help="where the Ray cluster stores job records: a folder on the head node, or an fsspec URL",
    )
    group.add_argument(
        "--runtime-env",
        metavar="JSON",
        default=default,
        help="Ray's runtime_env, as a JSON object, for the processes of a job on the Ray cluster",
    )


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where the jobs of a command are; `options` are the command-line options that selected it, for follow-up commands."""

    site: Site = field(default_factory=Site)
    options: tuple[str, ...] = ()


_NO_ORIGINS: Mapping[str, str] = {}


def read_where(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    refuse: Callable[[str], NoReturn],
    origins: Mapping[str, str] = _NO_ORIGINS,
) -> Where:
    """Return where the jobs are, from the command line and the environment.

    Args:
        args: of the command line; a job file may have set missing values.
        environ: used for values that nothing else sets.
        refuse: ends the command with an error text.
        origins: names of the sources of values, for errors, by the field of the `Site`.
    """
    known = ("backend", *sorted({word for words in KINDS.values() for word in words}))
    given = {word: value for word in known if (value := getattr(args, word))}
    words = dict(given)
    kind = words.pop("backend", "") or _backend(environ, refuse) or LOCAL
    names = {"backend": f"${BACKEND}", **origins}
    namespace = environ.get(WORDS["namespace"].variable, "")
    if kind == KUBERNETES and namespace and "namespace" not in words:
        words["namespace"], names["namespace"] = namespace, f"${WORDS['namespace'].variable}"
    try:
        site = Site(kind=kind, **words)
    except SiteError as error:
        refuse(f"{names.get(error.field, _option(error.field))}: {error.text}")
    return Where(site=site, options=tuple(part for word, value in given.items() for part in (_option(word), value)))


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _backend(environ: Mapping[str, str], refuse: Callable[[str], NoReturn]) -> str:
    """Return the backend that the environment names, by RALLYPOINT_BACKEND or by DLRover's variable; "" for none."""
    ours, variable = environ.get(BACKEND, ""), WORDS["platform"].variable
    platform = environ.get(variable, "")
    if not platform:
        return ours
    meant = PLATFORMS.get(platform)
    if meant is None:
        refuse(f"${variable}: {platform!r} is not allowed; expected one of {', '.join(PLATFORMS)}")
    if ours and ours != meant:
        refuse(f"${variable}: {platform!r} is not allowed; it conflicts with ${BACKEND} {ours!r}; set one of them")
    return meant


def job_file_options(parser: UsageParser) -> None:
    """Add the options that describe a job."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="job file, settings.yaml of the pytorchjob-generator, or manifest of an AppWrapper or PyTorchJob",
    )
    set_option(parser, "a field of FILE to a YAML value, as in --set nodes=1:4")
    parser.group(KUBERNETES_OPTIONS).add_argument(
        "--kind",
        choices=(kinds := [kind.value for kind in Kind]),
        default=None,
        help=f"Kubernetes objects that run the job: {', '.join(kinds)} (default: kind in FILE, otherwise pods)",
    )


def _path(text: str) -> str:
    # Absolute, since supervisors start elsewhere.
    return str(Path(text).expanduser().absolute())


def natural(name: str) -> Callable[[str], int]:
    """Return the type of an option whose value is a number that is not negative; `name` is for errors."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = -1
        if number < 0:
            raise argparse.ArgumentTypeError(f"{name} {text!r} is not allowed; expected a whole number, 0 or more")
        return number

    return read


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def world_words(plan: Plan) -> str:
    """Return the size of a job: `1 to 2 nodes x 4 processes`, or `3 roles, 5 instances`."""
    if plan.roles:
        total = sum(role.total for role in role_plans(plan))
        return f"{_count(len(plan.roles), 'role')}, {_count(total, 'instance')}"
    low, high = plan.min_nodes, plan.max_nodes
    nodes = f"{low} to {high} nodes" if low != high else "1 node" if high == 1 else f"{high} nodes"
    return f"{nodes} x {plan.nproc_per_node} {'process' if plan.nproc_per_node == 1 else 'processes'}"


def spell_command(where: Where, *words: str) -> str:
    """Return a command line with the same place options, for the user to copy."""
    return shlex.join(("rallypoint", *where.options, *words))
