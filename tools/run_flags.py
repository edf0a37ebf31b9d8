"""Write the tables of docs/reference/torchrun.md: `python tools/run_flags.py`.

The flags of `rallypoint-agent run` and their defaults come from its parser, those of torchrun from the torch that is installed,
those of `launch_agent` from `LaunchConfig`, and those of the profile `mindcluster` from the profiles' own table.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch.distributed.run import get_args_parser

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.flags import REFUSED, WHY, add_run_flags
from rallypoint.agent.rdzv_conf import WITHOUT_EFFECT
from rallypoint.compat.launch_agent.config import LaunchConfig
from rallypoint.job.profiles import defaults_of
from rallypoint.wire.plan import Profile

__all__ = ["PAGE", "PINNED", "main", "page"]

#: The torch whose flags the page tells.
PINNED = "2.13"

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/torchrun.md"

#: Each table stands between two lines of the page.
_BEGIN, _END = "<!-- {name}: written by tools/run_flags.py -->", "<!-- end of {name} -->"

#: What stands where there is no such thing.
_NOTHING = "-"

#: Fields of `LaunchConfig` that are called otherwise.
_FIELDS: Mapping[str, str] = {
    "rdzv_id": "run_id",
    "rdzv_conf": "rdzv_configs",
    "nnodes": "min_nodes",
    "numa_binding": "numa_options",
}

#: Fields of a job file, by the flag.
_JOB: Mapping[str, str] = {"max_restarts": "recovery.max_restarts", "monitor_interval": "health.report_interval"}

#: Defaults that are settled later, from another flag or variable.
_SETTLED: Mapping[str, str] = {
    "master_port": "`29500`",
    "shutdown_timeout": "`30`",
    "start_method": "`fork`, if workers can be forked",
    "standby": "one per worker",
}

#: Of those, the ones that torchrun and `launch_agent` settle alike.
_SAME = ("master_port", "shutdown_timeout")


def page() -> str:
    """Return the page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("flags", _flags()), ("refused", _refused()), ("keys", _keys())):
        begin, end = _BEGIN.format(name=name), _END.format(name=name)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{PAGE}: the lines {begin!r} and {end!r} must both be there")
        text = f"{before}{begin}\n{table}{end}{after}"
    return text


def main() -> int:
    """Write the page; return 0."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def _flags() -> str:
    parser = RunParser()
    add_run_flags(parser, {})
    theirs = {action.dest: action for action in get_args_parser()._actions}  # noqa: SLF001  there is no other list
    rows = (_row(action, theirs.get(action.dest)) for action in parser._actions if _shown(action))  # noqa: SLF001
    return _table(("Flag", "`rallypoint-agent run`", f"torchrun {PINNED}", "`launch_agent`", "profile `mindcluster`"), rows)


def _shown(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.dest != "help" and action.help != argparse.SUPPRESS


def _row(action: argparse.Action, its: argparse.Action | None) -> tuple[str, ...]:
    here = _SETTLED.get(action.dest) or _written(action.default)
    there = _NOTHING if its is None else _written(its.default)
    if its is not None and action.dest in _SAME:
        there = here
    job = _JOB.get(action.dest)
    profile = _NOTHING if job is None else f"`{defaults_of(Profile.MINDCLUSTER)[job]:g}` (`{job}`)"
    return _name(action), here if there in (here, _NOTHING) else f"**{here}**", there, _field(action.dest), profile


def _name(action: argparse.Action) -> str:
    return ", ".join(f"`{name}`" for name in action.option_strings if "_" not in name)


def _field(dest: str) -> str:
    name = _FIELDS.get(dest, dest)
    fields = {field.name: field for field in dataclasses.fields(LaunchConfig)}
    if name not in fields:
        return _NOTHING
    if dest in _SAME:
        return _SETTLED[dest]
    field = fields[name]
    if field.default is not dataclasses.MISSING:
        default: object = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        return "required" if name != "min_nodes" else "required (`min_nodes`, `max_nodes`)"
    return _written(default) if name == dest else f"{_written(default)} (`{name}`)"


def _written(value: object) -> str:
    if value in (None, "", [], {}) or value is False:
        return "off" if value is False else "not set"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{getattr(value, 'value', value)}`"


def _refused() -> str:
    values = ((f"`{flag} {value}`", why) for flag, known in WHY.items() for value, why in known.items())
    return _table(("Rejected flag", "Reason"), [*((f"`{flag}`", why) for flag, why in REFUSED.items()), *values])


def _keys() -> str:
    return _table(("Key", "Why the key has no effect"), _grouped(WITHOUT_EFFECT))


def _grouped(keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for why in dict.fromkeys(keys.values()):
        yield ", ".join(f"`{key}`" for key, other in keys.items() if other == why), why


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(titles)
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
