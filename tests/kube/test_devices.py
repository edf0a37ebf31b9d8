"""What a job's devices are called in a cluster."""

from __future__ import annotations

import pytest

from rallypoint.backends.contract import SubmitError
from tests.kube.manifests import blueprint_of, trainer_of


@pytest.mark.argument("accelerator")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        pytest.param({}, "nvidia.com/gpu", id="NVIDIA's, unless something else is said"),
        pytest.param({"accelerator": "ascend-npu"}, "huawei.com/Ascend910", id="Ascend's"),
        pytest.param({"annotations": {"rallypoint.dev/accelerator": "ascend-npu"}}, "huawei.com/Ascend910", id="by annotation"),
    ],
)
def test_devices_are_asked_for_by_the_name_of_their_kind(fields, name):
    """The device plugin of that kind hands them out."""
    resources = trainer_of(**fields, resources={"gpus": 2})["resources"]

    assert (resources["requests"][name], resources["limits"][name]) == ("2", "2")


def test_a_name_that_is_given_wins():
    """A cluster may have another plugin."""
    resources = trainer_of(accelerator="ascend-npu", resources={"gpus": 2, "gpu_resource": "huawei.com/Ascend310"})["resources"]

    assert resources["limits"]["huawei.com/Ascend310"] == "2"


def test_a_job_of_cpus_has_no_devices():
    """It would wait for some in vain."""
    with pytest.raises(
        SubmitError,
        match="resources\\.gpus: 2 is not allowed; expected 0 with accelerator cpu",
    ):
        blueprint_of(accelerator="cpu", resources={"gpus": 2})
