"""Write docs/reference/arguments.md: `python tools/arguments_page.py`.

The arguments, what they mean and may say come from `rallypoint/job/arguments.py` and the models. The tests are those that have
a marker: `pytest.mark.argument("max_restarts")` or `pytest.mark.difference(7)`. An argument or a difference without one is an
error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from rallypoint.capabilities import modules
from rallypoint.job.arguments import ARGUMENTS, PREFIX, Argument, field_default
from rallypoint.job.model import ElasticJob
from rallypoint.job.policies import FaultTolerance, Health, Logs, Recovery, Rendezvous
from rallypoint.job.role import Role

__all__ = ["DIFFERENCES", "PAGE", "main", "marked", "page"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/arguments.md"

_MODELS: Mapping[str, type[BaseModel]] = {
    "": ElasticJob,
    "roles": Role,
    "fault_tolerance": FaultTolerance,
    "recovery": Recovery,
    "rendezvous": Rendezvous,
    "health": Health,
    "logs": Logs,
}

#: Where DLRover's code (commit 7c3e96481) does something else than its document says: what the document says, and what the code
#: does. Ours does what the document says.
DIFFERENCES: Mapping[int, tuple[str, str, str]] = {
    1: ("`pending_timeout`", "limit for pending nodes, 900 s, 0 or more", "the value is not used"),
    2: ("`hang_detection`", "0 only logs", "0 is refused, and 7 is taken for it"),
    3: ("`hang_downtime`", "30 minutes, 0 or more", "5 by default, 0 is refused, 1 is raised to 2"),
    4: ("`pending_fail_strategy`", "-1 is disabled", "-1 judges as 1 and 2 do, which are one"),
    5: ("`pre_check_ops`", "False bypasses an operator", "True does; a class that is missing is passed over"),
    6: ("annotations", "express every argument of the master but the name and the namespace", "eight keys are passed on"),
    7: ("`max_restarts`", "3, 1 or more", "0 by default, without a bound"),
    8: ("`relaunch_on_worker_failure`", "an argument, 3", "there is none; a field of the replica does it, 5 at the most"),
    9: ("`nnodes`", "1", "described as the unit; `MIN:MAX` works as well"),
    10: ("`node_unit`", "the world is a multiple of it, 1 or more", "0 divides by zero, and a full world need be no multiple"),
    11: ("`training_port`", "60000", "60000 on the command line and 64000 elsewhere"),
    12: ("`exclude_straggler`", "works with a check alone", "ignored without one; ours is an error"),
    13: ("`precheck` 2", "all nodes are tried together", "they are tried in pairs"),
    14: ("`dynamic_failover_extension`", "GLOBAL_FAILOVER restarts the job", "it is restarted every 30 s until a limit"),
    15: ("`rdzv_conf`", "`join_timeout` is more than 0", "0, less, and words are found out at run time"),
    **{number: row for module in modules("arguments") for number, row in module.DIFFERENCES.items()},
}

_HEAD = """\
<!-- Written by `python tools/arguments_page.py`; change rallypoint/job/arguments.py and the models, not this file. -->

# DLRover's arguments

After reading this page, you can use every argument of DLRover's
[argument reference](https://github.com/intelligent-machine-learning/dlrover) by its own name. The first of these places wins:

1. **Command line**: `rallypoint submit --max-restarts 5`, or `--max_restarts 5`; also `rallypoint plan`.
2. **Job file**, top level: `max_restarts: 5`, or `max-restarts: 5`, or the field of the table.
3. **Annotation** of the job (not of a role): `max_restarts: "5"` or `{prefix}max_restarts: "5"`.
4. **Environment** of the submitting process: `RALLYPOINT_MAX_RESTARTS=5`.
5. **Connection**: `{{"max_restarts": 5}}` in its field [`arguments`](../guides/connection.md).

`rallypoint-agent run` reads the flag, then `PET_MAX_RESTARTS` and `RALLYPOINT_MAX_RESTARTS`.

Two spellings at one place that disagree are an error. `namespace` and `job_name` cannot be annotations. With several roles,
`nnodes`, `node_unit`, `accelerator`, `numa_affinity`, `auto_config` and `auto_tunning` belong to each role. Where DLRover's
document and code differ, Rallypoint follows the document: [differences](#where-dlrovers-code-differs).
"""


def page() -> str:
    """Return the page as it should be; raises `LookupError` for what has no test."""
    arguments, differences = marked("argument"), marked("difference")
    _require("argument", ARGUMENTS, arguments)
    _require("difference", DIFFERENCES, differences)
    master = tuple(ARGUMENTS)[:12]
    sections = (
        ("Of the master", [ARGUMENTS[name] for name in master]),
        ("Of training", [argument for name, argument in ARGUMENTS.items() if name not in master]),
    )
    titles = ("Argument", "Field", "Meaning", "Allowed", "Default", "Document's", "Not where", "Test")
    tables = (f"\n## {title}\n\n{_table(titles, (_row(one, arguments[one.name]) for one in some))}" for title, some in sections)
    rows = ((str(n), *words, _tests(differences[n])) for n, words in DIFFERENCES.items())
    differs = _table(("", "Argument", "DLRover's document", "DLRover's code", "Test"), rows)
    return "".join((_HEAD.format(prefix=PREFIX), *tables, "\n## Where DLRover's code differs\n\n", differs))


def marked(marker: str) -> dict[object, list[str]]:
    """Return the tests that carry a marker, `file::test` by what the marker names; each exists, since it was read."""
    found: dict[object, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if f"mark.{marker}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for name in _names(node, marker):
                    found.setdefault(name, []).append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _names(test: ast.FunctionDef | ast.AsyncFunctionDef, marker: str) -> Iterator[object]:
    for one in test.decorator_list:
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == marker:
            yield from (word.value for word in one.args if isinstance(word, ast.Constant))


def _require(marker: str, known: Iterable[object], found: Mapping[object, object]) -> None:
    missing = [name for name in known if name not in found]
    unknown = [name for name in found if name not in set(known)]
    if missing or unknown:
        raise LookupError(f"{marker}: without a test are {missing}; tests name what there is not: {unknown}")


def _row(argument: Argument, tests: list[str]) -> tuple[str, ...]:
    block, name = argument.field
    info = _MODELS[block].model_fields[name]
    meaning = " ".join((info.description or "").split())
    note = f" ({argument.note})" if argument.note else ""
    default = field_default(argument.field)
    nowhere = [*([] if argument.annotation else ["annotation"]), *([] if argument.of_run else ["`run`"])]
    return (
        f"`{argument.name}`",
        f"`{name if block in ('', 'roles') else f'{block}.{name}'}`",
        meaning + note,
        argument.rule.allowed,
        "" if default in ("", ()) or argument.name == "rdzv_conf" else f"`{default}`",
        f"`{argument.seed}`",
        ", ".join(nowhere),
        _tests(tests),
    )


def _tests(tests: list[str]) -> str:
    return ", ".join(f"[{test.rpartition('::')[2]}](../../{test.partition('::')[0]})" for test in tests)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(titles)
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main() -> int:
    """Write the page; return 0."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
