"""Scripts of DLRover's builder run unchanged after `install()`: imports, names of the built job, kinds of errors."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from pydantic import ValidationError

from rallypoint.compat.dlrover import install
from rallypoint.compat.dlrover.builder import DLJobBuilder, RLJobBuilder
from rallypoint.job import load_job

SCRIPT = """
from rallypoint.compat.dlrover import install
install()
install()
from dlrover.python.unified.api.builder import DLJobBuilder, RLJobBuilder
from dlrover.python.unified.api.builder.base import DLJob
from dlrover.python.unified.api.builder.rl import RLJob
from dlrover.python.unified.common.enums import RLRoleType
import dlrover.python.unified.api.builder.base as base

job = DLJobBuilder().device_type("CPU").train("test::main").nnodes(2).nproc_per_node(2).end().build()
workload = job.workloads["ELASTIC"]
print(type(job) is DLJob, workload.backend, workload.entry_point, workload.total, workload.resource.accelerator)
base.submit = lambda config, blocking: print(config.job_name, config.master_cpu, config.master_mem, blocking)
job.submit("set_name", master_cpu=8)
"""


def test_a_script_is_not_changed():
    """Each import path of the builder is there, twice installed or once; `submit` can be replaced in the module."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True elastic test.main 4 1.0", "set_name 8 4096 True"]


def test_an_installed_package_stays_importable(tmp_path):
    """Only the modules of the builder are replaced."""
    for folder in ("dlrover", "dlrover/python", "dlrover/python/common"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "dlrover/python/common/log.py").write_text("default_logger = 'theirs'\n")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom rallypoint.compat.dlrover import install\ninstall()\n"
        "from dlrover.python.common.log import default_logger\n"
        "from dlrover.python.unified.api.builder import DLJobBuilder\nprint(default_logger, DLJobBuilder.__module__)"
    )

    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["theirs", "rallypoint.compat.dlrover.builder"]


def test_names_are_those_that_were_written():
    """Roles, collocations and variables of the built job; ours are lower case."""
    job = (
        RLJobBuilder()
        .node_num(2)
        .device_per_node(4)
        .config({"k": "v"})
        .global_env({"e0": "v0"})
        .trainer("m0.c0")
        .actor("m1.c1")
        .total(4)
        .per_group(4)
        .env({"e1": "v1"})
        .rollout("m2.c2")
        .total(4)
        .per_group(4)
        .with_collocation("Actor", "ROLLOUT")
        .build()
    )

    assert (job.node_num, job.device_per_node, job.device_type) == (2, 4, "GPU")
    assert (job.config, job.env) == ({"k": "v"}, {"e0": "v0"})
    assert list(job.workloads) == ["TRAINER", "ACTOR", "ROLLOUT"]
    assert job.collocations == [{"ACTOR", "ROLLOUT"}]
    actor = job.get_workload("ACTOR")
    assert (actor.group, actor.resource.accelerator, actor.total, actor.envs) == ("collocation_0", 0.5, 4, {"e1": "v1"})
    assert [role.name for role in load_job(job.job.to_document()).roles] == ["trainer", "actor", "rollout"]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: DLJobBuilder().build(), id="no role"),
        pytest.param(lambda: DLJobBuilder().run("m.f"), id="no name"),
        pytest.param(lambda: DLJobBuilder().by_dlrover_run_cmd("mpirun x.py"), id="another launcher"),
        pytest.param(lambda: RLJobBuilder().trainer("m.t").build(), id="no actor"),
    ],
)
def test_errors_are_those_that_scripts_catch(build):
    """pydantic's, and so a ValueError."""
    with pytest.raises(ValidationError):
        build()


def test_a_command_line_under_their_names():
    """The entrypoint is one text; a check is on where it is asked for."""
    job = DLJobBuilder().by_dlrover_run_cmd("dlrover-run --nnodes=2 --nproc_per_node=2 --node_check run.py --test 0").build()

    workload = job.workloads["ELASTIC"]
    assert (job.node_num, job.device_per_node, workload.total) == (2, 2, 4)
    assert (workload.entry_point, workload.comm_pre_check) == ("run.py --test 0", True)


def test_calls_without_a_meaning_here_are_accepted():
    """What DLRover stores and never reads, and what only Ray reads."""
    role = DLJobBuilder().as_task_stream().role("a").run("m.f").sub_stage([1]).disable_ray_auto_visible_device()

    job = role.skip_node_check().no_setup_process_group().train("m.g").build()

    assert job.workloads["a"].envs["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "true"
    assert job.workloads["ELASTIC"].comm_auto_setup_process_group is False


def test_installing_leaves_modules_of_ours_alone():
    """The packages that stand for DLRover's folders are new ones."""
    before = dict(sys.modules)
    try:
        install()
        assert isinstance(sys.modules["dlrover.python.unified.api.builder"], types.ModuleType)
        assert sys.modules["rallypoint.compat.dlrover.builder"] is before["rallypoint.compat.dlrover.builder"]
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
