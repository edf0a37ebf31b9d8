"""DLRover's arguments on the command line: both spellings, in the place of the file's, and where a job says that it runs."""

from __future__ import annotations

import json

import pytest

from rallypoint.cli.main import build_parser
from rallypoint.wire.arguments import WORDS


def planned(run, capsys, *words):
    """The job's document and its plan, as `rallypoint plan --json` tells them."""
    assert run("plan", *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    return found["job"], found["plan"]


@pytest.mark.parametrize("command", [pytest.param("submit", id="submit"), pytest.param("plan", id="plan")])
@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in WORDS if name != "namespace"])
def test_every_argument_is_a_flag_in_both_spellings(command, name):
    """The namespace is an option of all commands, in one word."""
    value = [] if not WORDS[name].metavar else ["x"]
    kebab, snake = f"--{name.replace('_', '-')}", f"--{name}"

    for spelled in (kebab, snake):
        args = build_parser().parse_args([command, "job.yaml", spelled, *value])
        assert args.arguments == {name: "x" if value else "true"}


def test_a_flag_takes_the_place_of_what_the_file_says(run, capsys, job_file):
    """Of the file's own words, of an argument in it and of an annotation."""
    job_file.write_text(job_file.read_text() + "max_restarts: 4\nannotations: {hang_downtime: '7'}\n")
    job, plan = planned(
        run, capsys, job_file, "--nnodes", "3:4", "--max-restarts", "9", "--hang_downtime", "2", "--auto-config"
    )

    assert (job["nodes"], plan["min_nodes"], plan["max_nodes"]) == ("3:4", 3, 4)
    assert (plan["max_restarts"], plan["hang_downtime"], plan["auto_config"]) == (9, 120.0, True)


def test_without_a_flag_the_environment_says_what_the_file_does_not(run, capsys, job_file, monkeypatch):
    """RALLYPOINT_MAX_RESTARTS and the like."""
    monkeypatch.setenv("RALLYPOINT_MAX_RESTARTS", "8")
    monkeypatch.setenv("RALLYPOINT_NNODES", "9")
    _, plan = planned(run, capsys, job_file)

    assert (plan["max_restarts"], plan["max_nodes"]) == (8, 2)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(
            ("--max-restarts", "3", "--max_restarts", "4"),
            "--max_restarts 4: is not allowed; --max-restarts is already set to 3; expected one value",
            id="two spellings",
        ),
        pytest.param(
            ("--platform", "mars"),
            "--platform mars: is not allowed; expected one of pyk8s, k8s",
            id="no platform",
        ),
        pytest.param(
            ("--platform", "k8s", "--backend", "local"),
            "--platform k8s: is not allowed; it conflicts with --backend local",
            id="another backend",
        ),
    ],
)
def test_flags_that_disagree_are_wrong_usage(run, capsys, job_file, words, complaint):
    """The flag, the value and what is allowed are named."""
    with pytest.raises(SystemExit) as ended:
        run("plan", job_file, *words)

    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_value_that_is_not_allowed_names_the_flag(run, capsys, job_file):
    """And the file, since it is that job that cannot run."""
    assert run("plan", job_file, "--max-restarts", "0") == 1
    assert ("--max-restarts: '0' is not allowed; expected a whole number of 1 or more") in capsys.readouterr().err


def test_the_same_value_in_two_spellings_is_one(run, capsys, job_file):
    """Nothing disagrees."""
    assert planned(run, capsys, job_file, "--precheck", "1", "--precheck", "1")[1]["check_level"] == 1


@pytest.mark.argument("job_name")
def test_job_name_is_another_spelling_of_name(run, capsys, job_file):
    """The job has it; two that disagree are an error."""
    assert planned(run, capsys, job_file, "--job_name", "letters")[1]["name"] == "letters"
    assert run("plan", job_file, "--job-name", "letters", "--name", "words") == 1
    assert ("--job-name: 'letters' is not allowed; --name is already 'words'; expected one value") in capsys.readouterr().err


@pytest.mark.argument("platform", "namespace")
def test_a_job_file_says_where_its_job_is(run, place, capsys, job_file):
    """The command opens the place that the file names; the command line overrules it."""
    job_file.write_text(job_file.read_text() + "platform: pyk8s\nnamespace: team\n")
    planned(run, capsys, job_file)
    planned(run, capsys, job_file, "--namespace", "other")

    assert [(site.kind, site.namespace) for site in place.sites] == [("kubernetes", "team"), ("kubernetes", "other")]


