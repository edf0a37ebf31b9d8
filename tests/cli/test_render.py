"""`rallypoint render`: a settings file in, manifests or a job file out."""

from __future__ import annotations

import stat

import pytest
import yaml

from rallypoint.job import load_job

SETTINGS = "jobName: my-job\ncontainerImage: img\nnumPods: 2\nmainProgram: train.py\n"


@pytest.fixture
def settings_file(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    return path


def test_render_prints_the_appwrapper(run, settings_file, capsys):
    """One document, and nothing else."""
    assert run("render", settings_file) == 0

    out, err = capsys.readouterr()
    document = yaml.safe_load(out)
    assert (document["kind"], document["metadata"]["name"], err) == ("AppWrapper", "my-job", "")


def test_render_prints_a_job_that_can_be_submitted(run, settings_file, tmp_path, capsys):
    """The file reads back as a job; what is another thing there is told beside it."""
    assert run("render", settings_file, "--job", "--set", "namespace=team1", "-o", tmp_path / "job.yaml") == 0

    out, err = capsys.readouterr()
    job = load_job(tmp_path / "job.yaml")
    assert (job.name, job.roles[0].nodes.max, out) == ("my-job", 2, "")
    assert "note: namespace: is not part of a job file; submit with --backend kubernetes --namespace team1\n" in err


def test_settings_of_the_command_line_take_the_place_of_the_files(run, settings_file, capsys):
    """Also inside of a setting that is not there yet."""
    assert run("render", settings_file, "--set", "numPods=3", "--set", "mountNVMe.storage=1Ti") == 0

    document = yaml.safe_load(capsys.readouterr().out)
    replicas = document["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"]
    assert replicas["Worker"]["replicas"] == 2
    assert replicas["Master"]["template"]["spec"]["volumes"][0]["name"] == "ephemeral-odf-lvm-vg1"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(
            ["--set", "numPod=3"],
            "numPod: is not a known setting; the most similar setting is 'numPods'",
            id="an unknown setting",
        ),
        pytest.param(
            ["--set", "numPods=0"],
            "numPods: 0 is not allowed; expected a whole number of 1 or more",
            id="a wrong value",
        ),
        pytest.param(["--set", "numPods"], "--set numPods: is not allowed; expected KEY=VALUE", id="half a setting"),
        pytest.param(["--job", "--set", "mainProgram=a; b"], "mainProgram: 'a; b' is not allowed", id="no program of a job"),
        pytest.param(
            ["-o", "/nowhere/out.yaml"], "/nowhere/out.yaml: cannot write the file: No such file", id="no such folder"
        ),
    ],
)
def test_what_is_wrong_is_told_and_nothing_printed(run, settings_file, capsys, words, complaint):
    """Exit code 1, one message, no half of a document."""
    assert run("render", settings_file, *words) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err


def test_a_settings_file_that_is_wrong_is_named(run, settings_file, capsys):
    """Above its problems."""
    settings_file.write_text("jobName: my-job\n")

    assert run("render", settings_file) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"rallypoint: {settings_file}: invalid settings:"


def test_what_may_surprise_is_told_beside_the_document(run, settings_file, capsys):
    """On stderr, so that the output can go to kubectl."""
    assert run("render", settings_file, "--set", "numGpusPerPod=1", "--set", "limitGpusPerPod=2") == 0

    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["kind"] == "AppWrapper"
    assert err.startswith("rallypoint: note: limitGpusPerPod: ")


ELASTIC = ("--set", "elastic=true")


def test_the_secret_of_an_elastic_job_is_printed(run, settings_file, capsys):
    """The one that its pods wait for, another one each time; with the uid of its AppWrapper it is owned by it."""
    assert run("render", settings_file, *ELASTIC) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    pods = [role["template"] for role in document["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"].values()]
    variables = [each for pod in pods for each in pod["spec"]["containers"][0]["env"] if each["name"] == "RALLYPOINT_SECRET"]
    references = [variable["valueFrom"]["secretKeyRef"] for variable in variables]
    printed = []
    for more in ((), ("--owner", "u-1")):
        assert run("render", settings_file, *ELASTIC, "--secret", *more) == 0
        printed.append(yaml.safe_load(capsys.readouterr().out))

    assert references == [{"name": "my-job-rallypoint-run", "key": "secret"}] * 2
    assert [secret["metadata"]["name"] for secret in printed] == ["my-job-rallypoint-run"] * 2
    assert len({secret["data"]["secret"] for secret in printed}) == 2
    assert "ownerReferences" not in printed[0]["metadata"]
    (owner,) = printed[1]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("AppWrapper", "my-job", "u-1")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(["--secret"], "expected pytorchjob-generator settings with elastic: true", id="agents are not ours"),
        pytest.param([*ELASTIC, "--set", "insecureToken=true", "--secret"], "without insecureToken", id="it does without"),
        pytest.param([*ELASTIC, "--owner", "u"], "--owner: is allowed only together with --secret", id="nothing to own"),
    ],
)
def test_no_secret_is_printed_where_none_is_used(run, settings_file, capsys, words, complaint):
    """The error says what is needed."""
    assert run("render", settings_file, *words) == 1

    out, err = capsys.readouterr()
    assert (out, complaint in err) == ("", True), err


def test_a_job_without_a_secret_is_one_that_asks_for_it(run, settings_file, capsys):
    """The agents are told so, and the reader, too."""
    assert run("render", settings_file, *ELASTIC, "--set", "insecureToken=true") == 0

    out, err = capsys.readouterr()
    assert "RALLYPOINT_SECRET" not in out
    assert "--insecure_token" in out
    assert "note: insecureToken: the agents have no secret" in err


def test_the_file_of_a_secret_is_private(run, settings_file, tmp_path):
    """It has the token of the job; a file that was there before loses the rights of others."""
    secret, plain = tmp_path / "secret.yaml", tmp_path / "plain.yaml"
    secret.touch(0o644)

    assert run("render", settings_file, *ELASTIC, "--secret", "-o", secret) == 0
    assert run("render", settings_file, *ELASTIC, "-o", plain) == 0

    assert (stat.S_IMODE(secret.stat().st_mode), stat.S_IMODE(plain.stat().st_mode) & 0o044) == (0o600, 0o044)
