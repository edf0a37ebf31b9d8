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
    1: ("`pending_timeout`", "time limit for pending nodes; default 900 s", "the value is not used"),
    2: (
        "`hang_detection`",
        "with the value 0, a hang is only logged",
        "the value 0 is rejected; with the value 7, a hang is only logged",
    ),
    3: ("`hang_downtime`", "default 30 minutes; 0 or more", "default 5 minutes; 0 is rejected; 1 is changed to 2"),
    4: ("`pending_fail_strategy`", "the value -1 disables the check", "the values -1, 1 and 2 have the same effect"),
    5: ("`pre_check_ops`", "False skips an operator", "True skips an operator; a missing class is ignored"),
    6: (
        "annotations",
        "annotations can set every argument of the master except name and namespace",
        "only eight annotations are read",
    ),
    7: ("`max_restarts`", "default 3; 1 or more", "default 0; no limit"),
    8: (
        "`relaunch_on_worker_failure`",
        "an argument with default 3",
        "this argument does not exist; a field of the replica, at most 5, has its effect",
    ),
    9: ("`nnodes`", "default 1", "its description is that of `node_unit`; `MIN:MAX` is also accepted"),
    10: (
        "`node_unit`",
        "the number of nodes is a multiple of `node_unit`, which is 1 or more",
        "the value 0 causes a division by zero; with the maximum number of nodes, the job need not be a multiple",
    ),
    11: ("`training_port`", "default 60000", "default 60000 on the command line, otherwise 64000"),
    12: (
        "`exclude_straggler`",
        "has an effect only with a node check",
        "the argument is ignored without a node check (Rallypoint: an error)",
    ),
    13: ("`precheck` 2", "all nodes are tested together", "nodes are tested in pairs"),
    14: ("`dynamic_failover_extension`", "GLOBAL_FAILOVER restarts the job", "the job is restarted every 30 s until a limit"),
    15: ("`rdzv_conf`", "`join_timeout` is greater than 0", "invalid values are detected only at run time"),
    **{number: row for module in modules("arguments") for number, row in module.DIFFERENCES.items()},
}

_HEAD = """\
<!-- Written by `python tools/arguments_page.py`; change rallypoint/job/arguments.py and the models, not this file. -->

# DLRover's arguments

After reading this page, you can use every argument of DLRover's
[argument reference](https://github.com/intelligent-machine-learning/dlrover) by its own name. If you set an argument in several
places, the first of these places applies:

1. **Command line**: `rallypoint submit --max-restarts 5`, or `--max_restarts 5`; also `rallypoint plan`.
2. **Job file**, at its top level: `max_restarts: 5`, or `max-restarts: 5`, or the field in the tables below.
3. **Annotation** of the job (not of a role): `max_restarts: "5"` or `{prefix}max_restarts: "5"`.
4. **Environment** of the submitting process: `RALLYPOINT_MAX_RESTARTS=5`.
5. **Connection**: `{{"max_restarts": 5}}` in its field [`arguments`](../guides/connection.md).

`rallypoint-agent run` reads the flag, then `PET_MAX_RESTARTS` and `RALLYPOINT_MAX_RESTARTS`.

Two spellings of one argument in one place must have the same value. `namespace` and `job_name` cannot be annotations. With
several roles, `nnodes`, `node_unit`, `accelerator`, `numa_affinity`, `auto_config` and `auto_tunning` belong to each role. If
DLRover's document and code differ, Rallypoint follows the document: [differences](#where-dlrovers-code-differs).
"""


def page() -> str:
    """Return the page as it should be; raises `LookupError` for what has no test."""
    arguments, differences = marked("argument"), marked("difference")
    _require("argument", ARGUMENTS, arguments)
    _require("difference", DIFFERENCES, differences)
    master = tuple(ARGUMENTS)[:12]
    sections = (
        ("Arguments of the master", [ARGUMENTS[name] for name in master]),
        ("Arguments of training", [argument for name, argument in ARGUMENTS.items() if name not in master]),
    )
    titles = ("Argument", "Field", "Meaning", "Allowed values", "Default", "DLRover's default", "Not available as", "Test")
    tables = (f"\n## {title}\n\n{_table(titles, (_row(one, arguments[one.name]) for one in some))}" for title, some in sections)
    rows = ((*words, _tests(differences[n])) for n, words in DIFFERENCES.items())
    differs = _table(("Argument", "Behaviour in DLRover's document", "Behaviour of DLRover's code", "Test"), rows)
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
