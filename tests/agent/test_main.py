"""The command line of what supervisors start: where it lives must be said, once."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rallypoint.agent.coordinator.namespaced import Namespaced
from rallypoint.agent.main import build_parser, main, uncollected

COMMON = ["--plan", "p", "--secret-file", "s", "--attempt", "1"]
COORDINATOR = ["coordinator", *COMMON, "--uid", "u", "--term", "1"]
NODE = ["node", *COMMON, "--node", "0", "--incarnation", "1", "--dir", "d"]


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is said of a wrong command line, which ends with exit code 2 in either way."""
    try:
        code = main(args)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param([], "one of the arguments --status-file --status-configmap is required", id="nowhere"),
        pytest.param(
            ["--status-configmap", "lab/s"],
            "flag --status-dir: is missing; the flag --status-configmap requires it",
            id="no folder",
        ),
        pytest.param(
            ["--status-file", "s"], "flag --endpoint-file: is missing; the flag --status-file requires it", id="no endpoint"
        ),
        pytest.param(
            ["--status-file", "s", "--endpoint-file", "e", "--status-dir", "d"],
            "flag --status-dir: is not allowed with the flag --status-file",
            id="both ways",
        ),
        pytest.param(
            ["--status-configmap", "lab/s", "--status-dir", "d", "--record-file", "r"],
            "flag --record-file: is not allowed with the flag --status-configmap",
            id="a record elsewhere",
        ),
        pytest.param(
            ["--status-configmap", "lab/s", "--status-dir", "d", "--progress-period", "5"],
            "flag --progress-period: is not allowed with the flag --status-configmap",
            id="a period of its own",
        ),
        pytest.param(
            ["--status-file", "s", "--endpoint-file", "e", "--progress-period", "nan"],
            "'nan' is not allowed; expected a number of seconds, 0 or more",
            id="a period that is no number",
        ),
        pytest.param(
            ["--status-configmap", "s"],
            "name of a ConfigMap: 's' is not allowed; expected NAMESPACE/NAME",
            id="no namespace",
        ),
    ],
)
def test_a_coordinator_lives_in_one_place(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a folder or in a cluster; what is missing or too much is named."""
    assert message in refused([*COORDINATOR, *args], capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param([], "one of the arguments --endpoint-file --listen is required", id="nowhere"),
        pytest.param(["--endpoint-file", "e", "--listen", "1"], "not allowed with argument", id="both ways"),
        pytest.param(
            ["--listen", "0"],
            "port '0' is not allowed; expected 1 to 65535",
            id="any port",
        ),
        pytest.param(["--listen", "65536"], "'65536' is not allowed", id="no port"),
        pytest.param(["--listen", "http"], "'http' is not allowed", id="a name"),
        pytest.param(["--listen", "1", "--output", "console"], "invalid choice: 'console'", id="another output"),
    ],
)
def test_an_agent_finds_its_coordinator_in_one_way(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It looks, or it listens."""
    assert message in refused([*NODE, *args], capsys)


@pytest.mark.parametrize(
    ("args", "command", "message"),
    [
        pytest.param(["run", "--bogus", "3", "t.py"], "rallypoint-agent run", "unrecognized arguments: --bogus", id="a flag"),
        pytest.param(["run"], "rallypoint-agent run", "are required: training_script", id="no script"),
        pytest.param(["run", "--max-restarts", "x", "t.py"], "rallypoint-agent run", "invalid int value: 'x'", id="no number"),
        pytest.param(["run", "--logs-specs", "x", "t.py"], "rallypoint-agent run", "--logs-specs: not supported", id="refused"),
        pytest.param([*NODE, "--listen", "1", "--bogus"], "rallypoint-agent node", "unrecognized", id="a node's"),
        pytest.param(["fly"], "rallypoint-agent", "invalid choice: 'fly'", id="no command"),
    ],
)
def test_wrong_usage_is_one_sentence(args: list[str], command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And where to read more; no screen of usage before it."""
    sentence, hint = refused(args, capsys).splitlines()

    assert sentence.startswith(f"{command}: error: ")
    assert message in sentence
    assert hint == f"try '{command} --help'"


def test_a_log_level_that_is_none_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable, the value and what is allowed; no traceback."""
    monkeypatch.setenv("RALLYPOINT_LOG_LEVEL", "loud")

    said = refused(["run", "t.py"], capsys)

    assert said.startswith("rallypoint-agent: environment variable RALLYPOINT_LOG_LEVEL 'loud': not allowed; expected DEBUG")


def test_what_a_pod_is_started_with_is_understood() -> None:
    """Also an address of IPv6."""
    node = build_parser().parse_args([*NODE, "--host", "fd00::5", "--listen", "29610", "--output", "pod"])
    cluster = ["--status-configmap", "lab/s", "--record-configmap", "lab/r", "--status-dir", "d", "--known-status", "k"]
    coordinator = build_parser().parse_args([*COORDINATOR, *cluster])

    assert (node.host, node.listen, node.output) == ("fd00::5", 29610, "pod")
    assert (coordinator.status_configmap, coordinator.record_configmap) == (
        Namespaced(namespace="lab", name="s"),
        Namespaced(namespace="lab", name="r"),
    )


@pytest.mark.parametrize("enabled", [pytest.param(True, id="on"), pytest.param(False, id="off")])
def test_the_collector_is_as_it_was_after_imports(enabled: bool) -> None:
    """Off meanwhile; and what there was by then is out of its sight."""
    frozen = gc.get_freeze_count()
    try:
        (gc.enable if enabled else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
        gc.enable()


def test_an_agent_imports_nothing_that_only_supervisors_need() -> None:
    """Whatever is imported before a worker starts is waited for; torch, HTTP and records are nothing to a node by itself."""
    code = "import sys; from rallypoint.agent import run; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "rallypoint.agent.node.agent" in told
    assert {"torch", "aiohttp", "grpc", "pydantic", "yaml", "rallypoint.supervision.record", "rallypoint.job"}.isdisjoint(told)
