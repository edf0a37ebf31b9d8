"""Descriptions of roles and other modules that scripts of DLRover's builder import beside it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from rallypoint.compat.dlrover.builder import DLJobBuilder
from rallypoint.compat.dlrover.config_util import args_2_omega_conf, convert_str_values, omega_conf_2_args
from rallypoint.compat.dlrover.enums import WorkloadEntrypointType
from rallypoint.compat.dlrover.workload_desc import (
    BaseWorkloadDesc,
    ElasticWorkloadDesc,
    ResourceDesc,
    SimpleWorkloadDesc,
    get_entrypoint_type,
)

SCRIPT = """
from rallypoint.compat.dlrover import install
install()
install()
from dlrover.python.common.log import default_logger
from dlrover.python.unified.common.enums import (
    ExecutionResultType, MasterStage, MasterStateBackendType, WorkloadEntrypointType,
)
from dlrover.python.unified.common.workload_desc import (
    ElasticWorkloadDesc, ResourceDesc, SimpleWorkloadDesc, get_entrypoint_type,
)
from dlrover.python.unified.util.config_util import args_2_omega_conf
print(default_logger.name, SimpleWorkloadDesc(entrypoint="a::b").entry_point, get_entrypoint_type("train.py").value)
"""


def test_the_modules_beside_the_builder_are_importable():
    """All names that DLRover's tests of its builder import."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout.split() == ["rallypoint.compat.dlrover", "a.b", "PY_CMD"]


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("pkg.mod.run", WorkloadEntrypointType.MODULE_FUNC),
        ("pkg.mod:run", WorkloadEntrypointType.MODULE_FUNC),
        ("./train.py --lr a::b", WorkloadEntrypointType.PY_CMD),
        ("-m pkg.train", WorkloadEntrypointType.PY_CMD),
        ("train", None),
        ("", None),
        ("python train.py", None),
        ("'", None),
    ],
)
def test_the_kind_of_an_entrypoint(entry, kind):
    """What the builder would run; None for what it would reject."""
    assert get_entrypoint_type(entry) is kind


def test_a_description_has_the_aliases_of_dlrover():
    """Equal values under two names are one value; a script's arguments keep their colons."""
    aliases: dict[str, Any] = {
        "entrypoint": "x.py a::b",
        "num": 4,
        "env": {"A": "1"},
        "res": {"gpu": 0.5, "acc": 0.5, "mem": 8},
    }

    made = SimpleWorkloadDesc(per_group=2, **aliases)

    assert (made.backend, made.entry_point, made.total, made.envs) == ("simple", "x.py a::b", 4, {"A": "1"})
    assert (made.resource.accelerator, made.resource.memory) == (0.5, 8)
    assert made.entry_point_type is WorkloadEntrypointType.PY_CMD


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({"entry_point": "train"}, "'train' is not allowed; expected a function or class", id="entrypoint"),
        pytest.param({"resource": {}}, "Resource must not be empty; expected one of cpu, memory", id="empty"),
        pytest.param({"resource": {"cpu": float("nan")}}, "finite number", id="NaN"),
        pytest.param(
            {"resource": {"gpu": 2, "acc": 1}},
            "acc: 1 is not allowed; expected 2, because the field accelerator and its aliases",
            id="two values",
        ),
        pytest.param({"total": 5, "per_group": 3}, "a number divisible by per_group 3", id="sizes"),
        pytest.param({"total": -1}, "total", id="negative"),
        pytest.param({"totl": 1}, "totl", id="unknown"),
        pytest.param(
            {"rank_based_gpu_selection": True},
            "rank_based_gpu_selection: True is allowed only if per_group",
            id="one in a group",
        ),
    ],
)
def test_a_wrong_description_is_a_validation_error(fields, told):
    """As in DLRover: pydantic's error, which names the field."""
    with pytest.raises(ValidationError, match=told):
        SimpleWorkloadDesc(**{"entry_point": "m.f", **fields})


def test_a_built_job_has_descriptions():
    """The workloads of a built job are of these classes, and frozen."""
    job = DLJobBuilder().device_type("CPU").train("m.f").nnodes(1).nproc_per_node(2).role("judge").run("m.g").build()

    elastic, simple = job.workloads["ELASTIC"], job.workloads["judge"]
    assert isinstance(elastic, ElasticWorkloadDesc)
    assert isinstance(simple, SimpleWorkloadDesc)
    assert isinstance(simple, BaseWorkloadDesc)
    assert simple.resource == ResourceDesc(accelerator=1)
    with pytest.raises(ValidationError, match="frozen"):
        simple.__setattr__("total", 2)


def test_configuration_from_arguments():
    """Parsed arguments become a configuration and back; texts in it become None and numbers."""
    parsed = argparse.Namespace(lr="0.1", steps="12", name="None", nested=["3", {"a": "1e-3"}, "x"], kept=True)

    config = args_2_omega_conf(parsed)
    convert_str_values(config)

    assert OmegaConf.to_container(config) == {
        "lr": 0.1,
        "steps": 12,
        "name": None,
        "nested": [3, {"a": 0.001}, "x"],
        "kept": True,
    }
    assert omega_conf_2_args(args_2_omega_conf(parsed)).steps == "12"
    texts = OmegaConf.create({"a": "None", "b": "1"})
    convert_str_values(texts, False, False)
    assert texts == {"a": "None", "b": "1"}
