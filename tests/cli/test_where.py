"""Where jobs are, and who supervises one that is submitted there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rallypoint.backends.site import Site
from rallypoint.cli.submit import Submitted
from rallypoint.supervision.record import Phase
from rallypoint.wire.codec import loads
from rallypoint.wire.env import BACKEND
from rallypoint.wire.status import JobState, Outcome
from tests.cli.fake import Place
from tests.cli.samples import HOLDER, begun, over, submitted, training

CLUSTER = ("--backend", "kubernetes", "--namespace", "team-a")
AGAIN = "rallypoint --backend kubernetes --namespace team-a"
SITE = Site(kind="kubernetes", namespace="team-a")
CONFIGMAP = ({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "rallypoint-digits", "namespace": "team-a"}},)


@pytest.fixture
def cluster(place):
    """A place whose blueprints are those of a cluster."""
    place.objects = CONFIGMAP
    return place


# --- where -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "site"),
    [
        pytest.param(("status",), Site(), id="this machine by default"),
        pytest.param((*CLUSTER, "status"), SITE, id="before the command"),
        pytest.param(("status", *CLUSTER), SITE, id="after the command"),
        pytest.param((*CLUSTER, "status", "--namespace", "b"), Site(kind="kubernetes", namespace="b"), id="after wins"),
        pytest.param(
            ("status", "--backend", "kubernetes", "--context", "c", "--kubeconfig", "k.yaml"),
            Site(kind="kubernetes", context="c", kubeconfig=str(Path("k.yaml").absolute())),
            id="another kubeconfig, made absolute",
        ),
    ],
)
def test_every_command_is_told_where_jobs_are(run, place, words, site):
    """By its options, on either side of the command."""
    assert run(*words) == 0
    assert place.sites == [site]


def test_the_environment_names_the_backend(run, place, monkeypatch):
    """An option wins over it."""
    monkeypatch.setenv(BACKEND, "kubernetes")

    assert run("status") == 0
    assert run("status", "--backend", "local") == 0

    assert [site.kind for site in place.sites] == ["kubernetes", "local"]


@pytest.mark.parametrize(
    ("words", "variable", "complaint"),
    [
        pytest.param(
            ("status", "--namespace", "a"),
            "",
            "--namespace: 'a' is not allowed with backend local; settings of this backend: home",
            id="a namespace of this machine",
        ),
        pytest.param(
            ("status", *CLUSTER, "--home", "/data"),
            "",
            "--home: '/data' is not allowed with backend kubernetes; settings of this backend: namespace, context, kubeconfig",
            id="a folder of a cluster",
        ),
        pytest.param(
            ("status",),
            "slurm",
            f"${BACKEND}: 'slurm' is not allowed; expected one of kubernetes, local",
            id="a wrong variable",
        ),
        pytest.param(
            ("submit", "job.yaml", "--supervise", "pod"),
            "",
            "--supervise pod is not allowed with backend local; expected one of process, here, none",
            id="a pod of this machine",
        ),
        pytest.param(
            ("plan", "job.yaml", "--dry-run", "server"),
            "",
            "--dry-run server is not allowed with backend local",
            id="no server",
        ),
        pytest.param(
            ("submit", "job.yaml", *CLUSTER, "--supervise", "none", "--supervisor-image", "x"),
            "",
            "--supervisor-image x requires --supervise pod; this job uses --supervise none",
            id="an image for nobody",
        ),
    ],
)
def test_words_that_do_not_go_together_are_wrong_usage(run, monkeypatch, capsys, words, variable, complaint):
    """The option and what is allowed are named, and the exit code is 2."""
    monkeypatch.setenv(BACKEND, variable)

    with pytest.raises(SystemExit) as ended:
        run(*words)

    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_paths_of_a_cluster_are_those_of_an_image(run, cluster, job_file):
    """Nothing is looked for beside the job file."""
    assert run("submit", job_file, *CLUSTER) == 0
    assert cluster.world.jobs["digits"].blueprint.job.roles[0].entrypoint.words == ("train.py",)


# --- who supervises --------------------------------------------------------------------------------------------------------


def test_on_a_cluster_a_pod_supervises(run, cluster, job_file, capsys):
    """It is named, and nothing is said of folders; what is to be copied has the options of the submission."""
    assert run("submit", job_file, *CLUSTER, "--supervisor-image", "tools:1", "--supervisor-account", "watcher") == 0

    assert capsys.readouterr().out.splitlines() == [
        "Job digits submitted: 1 to 2 nodes x 2 processes, supervisor pod digits-s",
        f"Watch it: {AGAIN} status digits   {AGAIN} logs digits",
        "Record: ConfigMap team-a/rallypoint-digits",
    ]
    assert (cluster.pods, cluster.spawned) == ([("digits", "team-a", "tools:1", "watcher")], [])


def test_json_names_the_pod_and_the_configmap(run, cluster, job_file, capsys):
    """The same for programs."""
    assert run("submit", job_file, *CLUSTER, "--json") == 0

    done = loads(Submitted, capsys.readouterr().out)
    assert (done.supervise, done.supervisor_pod, done.supervisor_pid) == ("pod", "digits-s", 0)
    assert (done.configmap, done.folder) == ("team-a/rallypoint-digits", "")


def test_a_pod_that_the_cluster_refuses_is_told_before_anything_is_there(run, cluster, job_file, capsys):
    """No service account, say: there is no job then."""
    cluster.refusal = "supervisor pod: namespace team-a has no service account rallypoint-supervisor"

    assert run("submit", job_file, *CLUSTER) == 1

    assert "no service account" in capsys.readouterr().err
    assert cluster.world.jobs == {}


@pytest.mark.parametrize("words", [(), ("--watch",)], ids=["at once", "while it is watched"])
def test_a_pod_that_does_not_start_is_told(run, cluster, job_file, capsys, words):
    """With its reason and the way to go on."""
    cluster.takes_on, cluster.trouble = False, "does not start (ErrImagePull: no such image)"

    assert run("submit", job_file, *CLUSTER, *words) == 1

    assert capsys.readouterr().err == (
        "rallypoint: the supervisor of job digits (pod digits-s) does not start (ErrImagePull: no such image); to "
        "supervise job digits: rallypoint --backend kubernetes --namespace team-a supervise digits\n"
    )


def test_a_process_of_this_machine_may_supervise_on_a_cluster(run, cluster, job_file):
    """Where no image has what a supervisor needs."""
    assert run("submit", job_file, *CLUSTER, "--supervise", "process") == 0
    assert (cluster.spawned, cluster.pods) == ([("digits", SITE)], [])


def test_nobody_may_supervise(run, place, job_file, capsys):
    """Then it is said who must."""
    assert run("submit", job_file, "--supervise", "none") == 0

    assert capsys.readouterr().out.splitlines()[-1] == "The job has no supervisor yet; start one: rallypoint supervise digits"
    assert (place.spawned, place.world.record("digits").phase) == ([], Phase.EMPTY)


def ends(outcome: Outcome):
    """Return a step: every node that was started by now ends, as the coordinator says."""

    def step(place: Place) -> None:
        record = place.world.record("digits")
        said = dataclasses.replace(training(), uid=record.uid, verdict=over(outcome=outcome).verdict)
        state = JobState.SUCCEEDED if outcome is Outcome.SUCCEEDED else JobState.FAILED
        place.world.jobs["digits"].status = dataclasses.replace(said, state=state)
        for key in place.world.alive("digits"):
            place.world.end("digits", key, 0)

    return step


@pytest.mark.parametrize("words", [(), ("--watch",)], ids=["telling what happens", "watching"])
@pytest.mark.parametrize(("outcome", "code"), [(Outcome.SUCCEEDED, 0), (Outcome.FAILED, 1)], ids=["well", "badly"])
def test_the_command_itself_may_supervise(run, place, job_file, capsys, words, outcome, code):
    """To the job's end, with its outcome as exit code."""
    place.script = [ends(outcome)] * 20

    assert run("submit", job_file, "--supervise", "here", "--set", "fault_tolerance.retry_limit=0", *words) == code

    assert "Job digits " in capsys.readouterr().out.splitlines()[-1 if not code else 0]
    assert place.spawned == []


