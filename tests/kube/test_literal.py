"""Texts of a job file reach the process as they were written, in pods of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.manifests.literal import literal
from rallypoint.job import load_job
from rallypoint.wire.plan import Kind
from tests.emulator.kubelet.expansion import expanded
from tests.kube.manifests import IMAGE

ODD = "a$$b $(POD_IP) $(A $$(NAME) $$$$(X) $"

ELASTIC: dict[str, Any] = {"launch": "elastic", "nodes": 2, "image": IMAGE}
SIMPLE: dict[str, Any] = {"launch": "simple", "image": IMAGE, "instance_resources": {"gpus": 0}}


class _Every(Mapping[str, str]):
    """Variables of a container that has one of every name."""

    def __getitem__(self, name: str) -> str:
        return f"<{name}>"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def containers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the containers in a manifest."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from inner if key == "containers" else containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from containers(inner)


def of(container: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a container, as the process gets them."""
    variables = {one["name"]: expanded(one["value"], _Every()) for one in container["env"] if "value" in one}
    return [expanded(word, _Every()) for word in container.get("command", ())], variables


def made(kind: Kind, roles: dict[str, Any], **fields: Any) -> list[tuple[list[str], dict[str, str]]]:
    backend = KubernetesBackend(Access(namespace="team-a"))
    blueprint = backend.plan_as(load_job({"name": "rl", "roles": roles, **fields}, based=False), kind)
    return [of(container) for container in containers(list(blueprint.objects)) if container.get("env")]


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        pytest.param(Kind.PODS, SIMPLE, id="pods, simple"),
        pytest.param(Kind.APPWRAPPER, SIMPLE, id="appwrapper, simple"),
        pytest.param(Kind.APPWRAPPER, ELASTIC, id="appwrapper, elastic"),
        pytest.param(Kind.PYTORCHJOB, ELASTIC, id="pytorchjob"),
    ],
)
@pytest.mark.parametrize("setup", [(), (f"echo '{ODD}'",)], ids=["no setup", "setup"])
def test_values_are_what_the_job_says(kind, role, setup) -> None:
    """Of `env`, `args`, `entrypoint`, `python`, `setup_commands` and `checkpoint_dir`."""
    fields = {
        "entrypoint": {"script": f"{ODD}.py"},
        "args": [ODD, "$(date)"],
        "env": {"PRICE": ODD},
        "python": [f"/{ODD}/python"],
        "setup_commands": list(setup),
        "checkpoint_dir": f"/{ODD}",
    }
    found = [one for one in made(kind, {"a": {**role, **fields}}) if "PRICE" in one[1]]

    assert found
    for command, variables in found:
        assert (variables["PRICE"], variables["RALLYPOINT_CHECKPOINT_DIR"]) == (ODD, f"/{ODD}")
        assert command[-3:] == [f"{ODD}.py", ODD, "$(date)"]
        assert f"/{ODD}/python" in command
        assert not setup or any(setup[0] in word for word in command)


@pytest.mark.parametrize("kind", [Kind.PODS, Kind.APPWRAPPER])
def test_our_own_processes_run_the_interpreter_of_the_job(kind) -> None:
    """Agents, coordinators and the processes that end servers."""
    python = f"/{ODD}/python"
    roles = {"a": ELASTIC, "b": SIMPLE, "c": {**SIMPLE, "driver": False}}

    found = made(kind, {name: {**role, "entrypoint": "a.py", "python": [python]} for name, role in roles.items()})

    assert all(python in command for command, _ in found)
    assert len(found) >= len(roles)


@given(st.text(alphabet="$()AB ", max_size=12))
def test_a_literal_text_is_never_changed(text) -> None:
    """Whatever variables a container has."""
    assert expanded(literal(text), _Every()) == text
