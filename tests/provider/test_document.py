from __future__ import annotations

from typing import Any

import pytest

from rallypoint.job import JobError, compile_plan
from rallypoint.provider.document import annotate, build_job, read_source


def keep(text: str) -> str:
    return text


def test_a_job_file_is_read_and_its_templates_are_filled_in(tmp_path):
    """A path is relative to the DAG's folder, and paths inside the file to the file's."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "digits.yaml").write_text("entrypoint: train.py\nargs: [--day, DAY]\n")

    document, base = read_source(
        "jobs/digits.yaml",
        written="jobs/digits.yaml",
        folder=tmp_path,
        render=lambda text: text.replace("DAY", "monday"),
    )

    assert document == {"entrypoint": "train.py", "args": ["--day", "monday"]}
    assert base == folder


@pytest.mark.parametrize(
    ("source", "document"),
    [
        pytest.param(None, {}, id="nothing"),
        pytest.param({"nodes": 2}, {"nodes": 2}, id="a mapping"),
        pytest.param("entrypoint: train.py\nnodes: 1:2\n", {"entrypoint": "train.py", "nodes": "1:2"}, id="YAML text"),
        pytest.param("{'entrypoint': 'train.py', 'nodes': 2}", {"entrypoint": "train.py", "nodes": 2}, id="a mapping as text"),
    ],
)
def test_a_job_need_not_be_a_file(tmp_path, source, document):
    """A mapping or the text of one does as well; its paths start from the DAG's folder."""
    assert read_source(source, written=source, folder=tmp_path, render=keep) == (document, tmp_path)


def test_a_native_template_may_give_a_mapping(tmp_path):
    """Where templates are rendered to native objects, a JSON file arrives as a mapping."""
    (tmp_path / "job.json").write_text('{"entrypoint": "train.py"}')

    document, _ = read_source("job.json", written="job.json", folder=tmp_path, render=lambda text: {"entrypoint": "train.py"})

    assert document == {"entrypoint": "train.py"}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param("missing.yaml", "No such file", id="no such file"),
        pytest.param("just words", "'just words' is not allowed", id="text that is no mapping"),
        pytest.param(7, "7 is not allowed", id="a number"),
        pytest.param("a: [1\nb: 2", "is not valid YAML", id="bad YAML"),
    ],
)
def test_what_is_no_job_is_said_clearly(tmp_path, source, says):
    """Each wrong source gives one error with the place and what is allowed."""
    with pytest.raises(JobError, match=says):
        read_source(source, written=source, folder=tmp_path, render=keep)


@pytest.mark.parametrize(
    ("written", "source"),
    [
        pytest.param("jobs/{{ params.x }}.yaml", "jobs/a/digits.yaml", id="a folder below"),
        pytest.param("{{ params.x }}.yaml", "jobs/a/digits.yaml", id="the folder of the DAG"),
        pytest.param("jobs/a/{{ params.x }}/digits.yaml", "jobs/a/../a/digits.yaml", id="back again"),
        pytest.param("{folder}/jobs/{{ params.x }}.yaml", "{folder}/jobs/a/digits.yaml", id="an absolute path in the DAG"),
        pytest.param("../{name}/jobs/{{ params.x }}.yaml", "../{name}/jobs/a/digits.yaml", id="a path upwards in the DAG"),
    ],
)
def test_a_template_may_complete_the_path_of_a_job_file(tmp_path, written, source):
    """Within the folder that the author of the DAG has written before it."""
    (tmp_path / "jobs/a").mkdir(parents=True)
    (tmp_path / "jobs/a/digits.yaml").write_text("entrypoint: train.py\n")
    written, source = (text.replace("{folder}", str(tmp_path)).replace("{name}", tmp_path.name) for text in (written, source))

    document, base = read_source(source, written=written, folder=tmp_path, render=keep)

    assert (document, base) == ({"entrypoint": "train.py"}, tmp_path / "jobs/a")


