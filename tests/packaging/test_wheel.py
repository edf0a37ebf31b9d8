from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile

import pytest

from tests.packaging.conftest import ROOT

#: Imports every module of the given rooms, then prints which of the unwanted came with them.
IMPORT_ROOMS = """
import importlib, pkgutil, sys

rooms, unwanted = {rooms!r}, {unwanted!r}
for room in rooms:
    package = importlib.import_module(f"rallypoint.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            # What adapts a trainer of somebody else's says what it needs.
            if module.name in {trainers!r} and "; pip install " in str(error):
                continue
            # What speaks to an API server is of the extra `kubernetes`, and what speaks to a Ray cluster of `ray`.
            if not any(part in module.name for part in (".kubernetes.", ".ray.")) or (
                error.name.partition(".")[0] not in ("aiohttp", "kubernetes", "ray")
            ):
                raise
print(sorted(name for name in unwanted if name in sys.modules))
"""

#: Modules of an extra of their own.
TRAINERS = ("rallypoint.training.huggingface", "rallypoint.training.lightning")

ABSENT = """
import importlib.util

print(sorted(name for name in {names!r} if importlib.util.find_spec(name)))
"""


def test_the_wheel_asks_for_nothing_without_an_extra(wheel):
    """A scheduler, a laptop and a training image each choose an extra; nothing is forced on all of them."""
    metadata = next(iter(importlib.metadata.distributions(path=[str(wheel)])))

    assert [line for line in metadata.requires or () if "extra ==" not in line] == []
    assert set(metadata.metadata.get_all("Provides-Extra") or ()) == {
        "agent",
        "airflow",
        "client",
        "demo",
        "dev",
        "fsspec",
        "huggingface",
        "kubernetes",
        "lightning",
        "ray",
        "tls",
    }


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    """What is in the tree is in the wheel, the mark of typed code included; tests and demos stay at home."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "rallypoint").rglob("*.py")} | {"rallypoint/py.typed"}

    assert packed >= here
    assert {name.split("/")[0] for name in packed} == {"rallypoint"}


def test_the_entry_points_are_those_that_people_and_airflow_look_for(wheel):
    """Two programs, and the provider and the plugin that Airflow discovers."""
    metadata = next(iter(importlib.metadata.distributions(path=[str(wheel)])))

    assert {(entry.group, entry.name) for entry in metadata.entry_points} == {
        ("console_scripts", "rallypoint"),
        ("console_scripts", "rallypoint-agent"),
        ("airflow.plugins", "rallypoint"),
        ("apache_airflow_provider", "provider_info"),
    }


def test_every_entry_point_loads(wheel):
    """Where everything is installed, each entry point leads to something that can be called."""
    metadata = next(iter(importlib.metadata.distributions(path=[str(wheel)])))
    for entry in metadata.entry_points:
        fields = (entry.name, entry.value, entry.group)
        load = f"from importlib.metadata import EntryPoint; assert callable(EntryPoint{fields!r}.load())"
        done = subprocess.run([sys.executable, "-c", load], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{entry.value}\n{done.stderr}"


def test_importing_the_package_imports_nothing_else(client):
    """`import rallypoint` adds one name to `sys.modules`: its own."""
    code = "import sys; before = set(sys.modules); import rallypoint; print(sorted(set(sys.modules) - before))"

    assert client.python(code).out == "['rallypoint']\n"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        pytest.param("client", ["airflow", "aiohttp", "torch"], id="client has neither Airflow nor torch"),
        pytest.param("pod", ["airflow", "pydantic", "yaml", "rich"], id="pod has neither Airflow nor pydantic"),
    ],
)
def test_the_bare_environments_are_bare(request, environment, names):
    """What an environment is said to lack cannot be found in it, or the other tests would prove nothing."""
    assert request.getfixturevalue(environment).python(ABSENT.format(names=names)).out == "[]\n"


def test_a_client_needs_neither_airflow_nor_torch(client):
    """Job files, supervision, backends and the command line work where only the client extra is installed."""
    code = IMPORT_ROOMS.format(
        rooms=["wire", "job", "supervision", "backends", "cli"], unwanted=["airflow", "torch"], trainers=TRAINERS
    )
    done = client.python(code)

    assert done.out == "[]\n", done.err


def test_a_pod_needs_neither_airflow_nor_pydantic(pod):
    """Agent and training helpers work in a training image."""
    rooms = ["wire", "supervision", "agent", "training"]
    done = pod.python(IMPORT_ROOMS.format(rooms=rooms, unwanted=["airflow", "pydantic"], trainers=TRAINERS))

    assert done.out == "[]\n", done.err


def test_the_agent_runs_without_torch_in_it(pod):
    """The node agent is small: what it imports to start does not bring torch, though torch is there."""
    done = pod.python("import sys, rallypoint.agent.main; print('torch' in sys.modules)")

    assert done.out == "False\n", done.err


@pytest.mark.parametrize(
    ("environment", "program"),
    [pytest.param("client", "rallypoint", id="for people"), pytest.param("pod", "rallypoint-agent", id="for pods")],
)
def test_the_programs_tell_how_they_are_used(request, environment, program):
    """`--help` of each program works where its extra alone is installed."""
    done = request.getfixturevalue(environment).run(program, "--help")

    assert (done.code, done.out.lower().startswith("usage")) == (0, True), done.err
