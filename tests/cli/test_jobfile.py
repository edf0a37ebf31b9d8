from __future__ import annotations

import pytest

from rallypoint.cli.jobfile import SettingError, read_job, with_settings
from rallypoint.job import JobError

DOCUMENT = {"nodes": 2, "env": {"SEED": "1"}, "roles": [{"nodes": 1}, {"nodes": 2}], "args": None}


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        pytest.param("nodes=1:4", {"nodes": "1:4"}, id="a range stays a range, whatever YAML 1.1 made of it"),
        pytest.param("nodes=4", {"nodes": 4}, id="a number"),
        pytest.param("env.SEED='7'", {"env": {"SEED": "7"}}, id="inside of a mapping"),
        pytest.param("env.URL=http://a/?b=c", {"env": {"SEED": "1", "URL": "http://a/?b=c"}}, id="a value with an equals sign"),
        pytest.param("recovery.max_restarts=9", {"recovery": {"max_restarts": 9}}, id="a mapping that is not there yet"),
        pytest.param("args=[a, b]", {"args": ["a", "b"]}, id="a list"),
        pytest.param("roles[1].nodes=5", {"roles": [{"nodes": 1}, {"nodes": 5}]}, id="inside of a list"),
        pytest.param("name=", {"name": None}, id="nothing"),
        pytest.param("config.lr=1e-5", {"config": {"lr": 1e-5}}, id="a number with a point in the settings of the user"),
        pytest.param("image=1.10", {"image": "1.10"}, id="text that looks like a number elsewhere"),
    ],
)
def test_a_setting_takes_the_place_of_a_field(setting, changed):
    """`KEY=VALUE`, where KEY is written as in errors and VALUE is YAML."""
    assert with_settings(DOCUMENT, [setting]) == {**DOCUMENT, **changed}


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        pytest.param("nodes", "expected KEY=VALUE", id="no value"),
        pytest.param("=3", "expected KEY=VALUE", id="no key"),
        pytest.param("a..b=3", "expected KEY=VALUE", id="an empty step"),
        pytest.param(
            "nodes.min=3",
            "cannot set the key 'min' of 2, which is not a mapping",
            id="inside of a number",
        ),
        pytest.param("roles[2].nodes=1", "the list in the file has 2 items", id="beyond a list"),
        pytest.param("env[0]=1", "cannot set index [0] of", id="a mapping has no items"),
        pytest.param("args=[a", "the value is not valid YAML", id="bad YAML"),
    ],
)
def test_a_setting_that_cannot_be_done_is_told(setting, complaint):
    """The error repeats the setting as it was written."""
    with pytest.raises(SettingError) as told:
        with_settings(DOCUMENT, [setting])

    assert str(told.value).startswith(f"--set {setting}: ")
    assert complaint in str(told.value)


def test_settings_leave_the_document_alone_and_come_in_turn():
    """The last one wins."""
    document = {"env": {"SEED": "1"}}

    assert with_settings(document, ["env.SEED=x", "env.SEED=y"]) == {"env": {"SEED": "y"}}
    assert document == {"env": {"SEED": "1"}}


def test_the_job_of_a_command_line_is_its_file_with_settings_and_name(job_file):
    """Relative paths still start from the file's folder."""
    job = read_job(job_file, settings=["nodes=3"], name="other")

    assert (job.name, job.roles[0].nodes.max, job.roles[0].workdir) == ("other", 3, str(job_file.parent))


@pytest.mark.parametrize(
    ("text", "settings", "complaint"),
    [
        pytest.param("name: a\nentrypoint: x.py\n", ["nodes=0"], "nodes: 0 is not allowed", id="a setting out of bounds"),
        pytest.param("- a\n", [], "job: ", id="no mapping"),
        pytest.param("name: a\nflavour: b\n", [], "flavour", id="an unknown key"),
    ],
)
def test_a_job_that_cannot_run_names_its_file(tmp_path, text, settings, complaint):
    """Whatever is wrong, the error begins with the file."""
    path = tmp_path / "job.yaml"
    path.write_text(text)

    with pytest.raises(JobError) as told:
        read_job(path, settings=settings)

    assert str(told.value).startswith(str(path))
    assert complaint in str(told.value)
