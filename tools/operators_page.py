"""Write docs/reference/operators.md and docs/reference/sensors.md: `python tools/operators_page.py`.

The parameters, their defaults and descriptions come from the classes, the examples from the DAGs of `dags_examples`. A public
parameter without a `:param` line, and a `:param` line without a parameter, are errors.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rallypoint import operators, sensors
from rallypoint.operators.arguments import JobArguments
from rallypoint.operators.owner import JobOwner
from rallypoint.provider.placed import PlacedOperator
from rallypoint.sensors.base import JobSensor

__all__ = ["PAGES", "main", "parameters", "snippet"]

ROOT = Path(__file__).resolve().parents[1]

_PARAM = re.compile(r"^:param ([\w, ]+): (.*?)(?=^:param |^\S|^$|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One class on a page. `example` is a file of dags_examples and the marker of a part of it."""

    title: str
    owner: type
    example: tuple[str, str] | None = None


_HEAD = """\
<!-- Written by `python tools/operators_page.py`; change the docstrings, not this file. -->

# {title}

{intro}
"""

_OPERATORS = (
    Section(
        title="`ElasticTrainingOperator`",
        owner=operators.ElasticTrainingOperator,
        example=("elastic_training_local.py", "howto_operator_elastic_training"),
    ),
    Section(title="Parameters that describe the job", owner=JobArguments),
    Section(
        title="Parameters of a task that owns a job",
        owner=JobOwner,
        example=("kubernetes_elastic.py", "howto_operator_elastic_training_kubernetes"),
    ),
    Section(title="Parameters for the place of the job", owner=PlacedOperator),
    Section(
        title="`AppWrapperOperator`",
        owner=operators.AppWrapperOperator,
        example=("appwrapper_settings.py", "howto_operator_appwrapper"),
    ),
    Section(
        title="`NodeCheckOperator`",
        owner=operators.NodeCheckOperator,
        example=("node_check.py", "howto_operator_node_check"),
    ),
    Section(
        title="`ResizeJobOperator`",
        owner=operators.ResizeJobOperator,
        example=("elastic_training_resize.py", "howto_operator_resize_job"),
    ),
    Section(
        title="`DeleteJobOperator`",
        owner=operators.DeleteJobOperator,
        example=("elastic_training_resize.py", "howto_operator_delete_job"),
    ),
)

_SENSORS = (
    Section(
        title="`RendezvousSensor`", owner=sensors.RendezvousSensor, example=("sensors_local.py", "howto_sensor_rendezvous")
    ),
    Section(title="`ProgressSensor`", owner=sensors.ProgressSensor, example=("sensors_local.py", "howto_sensor_progress")),
    Section(title="`HangSensor`", owner=sensors.HangSensor, example=("sensors_local.py", "howto_sensor_hang")),
    Section(title="`JobStateSensor`", owner=sensors.JobStateSensor, example=("sensors_local.py", "howto_sensor_job_state")),
    Section(title="Parameters of every sensor", owner=JobSensor),
)

_DECORATOR = """
## `@task.elastic_training`

Every rank calls the decorated function; the task returns the return value of rank 0. It takes every parameter of
`ElasticTrainingOperator` except `entrypoint` and `args`. [Guide](../guides/airflow.md#train-with-a-python-function).

"""

