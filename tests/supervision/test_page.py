from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import jsonschema
import pytest

from rallypoint.job.document import read_document
from rallypoint.supervision.clocks import CLOCKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "supervision.md").read_text(encoding="utf-8")
TIMERS = (ROOT / "docs" / "reference" / "timers.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs" / "reference" / "trace.schema.json").read_text(encoding="utf-8"))
LINKS = sorted({target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE) if "://" not in target})
#: Jobs stand beside them, some of which have a number of steps among their arguments.
TRACES = [
    path
    for path in sorted((ROOT / "docs" / "examples").iterdir())
    if path.suffix == ".json" or "\nsteps:" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def written():
    """What the tool would write; `tools` is no package."""
    return runpy.run_path(str(ROOT / "tools" / "supervision_page.py"))["files"]()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("docs/explanation/supervision.md", id="page"),
        pytest.param("docs/reference/timers.md", id="timers"),
        pytest.param("docs/examples/digits.json", id="record"),
        pytest.param("docs/reference/trace.schema.json", id="schema"),
    ],
)
def test_what_the_docs_show_is_true(written, path):
    """`make docs` would change nothing: every command on the page prints the output that the page shows."""
    assert written[path] == (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("clock", [pytest.param(clock, id=clock.name) for clock in CLOCKS])
def test_every_clock_is_on_the_page(clock):
    """With what starts it and what it does."""
    section = TIMERS.replace("`", "").partition(f"\n## The {clock.name} timer\n")[2].partition("\n## ")[0]
    texts = (clock.setting, clock.starts, clock.pauses, clock.ends, clock.then, clock.actor, clock.wins)

    assert [text for text in texts if f" | {text} |".replace("`", "") not in section] == []


def test_the_python_on_the_page_runs():
    """Its assertions hold, and it has some."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "\nassert " in code
    names: dict[str, object] = {}

    exec(compile(code, "docs/explanation/supervision.md", "exec"), names)

    assert {"__builtins__"} < set(names), "the code was not executed"


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in TRACES if path.name != "digits.json"])
def test_the_examples_are_in_the_schema(path):
    """An editor that knows the schema finds no fault in them."""
    jsonschema.validate(read_document(path), SCHEMA)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param([{"at": 1, "podz": "R"}], id="a field"),
        pytest.param([{"pods": "R"}], id="no time"),
        pytest.param({"steps": [], "makers": "me"}, id="a word"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(trace):
    """Unknown fields and words are faults there, too."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(trace, SCHEMA)


def test_every_field_of_a_step_is_told():
    """The tables of the page name all of them."""
    fields = {*SCHEMA["$defs"]["Step"]["properties"], *SCHEMA["anyOf"][0]["properties"]}

    assert {name for name in fields if f"`{name}" not in PAGE} == set()


@pytest.mark.parametrize("target", [pytest.param(target, id=target) for target in LINKS])
def test_links_lead_somewhere(target):
    """Every file that the page links to is there."""
    assert (ROOT / "docs" / "explanation" / target).exists()