# --- plan ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "code", "told"),
    [
        pytest.param("", 0, "accepts all objects", id="nothing"),
        pytest.param("resources: the quota has no room", 1, "rejects Pod digits-0: resources: ", id="a pod"),
    ],
)
def test_a_server_is_asked_what_it_refuses(run, cluster, job_file, capsys, refusal, code, told):
    """Only when that was asked for; the exit code says whether it is much."""
    cluster.refusal = refusal

    assert run("plan", job_file, *CLUSTER) == 0
    assert "API server" not in "".join(capsys.readouterr())
    assert run("plan", job_file, *CLUSTER, "--dry-run=server") == code
    assert told in "".join(capsys.readouterr())


# --- afterwards ------------------------------------------------------------------------------------------------------------


def test_what_is_to_be_copied_names_the_cluster(run, place, capsys):
    """A job without supervisor is taken on where it is."""
    place.put(dataclasses.replace(begun(), holder=HOLDER), training())

    assert run(*CLUSTER, "suspend", "digits") == 0

    assert capsys.readouterr().out.splitlines() == [
        f"Job digits is being suspended; to resume it: {AGAIN} resume digits",
        f"The job has no supervisor, so the request waits; start one: {AGAIN} supervise digits",
    ]


def test_a_deletion_on_a_cluster_speaks_of_objects(run, place, capsys):
    """There are no folders there."""
    place.put(over(outcome=Outcome.SUCCEEDED))

    assert run("delete", "digits", *CLUSTER) == 0
    assert capsys.readouterr().out.endswith("its objects were removed\n")


@pytest.mark.parametrize(
    ("record", "words", "code"),
    [
        pytest.param(over(outcome=Outcome.FAILED), (), 1, id="failed"),
        pytest.param(over(outcome=Outcome.FAILED), ("--ignore-outcome",), 0, id="failed, and that is no news"),
        pytest.param(None, (), 1, id="not there"),
        pytest.param(None, ("--ignore-outcome",), 0, id="not there, and that is no news"),
    ],
)
def test_whoever_starts_supervisors_again_need_not_know_the_outcome(run, place, record, words, code):
    """A pod that is restarted when it fails would come back for ever for a job that failed."""
    place.put(record or submitted())
    if record is None:
        place.world.jobs.clear()

    assert run("supervise", "digits", *words) == code