_INTROS: Mapping[str, tuple[str, str]] = {
    "operators": (
        "Operators",
        """\
Import operators from `rallypoint.operators`. Every operator also takes the parameters of `BaseOperator`. Usage, retries and
failures: [Airflow tasks](../guides/airflow.md).""",
    ),
    "sensors": (
        "Sensors",
        """\
Import sensors from `rallypoint.sensors`. Every sensor also takes the parameters of `BaseSensorOperator` and those that define
[where the job runs](operators.md#parameters-for-the-place-of-the-job). Usage:
[Airflow tasks](../guides/airflow.md#sensors).""",
    ),
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the repository; raises `LookupError` for an undocumented parameter."""
    decorator = _DECORATOR + snippet("elastic_training_function.py", "howto_decorator_elastic_training")
    texts = {
        "operators": "".join(map(_section, _OPERATORS)) + decorator,
        "sensors": "".join(map(_section, _SENSORS)),
    }
    heads = {name: _HEAD.format(title=title, intro=intro) for name, (title, intro) in _INTROS.items()}
    return {f"docs/reference/{name}.md": heads[name] + text for name, text in texts.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages and return 0; with `--check`, only return 1 if a parameter has no description or a page is outdated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is outdated")
    check = parser.parse_args(arguments).check
    try:
        texts = pages()
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 1
    outdated = [path for path, text in texts.items() if (ROOT / path).read_text(encoding="utf-8") != text]
    for path in outdated:
        if check:
            print(f"{path} is outdated; run make docs", file=sys.stderr)
        else:
            (ROOT / path).write_text(texts[path], encoding="utf-8")
    return int(check and bool(outdated))


def parameters(owner: type) -> dict[str, str]:
    """Return the description of each parameter of the class itself; raises `LookupError` where code and docstring differ."""
    names = [name for name, one in inspect.signature(owner).parameters.items() if one.kind is one.KEYWORD_ONLY]
    inherited = {"condition"} | {name for base in owner.__mro__[1:] if base in _SHARED for name in parameters(base)}
    own = "__init__" in vars(owner)
    expected = [name for name in names if own and (name not in inherited or name in _documented(owner))]
    documented = _documented(owner)
    missing = [name for name in expected if name not in documented]
    unknown = [name for name in documented if name not in names and name not in inherited]
    if missing or unknown:
        raise LookupError(f"{owner.__name__}: parameters without a description: {missing}; descriptions without one: {unknown}")
    return documented


def snippet(file: str, marker: str) -> str:
    """Return the marked part of an example DAG as a block of Markdown, with a link to the file."""
    text = (ROOT / "dags_examples" / file).read_text(encoding="utf-8")
    found = re.search(rf"^ *# \[START {marker}\]\n(.*?)^ *# \[END {marker}\]\n", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise LookupError(f"{file}: no part between # [START {marker}] and # [END {marker}]")
    code = textwrap.dedent(found[1]).strip()
    return f"From [`{file}`](../../dags_examples/{file}) (`{marker}`):\n\n```python\n{code}\n```\n"


def _documented(owner: type) -> dict[str, str]:
    text = inspect.cleandoc(vars(owner).get("__doc__") or "")
    found = ((names, " ".join(meaning.split())) for names, meaning in _PARAM.findall(text))
    return {name.strip(): meaning for names, meaning in found for name in names.split(",")}


def _section(section: Section) -> str:
    parts = [f"\n## {section.title}\n", f"\n{_summary(section.owner)}\n"]
    if section.example:
        parts.append(f"\n{snippet(*section.example)}")
    rows = list(_rows(section.owner))
    if rows:
        parts.append("\n| Parameter | Default | Meaning |\n|---|---|---|\n" + "".join(rows))
    return "".join(parts)


def _summary(owner: type) -> str:
    text = inspect.cleandoc(owner.__doc__ or "")
    return text.partition("\n:param")[0].strip()


def _rows(owner: type) -> Iterator[str]:
    signature = inspect.signature(owner).parameters
    for name, meaning in parameters(owner).items():
        default = signature[name].default if name in signature else inspect.Parameter.empty
        shown = "" if default in (inspect.Parameter.empty, None) else f"`{default!r}`"
        yield f"| `{name}` | {shown} | {meaning.replace('|', chr(92) + '|')} |\n"


_SHARED = (PlacedOperator, JobArguments, JobOwner, JobSensor)
PAGES = tuple(f"docs/reference/{name}.md" for name in _INTROS)


if __name__ == "__main__":
    sys.exit(main())
