"""The door for jobs: files, dicts, keyword arguments; and where relative paths start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rallypoint.job
from rallypoint.job import ElasticJob, JobError, load_job

GOOD: dict[str, Any] = {"name": "digits", "entrypoint": "train.py"}


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "jobs" / "digits.yaml"
    path.parent.mkdir()
    path.write_text("name: digits\nentrypoint: train.py\nnodes: 1:2\n")
    return path


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda: load_job(GOOD), id="dict"),
        pytest.param(lambda: load_job(**GOOD), id="keyword arguments"),
        pytest.param(lambda: load_job({"name": "digits"}, entrypoint="train.py"), id="both"),
        pytest.param(lambda: load_job(load_job(GOOD)), id="a job"),
        pytest.param(lambda: ElasticJob(**GOOD).with_base(Path.cwd()), id="the class itself"),
    ],
)
def test_every_door_leads_to_the_same_job(load):
    """A job is the same however it is given."""
    assert load() == load_job(GOOD)


def test_a_file_is_read_by_path_or_text_of_a_path(job_file):
    """load_job and from_file agree."""
    job = ElasticJob.from_file(job_file)

    assert load_job(job_file) == load_job(str(job_file)) == ElasticJob.from_file(str(job_file)) == job
    assert str(job.roles[0].nodes) == "1:2"


def test_fields_take_the_place_of_keys_of_the_document(job_file):
    """What an operator is given wins over the file."""
    job = load_job(job_file, nodes=4, recovery={"max_restarts": 0})

    assert (job.roles[0].nodes.min, job.recovery.max_restarts, job.roles[0].entrypoint.words) == (4, 0, ("train.py",))


def test_fields_over_a_file_that_is_no_mapping_are_an_error(tmp_path):
    """There is nothing that a field could take the place of."""
    path = tmp_path / "job.yaml"
    path.write_text("- 1\n")
    with pytest.raises(JobError) as caught:
        load_job(path, nodes=1)

    assert (
        str(caught.value) == f"{path} is not a valid job:\njob: [1] is not allowed; expected a mapping with name and entrypoint"
    )


@pytest.mark.parametrize(
    ("fields", "workdir", "checkpoint_dir", "logs"),
    [
        pytest.param({}, "", "", "", id="nothing given"),
        pytest.param({"workdir": "src"}, "src", "", "", id="relative workdir"),
        pytest.param({"workdir": "./src/"}, "src", "", "", id="workdir with a dot"),
        pytest.param({"workdir": "src", "checkpoint_dir": "ckpt"}, "src", "src/ckpt", "", id="checkpoints below workdir"),
        pytest.param({"logs": {"dir": "logs"}}, "", "", "logs", id="logs beside the file"),
    ],
)
def test_relative_paths_start_at_the_job_file(job_file, fields, workdir, checkpoint_dir, logs):
    """Workdir and logs.dir at the file's folder, checkpoint_dir at workdir; what is not given stays away, but for workdir."""
    folder = job_file.parent
    job = load_job(job_file, **fields)

    assert job.roles[0].workdir == str(folder / workdir)
    assert job.roles[0].checkpoint_dir == (str(folder / checkpoint_dir) if checkpoint_dir else "")
    assert job.logs.dir == (str(folder / logs) if logs else "")


def test_absolute_paths_homes_and_addresses_are_not_moved(job_file, monkeypatch):
    """`/x` and `s3://x` stay, `~` is the submitter's home."""
    monkeypatch.setenv("HOME", "/home/someone")
    job = load_job(
        job_file, workdir="~/src", checkpoint_dir="s3://bucket/digits", logs={"dir": "/var/log"}, entrypoint="~/train.py"
    )

    assert job.roles[0].workdir == "/home/someone/src"
    assert job.roles[0].checkpoint_dir == "s3://bucket/digits"
    assert job.logs.dir == "/var/log"
    assert job.roles[0].entrypoint.words == ("/home/someone/train.py",)


def test_the_home_of_nobody_stays_as_it_is_written(tmp_path):
    """An unknown user is found when the folder is looked for, not by a traceback here."""
    assert load_job(GOOD, base=tmp_path, workdir="~no-such-user/x").roles[0].workdir == f"{tmp_path}/~no-such-user/x"


def test_a_dict_starts_at_the_current_folder(tmp_path, monkeypatch):
    """As a path given on a command line does."""
    monkeypatch.chdir(tmp_path)

    assert load_job(GOOD).roles[0].workdir == str(tmp_path)
    assert load_job(GOOD, workdir="src").roles[0].workdir == str(tmp_path / "src")


def test_a_base_moves_the_start_of_relative_paths(job_file, tmp_path):
    """For a document that was written elsewhere."""
    assert load_job(job_file, base=tmp_path).roles[0].workdir == str(tmp_path)
    assert load_job(GOOD, base=str(tmp_path)).roles[0].workdir == str(tmp_path)


def test_a_job_constructed_directly_keeps_its_paths():
    """Only the doors look at the current folder; "" stands for wherever the agent is."""
    assert ElasticJob(**GOOD).roles[0].workdir == ""


def test_an_error_of_a_file_names_the_file(job_file):
    """Also when the problem came in by a field."""
    with pytest.raises(JobError) as caught:
        load_job(job_file, nproc_per_node=0)

    assert str(caught.value) == (
        f"{job_file} is not a valid job:\nnproc_per_node: 0 is not allowed; expected a whole number from 1 to 65535"
    )
    assert caught.value.source == str(job_file)


def test_what_is_exported_is_sorted_and_there():
    """The public names of the room."""
    assert rallypoint.job.__all__ == sorted(rallypoint.job.__all__)
    assert all(hasattr(rallypoint.job, name) for name in rallypoint.job.__all__)


def test_paths_of_an_image_stay_as_they_are(tmp_path):
    """A job whose pods have its paths is read without a folder to start from, from a file and from a dict alike."""
    document = {"name": "digits", "entrypoint": "train.py", "workdir": "src", "checkpoint_dir": "runs"}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document), encoding="utf-8")

    for job in (load_job(path, based=False), load_job(document, based=False)):
        assert (job.roles[0].workdir, job.roles[0].checkpoint_dir) == ("src", "runs")