@pytest.mark.argument("platform")
@pytest.mark.parametrize(
    ("word", "kind"), [("pyk8s", "kubernetes"), ("k8s", "kubernetes"), ("kubernetes", "kubernetes"), ("local", "local")]
)
def test_every_platform_is_a_backend_in_each_place(run, place, capsys, job_file, monkeypatch, word, kind):
    """As a flag of plan and of submit, as the file's own field, and as the variable."""
    bare = job_file.read_text()
    planned(run, capsys, job_file, "--platform", word)
    assert run("submit", job_file, "--platform", word, "--supervise", "none") == 0
    job_file.write_text(bare + f"platform: {word}\n")
    capsys.readouterr()
    job, _ = planned(run, capsys, job_file)
    job_file.write_text(bare)
    monkeypatch.setenv("RALLYPOINT_PLATFORM", word)
    planned(run, capsys, job_file)

    assert [site.kind for site in place.sites] == [kind] * 4
    assert job["platform"] == kind


@pytest.mark.argument("namespace")
@pytest.mark.parametrize(
    ("words", "line", "variable", "name"),
    [
        pytest.param(("--platform", "k8s", "--namespace", "a b"), "", "", "--namespace", id="flag"),
        pytest.param(("--platform", "k8s"), "", "Team", "$RALLYPOINT_NAMESPACE", id="variable"),
        pytest.param(("--platform", "k8s"), "namespace: a b\n", "", "namespace", id="field"),
        pytest.param(("--platform", "k8s"), f"namespace: {'a' * 64}\n", "", "namespace", id="a long field"),
    ],
)
def test_a_namespace_that_no_cluster_can_have_is_named(run, capsys, job_file, monkeypatch, words, line, variable, name):
    """Before anything is sent to a cluster; the place that says it is named, and what is allowed."""
    job_file.write_text(job_file.read_text() + line)
    monkeypatch.setenv("RALLYPOINT_NAMESPACE", variable)
    try:
        code = run("plan", job_file, *words)
    except SystemExit as ended:
        code = ended.code

    said = capsys.readouterr().err
    assert code in (1, 2)
    assert f"{name}: '" in said
    assert "is not allowed; expected 1 to 63 lower-case letters, digits and '-'" in said


@pytest.mark.argument("namespace")
def test_a_namespace_of_the_file_is_named_by_the_file(run, capsys, job_file):
    """Not by a flag that nobody gave."""
    job_file.write_text(job_file.read_text() + "namespace: team\n")
    with pytest.raises(SystemExit):
        run("plan", job_file)

    assert f"{job_file}: namespace: 'team' is not allowed with backend local" in capsys.readouterr().err


def test_an_annotation_says_the_platform(run, place, capsys, job_file):
    """Beneath the file, and above the environment."""
    job_file.write_text(job_file.read_text() + "annotations: {rallypoint.dev/platform: k8s}\n")
    planned(run, capsys, job_file)

    assert place.sites[0].kind == "kubernetes"


def test_the_environment_says_the_platform(run, place, capsys, job_file, monkeypatch):
    """RALLYPOINT_PLATFORM and RALLYPOINT_NAMESPACE; a backend that is another one is an error."""
    monkeypatch.setenv("RALLYPOINT_PLATFORM", "pyk8s")
    monkeypatch.setenv("RALLYPOINT_NAMESPACE", "team")
    planned(run, capsys, job_file)
    monkeypatch.setenv("RALLYPOINT_BACKEND", "local")
    with pytest.raises(SystemExit):
        run("plan", job_file)

    assert [(site.kind, site.namespace) for site in place.sites] == [("kubernetes", "team")]
    assert (
        "RALLYPOINT_PLATFORM: 'pyk8s' is not allowed; it conflicts with $RALLYPOINT_BACKEND 'local'"
    ) in capsys.readouterr().err


@pytest.mark.argument("platform")
def test_a_job_for_ray_goes_to_ray(run, place, job_file):
    """By the option and by the document."""
    assert run("plan", job_file, "--platform", "ray") == 0
    job_file.write_text(job_file.read_text() + "platform: ray\n")
    assert run("plan", job_file) == 0
    assert [site.kind for site in place.sites] == ["ray", "ray"]
