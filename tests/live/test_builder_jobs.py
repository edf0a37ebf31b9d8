"""Jobs of the builder run on this machine through `submit()`, and those of several roles are refused by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.job.builder import JobBuilder, TrainBuilder
from tests.live.jobs import Job, cli
from tests.waiting import eventually

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, home: Path, light: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that jobs write to, and a Python path on which their module is, and no torch."""
    monkeypatch.setenv("RALLYPOINT_HOME", str(home))
    monkeypatch.setenv("ROLE_JOBS_FOLDER", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SCRIPTS), os.environ["PYTHONPATH"])))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def training(entry: str) -> TrainBuilder[JobBuilder]:
    return JobBuilder().device_type("CPU").config({"lr": 1e-5, "steps": 3}).global_env({"EXTRA": 1}).train(entry)


def alone(entry: str) -> JobBuilder:
    """The same without a process group, for which it would need torch."""
    return training(entry).no_setup_process_group()


@pytest.mark.extended
def test_a_function_runs_in_the_process_group_of_its_role(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the configuration; its submission returns 0. A second one in the same process works, too."""
    light = os.environ["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    job = training("role_jobs.report").nnodes(2).nproc_per_node(1).build()

    assert job.submit(job_name="by_function", job_max_restart=0) == 0

    found = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert found == [{"config": {"lr": 1e-5, "steps": 3}, "argv": ["role_jobs:report"], "world": 2, "extra": "1"}] * 2
    monkeypatch.setenv("PYTHONPATH", light)
    assert alone("role_jobs.report").build().submit("alone", job_max_restart=0) == 0
    assert json.loads((place / "rank-0.json").read_text())["world"] == 1


@pytest.mark.extended
def test_classes_and_exit_codes(place: Path) -> None:
    """`run()` of a class; `sys.exit(0)` is a success, any other code a failure with that code."""
    assert alone("role_jobs:Trainer").build().submit("classy", job_max_restart=0) == 0
    assert (place / "class-0").exists()
    assert alone("role_jobs.exit_well").build().submit("well", job_max_restart=0) == 0
    assert alone("role_jobs.fail").build().submit("failing", failover_exec_strategy=0) == 1
    assert "exited with code 3" in cli("status", "failing").stdout


def test_a_command_line_with_settings_from_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name and the budgets are those of the variables; it does not wait."""
    monkeypatch.setenv("DLROVER_UNIFIED_JOB_NAME", "from-environment")
    monkeypatch.setenv("DLROVER_UNIFIED_NODE_MAX_RESTART", "4")
    script = place / "train.py"
    script.write_text("import sys, pathlib; pathlib.Path('said').write_text(' '.join(sys.argv[1:]))")

    job = JobBuilder().device_type("CPU").by_dlrover_run_cmd(f"dlrover-run --nproc_per_node=1 {script} --test 'a b'").build()
    assert job.submit(blocking=False) == 0

    running = Job(folder=place, home=place / "rallypoint-home", name="from-environment")
    plan = json.loads((running.place / "plan.json").read_text())
    assert (plan["node_replacements"], plan["retry_limit"], plan["coordinator_replacements"]) == (4, 10, 10)
    eventually(lambda: (place / "said").exists() and (place / "said").read_text() == "--test a b")
    running.ends()


@pytest.mark.extended
def test_an_interrupted_submission_leaves_the_job_running(place: Path) -> None:
    """Ctrl-C ends the caller with KeyboardInterrupt, once; the job ends by itself later."""
    script = (
        "from rallypoint.job.builder import JobBuilder\n"
        "job = JobBuilder().device_type('CPU').train('role_jobs.wait').no_setup_process_group().build()\n"
        "job.submit('interrupted', job_max_restart=0)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    eventually((place / "waiting").exists)
    os.kill(caller.pid, signal.SIGINT)
    _, errors = caller.communicate(timeout=60)

    assert caller.returncode != 0
    assert errors.count("Job interrupted continues") == 1
    assert errors.rstrip().endswith("\nKeyboardInterrupt")
    (place / "enough").touch()
    record = Job(folder=place, home=place / "rallypoint-home", name="interrupted").ends()
    assert record.phase.value == "Succeeded"


@pytest.mark.extended
def test_a_second_submission_attaches(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same job waits for the end of the first one, on the backend that its argument names; another is refused."""
    monkeypatch.setenv("RALLYPOINT_BACKEND", "kubernetes")
    script = (
        "import sys; from rallypoint.job.builder import JobBuilder\n"
        "job = JobBuilder().device_type('CPU').role('judge').run('role_jobs.wait').resource(cpu=1).build()\n"
        "sys.exit(job.submit('twice', backend='local'))\n"
    )
    first = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    eventually((place / "waiting").exists)
    second = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    said = second.stdout.readline()
    other = JobBuilder().device_type("CPU").role("judge").run("role_jobs.wait").resource(cpu=2).build()
    assert other.submit("twice", backend="local") == 1
    (place / "enough").touch()

    assert said.startswith("Job twice is already running, and nothing was started: 1 role, 1 instance (supervisor: ")
    assert (first.wait(timeout=60), second.wait(timeout=60)) == (0, 0)
    record = Job(folder=place, home=place / "rallypoint-home", name="twice").ends()
    assert (record.phase.value, record.attempt) == ("Succeeded", 1)
    first.communicate()
    second.communicate()


@pytest.mark.extended
def test_an_airflow_connection_names_the_backend(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its home and its policies apply, and come before the defaults of `submit()`, not before an argument."""
    pytest.importorskip("airflow")
    monkeypatch.setenv("RALLYPOINT_BACKEND", "kubernetes")
    monkeypatch.setenv("AIRFLOW_HOME", str(place / "airflow"))
    extra = {
        "home": str(place / "other"),
        "policies": {"fault_tolerance": {"retry_limit": 7}, "recovery": {"node_replacements": 8}},
    }
    monkeypatch.setenv("AIRFLOW_CONN_TRAINING", json.dumps({"conn_type": "rallypoint", "extra": extra}))
    (place / "enough").touch()
    job = JobBuilder().device_type("CPU").role("judge").run("role_jobs.wait").resource(cpu=1).build()

    assert job.submit("connected", conn_id="training", node_max_restart=4) == 0
    assert job.submit("elsewhere", conn_id="training", backend="ray") == 1

    assert [path.name for path in (place / "other" / "jobs").iterdir() if not path.name.startswith(".")] == ["connected"]
    plan = json.loads((place / "other" / "jobs" / "connected" / "plan.json").read_text())
    assert (plan["retry_limit"], plan["node_replacements"], plan["coordinator_replacements"]) == (7, 4, 10)


def test_several_roles_run_together(place: Path) -> None:
    """The entry points of the builder, chained without `end()`; `submit` waits for the drivers, and servers are ended then."""
    job = (
        JobBuilder()
        .device_per_node(2)
        .config({"lr": 1e-5})
        .role("actor")
        .train("role_parts.say_once")
        .no_setup_process_group()
        .role("rollout")
        .run("role_parts.serve")
        .not_driver()
        .role("judge")
        .run(f"{SCRIPTS / 'role_parts.py'} --word 'a b'")
        .with_collocation("actor", "rollout")
        .build()
    )

    assert job.submit("rl", job_max_restart=0) == 0

    said = {path.stem: json.loads(path.read_text().splitlines()[0]) for path in place.glob("*.lines")}
    assert {name: line["what"] for name, line in said.items()} == {
        "actor-0": "begin",
        "rollout-0": "begin",
        "judge-0": "begin --word a b",
    }
    devices = {name: line["CUDA_VISIBLE_DEVICES"] for name, line in said.items()}
    assert devices == {"actor-0": "0", "rollout-0": "0", "judge-0": "1"}
    (place / "rl.yaml").write_text(job.to_yaml("rl"))
    planned = cli("plan", place / "rl.yaml").stdout
    assert "  rollout: 1 instance, 1 per group, each 1/2 GPU, not a driver\n" in planned
    assert "  group actor-rollout: actor, rollout on the same nodes\n" in planned