@pytest.mark.parametrize(
    ("written", "source"),
    [
        pytest.param("{{ params.x }}", "evil.yaml", id="the whole argument"),
        pytest.param("{{ params.x }}", "/etc/evil.json", id="an absolute path"),
        pytest.param("{# a file #} {{ params.x }}\n", "evil.yml\n", id="with spaces"),
        pytest.param(None, "evil.yaml", id="a value of another task"),
        pytest.param("jobs/{{ params.x }}.yaml", "jobs/../evil.yaml", id="the folder above"),
        pytest.param("jobs/{{ params.x }}.yaml", "jobs/../jobs-else/evil.yaml", id="a folder with the same beginning"),
        pytest.param("jobs{{ params.x }}.yaml", "jobs/../../evil.yaml", id="above the folder of the DAG"),
        pytest.param("{{ params.x }}.yaml", "/etc/evil.yaml", id="another root"),
        pytest.param("{{ params.x }}.yaml", "~/../../evil.yaml", id="a home folder"),
        pytest.param("{{ params.x }}/a.yaml", "{{ params.x }}/../../a.yaml", id="a value that repeats the template"),
    ],
)
def test_a_template_may_not_name_another_file(tmp_path, written, source):
    """Whoever triggers a DAG chooses parameters; the files of the worker, and templates in them, are the author's."""
    (tmp_path / "evil.yaml").write_text("entrypoint: evil.py\n")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs-else").mkdir()
    (tmp_path / "jobs-else/evil.yaml").write_text("entrypoint: evil.py\n")

    with pytest.raises(JobError, match=r"job: '.+' is not allowed as the result of a template; expected "):
        read_source(source, written=written, folder=tmp_path, render=keep)


def test_fields_override_and_complete(tmp_path):
    """A field replaces the document's key; a mapping completes it key by key; what is None says nothing."""
    document = {
        "name": "in-the-file",
        "entrypoint": "train.py",
        "nodes": "1:2",
        "env": {"A": "1", "B": "2"},
        "recovery": {"max_restarts": 1, "stop_grace_period": "5s"},
    }
    fields = {"nodes": 3, "env": {"B": "3"}, "recovery": {"max_restarts": 9}, "args": None}

    job = build_job(document, fields, name="named-by-the-task", base=tmp_path)

    plan = compile_plan(job)[0]
    assert (plan.name, plan.min_nodes, plan.max_nodes) == ("named-by-the-task", 3, 3)
    assert plan.env == {"A": "1", "B": "3"}
    assert (plan.budgets.max_restarts, plan.workers.stop_grace) == (9, 5.0)


@pytest.mark.parametrize("listed", [False, True], ids=["a mapping", "a list"])
def test_a_job_with_several_roles_shares_what_all_roles_need(listed):
    """So a job that a builder made, which knows no images, runs as pods; what a role says itself wins."""
    roles: dict[str, Any] = {
        "trainer": {"entrypoint": "train.py", "image": "own:1", "env": {"A": "own", "B": "own"}},
        "judge": {"entrypoint": "judge.py", "launch": "simple"},
    }
    document = {"roles": [{"name": name, **role} for name, role in roles.items()] if listed else roles}
    fields: dict[str, Any] = {"image": "shared:1", "env": {"A": "shared", "C": "shared"}, "workdir": "/opt", "nodes": None}

    trainer, judge = build_job(document, fields, name="j", base=None).roles

    assert (trainer.image, judge.image) == ("own:1", "shared:1")
    assert (trainer.workdir, judge.workdir) == ("/opt", "/opt")
    assert (trainer.env, judge.env) == ({"A": "own", "B": "own", "C": "shared"}, {"A": "shared", "C": "shared"})
    with pytest.raises(JobError, match="these keys must be inside a role: nodes"):
        build_job(document, {**fields, "nodes": 2}, name="j", base=None)


def test_a_wrong_value_names_its_place(tmp_path):
    """An error of a field is the job's own error."""
    with pytest.raises(JobError, match="nodes: 'two'"):
        build_job({"entrypoint": "train.py"}, {"nodes": "two"}, name="x", base=tmp_path)


def test_two_tasks_that_share_a_name_do_not_share_a_digest(tmp_path):
    """The annotations of a task are part of the spec, so a job of one task is never adopted by another."""
    job = build_job({"entrypoint": "train.py"}, {}, name="digits", base=tmp_path)

    monday, tuesday = (compile_plan(annotate(job, {"airflow/run_id": day}))[0].digest for day in ("monday", "tuesday"))

    assert monday != tuesday
    assert compile_plan(annotate(job, {"airflow/run_id": "monday"}))[0].digest == monday
