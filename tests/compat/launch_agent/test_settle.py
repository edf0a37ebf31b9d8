"""From a config to one agent of a run: what is checked, where nodes meet, and what falls back."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent import LaunchConfig, Std
from rallypoint.agent.options import Meeting
from rallypoint.compat.launch_agent.settle import Entrypoint, EtcdPlace, Settled, lay_down, name_of, read_entrypoint, settle
from rallypoint.wire.plan import Entry

TARGET = Entrypoint(entry=Entry.COMMAND, entrypoint="true", args=(), name="true")


def settled(*nodes: int, has_etcd: bool = False, env: dict[str, str] | None = None, **fields: Any) -> Settled:
    low, high = nodes or (1, 1)
    config = LaunchConfig(low, high, fields.pop("nproc_per_node", 1), **{"run_id": "job", **fields})
    return settle(config, TARGET, env or {}, has_etcd=has_etcd)


# --- Where nodes meet ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "has_etcd", "note"),
    [
        pytest.param({}, False, "the Python module etcd is not installed", id="etcd-without-module"),
        pytest.param({}, True, "rdzv_endpoint is not set", id="etcd-without-endpoint"),
        pytest.param({"rdzv_backend": "etcd-v2"}, False, "etcd-v2: the Python module", id="etcd-v2"),
        pytest.param({"rdzv_backend": "zeus-adapter"}, True, "custom backends are not supported", id="zeus-adapter"),
    ],
)
def test_what_is_not_there_is_replaced_with_a_word(fields: dict[str, Any], has_etcd: bool, note: str) -> None:
    """The contract's own default does not run on a bare install."""
    found = settled(**fields, has_etcd=has_etcd)

    assert (found.options.meeting, found.etcd) == (None, None)
    assert len(found.notes) == 1
    assert note in found.notes[0]
    assert "using the built-in rendezvous instead" in found.notes[0]


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_etcd_is_used_where_it_is(backend: str) -> None:
    """With its client and an address; the key is that of the run."""
    configs = {"protocol": "https", "cacert": "/ca", "ssl_cert": "/c", "ssl_cert_key": "/k", "etcd_prefix": "team"}

    found = settled(2, 4, has_etcd=True, rdzv_backend=backend, rdzv_endpoint="e", rdzv_configs=configs)

    key = "/team/job/coordinator"
    place = EtcdPlace(host="e", port=2379, key=key, protocol="https", cacert="/ca", cert=("/c", "/k"))
    assert (found.etcd, found.options.meeting, found.notes) == (place, None, ())


@pytest.mark.parametrize(
    ("nodes", "fields", "meeting", "slot"),
    [
        pytest.param((1, 1), {"rdzv_backend": "c10d"}, None, -1, id="alone"),
        pytest.param((2, 4), {"rdzv_endpoint": "h"}, Meeting(host="h", port=29400), -1, id="c10d-port"),
        pytest.param((2, 4), {"rdzv_endpoint": "[::1]:7"}, Meeting(host="::1", port=7), -1, id="ipv6"),
        pytest.param(
            (2, 4),
            {"rdzv_endpoint": "h:1", "rdzv_configs": {"is_host": "false"}},
            Meeting(host="h", port=1, may_host=False),
            -1,
            id="not-the-host",
        ),
        pytest.param(
            (2, 2),
            {"rdzv_backend": "static", "rdzv_endpoint": "h:1", "rdzv_configs": {"rank": 1}},
            Meeting(host="h", port=1, may_host=False),
            1,
            id="static-rank-1",
        ),
        pytest.param((1, 1), {"rdzv_backend": "static", "rdzv_endpoint": "h:1"}, None, -1, id="static-alone"),
    ],
)
def test_where_nodes_meet(nodes: tuple[int, int], fields: dict[str, Any], meeting: Meeting | None, slot: int) -> None:
    """As `rallypoint-agent run` does."""
    found = settled(*nodes, **{"rdzv_backend": "c10d", **fields})

    assert (found.options.meeting, found.options.node) == (meeting, slot)


# --- What is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "fields", "port"),
    [
        pytest.param((1, 1), {"rdzv_backend": "static", "rdzv_endpoint": "h:1"}, "1", id="alone"),
        pytest.param((2, 2), {"rdzv_backend": "static", "rdzv_endpoint": "h:1", "rdzv_configs": {"rank": 1}}, "1", id="two"),
        pytest.param((1, 1), {"rdzv_backend": "c10d", "rdzv_endpoint": "h:1"}, None, id="another backend"),
    ],
)
def test_the_static_endpoint_is_the_stores(nodes: tuple[int, int], fields: dict[str, Any], port: str | None) -> None:
    """As in torch, whose workers find it in MASTER_ADDR and MASTER_PORT."""
    master = settled(*nodes, **fields).options.master

    assert (master and master.environment) == (port and {"MASTER_ADDR": "h", "MASTER_PORT": port})


@pytest.mark.parametrize(
    ("nodes", "fields", "words"),
    [
        pytest.param((1, 1), {"rdzv_backend": "static"}, "rdzv_endpoint: is missing", id="static-without-endpoint"),
        pytest.param((1, 1), {"rdzv_backend": "static", "rdzv_endpoint": "h"}, "'h' has no port", id="static-without-port"),
        pytest.param(
            (2, 2),
            {"rdzv_backend": "static", "rdzv_endpoint": "h:1"},
            "None is not allowed; expected 0 to 1",
            id="rank",
        ),
        pytest.param((1, 2), {"rdzv_backend": "c10d"}, "rdzv_endpoint: is required for max_nodes 2", id="nowhere-to-meet"),
        pytest.param((1, 1), {"rdzv_endpoint": "h:0"}, "port from 1 to 65535", id="port-0"),
        pytest.param(
            (1, 1),
            {"run_id": 5},
            "run_id: 5 is not allowed; expected a string",
            id="run-id",
        ),
        pytest.param((1, 1), {"run_id": "a\nb"}, "run_id: 'a\\nb' is not allowed", id="run-id-of-two-lines"),
        pytest.param((1, 1), {"role": ""}, "role: '' is not allowed", id="no-role"),
        pytest.param((1, 1), {"rdzv_endpoint": 29400}, "rdzv_endpoint: 29400 is not allowed", id="endpoint"),
        pytest.param((1, 1), {"rdzv_backend": None}, "rdzv_backend: None is not allowed", id="no-backend"),
        pytest.param(
            (1, 1),
            {"rdzv_configs": None},
            "rdzv_configs: None is not allowed; expected a dict",
            id="configs",
        ),
        pytest.param((1, 1), {"rdzv_configs": {1: 2}}, "rdzv_configs: {1: 2, 'timeout': 900} is not allowed", id="config-keys"),
        pytest.param((1, 1), {"rdzv_timeout": float("nan")}, "rdzv_timeout: nan is not allowed", id="timeout-nan"),
        pytest.param((1, 1), {"rdzv_timeout": -2}, "rdzv_timeout: -2 is not allowed", id="timeout-negative"),
        pytest.param((1, 1), {"monitor_interval": float("nan")}, "monitor_interval: nan is not allowed", id="interval-nan"),
        pytest.param((1, 1), {"monitor_interval": "30"}, "monitor_interval: '30' is not allowed", id="interval-text"),
        pytest.param(
            (1, 1),
            {"max_restarts": 1.0},
            "max_restarts: 1.0 is not allowed; expected an integer",
            id="restarts-float",
        ),
        pytest.param((1, 1), {"start_method": None}, "start_method: None is not allowed", id="no-method"),
        pytest.param(
            (1, 1),
            {"log_dir": ""},
            "log_dir: '' is not allowed; expected None or a non-empty path",
            id="no-folder",
        ),
        pytest.param(
            (1, 1),
            {"metrics_cfg": "console"},
            "metrics_cfg: 'console' is not allowed; expected a dict",
            id="metrics",
        ),
        pytest.param((1, 1), {"log_line_prefix_template": 1}, "log_line_prefix_template: 1 is not allowed", id="template"),
        pytest.param((1, 1), {"local_addr": ""}, "local_addr: '' is not allowed", id="no-address"),
        pytest.param((1, 1), {"signals_to_handle": ["SIGTERM"]}, "signals_to_handle: ['SIGTERM'] is not", id="signals"),
        pytest.param((1, 1), {"virtual_local_rank": 1}, "virtual_local_rank: 1 is not allowed", id="virtual"),
        pytest.param((1, 1), {"shutdown_timeout": float("inf")}, "shutdown_timeout: inf is not allowed", id="endless-grace"),
        pytest.param((1, 1), {"numa_options": 5}, "numa_options: '5' is not allowed", id="numa-type"),
        pytest.param((1, 1), {"tee": "ALL"}, "tee: 'ALL' is not allowed", id="std-text"),
        pytest.param(("1", 1), {}, "min_nodes: '1' is not allowed", id="nodes-text"),
        pytest.param((1, None), {}, "max_nodes: None is not allowed", id="no-nodes"),
        pytest.param(
            (2, 1),
            {},
            "2, 1 is not allowed; expected 1 <= min_nodes <= max_nodes",
            id="nodes",
        ),
        pytest.param((1, 1), {"nproc_per_node": 0}, "nproc_per_node: 0 is not allowed", id="no-workers"),
        pytest.param((1, 1), {"nproc_per_node": True}, "nproc_per_node: True", id="a-bool-is-no-number"),
        pytest.param((1, 1), {"max_restarts": -1}, "max_restarts: -1 is not allowed", id="restarts"),
        pytest.param((1, 1), {"monitor_interval": 0}, "monitor_interval: 0 is not allowed", id="no-interval"),
        pytest.param(
            (1, 1),
            {"rdzv_backend": "zk"},
            "rdzv_backend: 'zk' is not allowed; expected one of",
            id="backend",
        ),
        pytest.param(
            (1, 1),
            {"start_method": "exec"},
            "start_method: 'exec' is not allowed; expected one of spawn",
            id="method",
        ),
        pytest.param((1, 1), {"rdzv_configs": {"tiemout": 1}}, "rdzv_configs: key 'tiemout' is not allowed", id="config-key"),
        pytest.param((1, 1), {"rdzv_configs": {"timeout": "soon"}}, "rdzv_configs['timeout']: 'soon'", id="config-value"),
        pytest.param((1, 1), {"shutdown_timeout": -1}, "shutdown_timeout: -1 is not allowed", id="grace"),
        pytest.param((1, 1), {"redirects": 4}, "redirects: 4 is not allowed", id="std"),
        pytest.param((1, 1), {"tee": {-1: 1}}, "tee: key -1 is not allowed", id="std-rank"),
        pytest.param((1, 1), {"event_log_handler": "scuba"}, "event_log_handler: 'scuba' is not supported", id="handler"),
        pytest.param((1, 1), {"logs_specs": object()}, "see log_dir, redirects and tee", id="logs-specs"),
        pytest.param(
            (1, 1), {"duplicate_stdout_filters": "loss"}, "duplicate_stdout_filters: 'loss' is not allowed", id="filters"
        ),
        pytest.param((1, 1), {"numa_options": "everywhere"}, "numa_options: 'everywhere' is not allowed", id="numa"),
        pytest.param((1, 1), {"signals_to_handle": "SIGTERM,SIGKILL"}, "'SIGKILL' is not allowed", id="signal"),
    ],
)
def test_what_cannot_be_is_an_error(nodes: tuple[int, int], fields: dict[str, Any], words: str) -> None:
    """It names the field, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"not allowed|is missing|has no port|is required|not supported") as caught:
        settled(*nodes, **fields)

    assert words in str(caught.value)


# --- What reaches the agent ------------------------------------------------------------------------------------------------


def test_limits_reach_the_plan() -> None:
    """`join_timeout` is more exact than `timeout`; torch's own timings are named and do nothing."""
    configs = {
        "timeout": 5,
        "join_timeout": "6",
        "last_call_timeout": 1,
        "node_lease": 2,
        "fence_timeout": 3,
        "read_timeout": 9,
    }

    found = settled(rdzv_backend="c10d", rdzv_configs=configs, monitor_interval=4, max_restarts=7)

    plan = found.options.plan
    assert (
        plan.rendezvous.join_timeout,
        plan.rendezvous.last_call,
        plan.rendezvous.node_lease,
        plan.rendezvous.fence_timeout,
    ) == (6.0, 1.0, 2.0, 3.0)
    assert (plan.rendezvous.report_interval, plan.budgets.max_restarts, plan.budgets.node_replacements, plan.name) == (
        4.0,
        7,
        0,
        "job",
    )
    assert found.notes == ("rdzv_configs: read_timeout: ignored; only torch's own rendezvous uses it",)


def test_torchs_keep_alive_is_a_lease() -> None:
    """So many silent intervals are one lease; ours wins where both are said."""
    found = [
        settled(rdzv_configs=c).options.plan.rendezvous.node_lease for c in ({"keep_alive_interval": 2}, {"node_lease": 4})
    ]

    assert found == [6.0, 4.0]


def test_newer_fields_reach_the_plan() -> None:
    """NUMA options in torch's own form or as its word."""
    numa = pytest.importorskip("torch.numa.binding")
    told = numa.NumaOptions(affinity_mode=numa.AffinityMode.CORE_COMPLEX)

    plan = settled(virtual_local_rank=True, numa_options=told).options.plan

    assert (plan.workers.virtual_local_rank, plan.workers.numa_binding) == (True, "core-complex")
    assert settled(numa_options="node").options.plan.workers.numa_binding == "node"
    assert settled(duplicate_stderr_filters=["loss"]).options.streams.duplicate_err == ("loss",)


@pytest.mark.parametrize(
    ("chosen", "method"),
    [pytest.param(None, "", id="unset"), *(pytest.param(m, m, id=m) for m in ("spawn", "fork", "forkserver"))],
)
def test_a_start_method_is_kept_to_where_somebody_chose_it(chosen: str | None, method: str) -> None:
    """Unset, the agent takes the quickest that works."""
    found = settled() if chosen is None else settled(start_method=chosen)

    assert found.options.plan.workers.start_method == method


def test_a_timeout_that_is_set_later_counts() -> None:
    """Fields of a config may be set after it was made."""
    config = LaunchConfig(1, 1, 1, run_id="job", rdzv_backend="c10d")
    config.rdzv_timeout = 12

    assert settle(config, TARGET, {}, has_etcd=False).options.plan.rendezvous.join_timeout == 12.0


@pytest.mark.parametrize(
    ("field", "env", "grace"),
    [
        pytest.param(None, {}, 30.0, id="torchs-default"),
        pytest.param(None, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, 7.0, id="environment"),
        pytest.param(2, {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, 2.0, id="field"),
    ],
)
def test_the_grace_has_an_order(field: int | None, env: dict[str, str], grace: float) -> None:
    """The field, then torch's variable, then its default."""
    assert settled(shutdown_timeout=field, env=env).options.plan.workers.stop_grace == grace


def test_streams_are_read_in_every_form() -> None:
    """Ours, torch's, and by local rank."""
    torchs = pytest.importorskip("torch.distributed.elastic.multiprocessing.api").Std

    ours = settled(redirects=Std.OUT, tee={1: Std.ALL}).options.streams
    theirs = settled(redirects=torchs.OUT, tee={1: torchs.ALL}).options.streams

    assert ours == theirs
    assert (ours.filed(0), ours.filed(1), ours.teed(0), ours.teed(1)) == (1, 3, 0, 3)


@pytest.mark.parametrize(
    ("text", "value"), [pytest.param("3", Std.ALL, id="all"), pytest.param("0:1,1:2", {0: Std.OUT, 1: Std.ERR}, id="by-rank")]
)
def test_std_is_read_from_words(text: str, value: object) -> None:
    """As torch's."""
    assert Std.from_str(text) == value


def test_wrong_words_are_no_std() -> None:
    """Told as they were written."""
    with pytest.raises(ValueError, match="'0:9' is not allowed"):
        Std.from_str("0:9")


# --- What is run -----------------------------------------------------------------------------------------------------------


class Callable0:
    """Has no `__name__`."""

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("entrypoint", "args", "name"),
    [
        pytest.param(None, (), "", id="none"),
        pytest.param(settled, (), "settled", id="function"),
        pytest.param(Callable0(), (), "Callable0", id="object"),
        pytest.param("prog", ("x",), "prog", id="program"),
        pytest.param(sys.executable, ("-u", "train.py", "--x"), "train.py", id="interpreter"),
        pytest.param(sys.executable, ("-u",), "", id="interpreter-alone"),
    ],
)
def test_names_for_people(entrypoint: Any, args: tuple[str, ...], name: str) -> None:
    """As torch calls an entrypoint in its messages."""
    assert name_of(entrypoint, args) == name


@pytest.mark.parametrize(
    ("args", "entry", "entrypoint", "rest"),
    [
        pytest.param(("-u", "t.py", "-x"), Entry.SCRIPT, "t.py", ("-x",), id="script"),
        pytest.param(("-u", "-m", "mod", "1"), Entry.MODULE, "mod", ("1",), id="module"),
        pytest.param(("-c", "pass"), Entry.COMMAND, sys.executable, ("-c", "pass"), id="code"),
        pytest.param(("-O", "t.py"), Entry.COMMAND, sys.executable, ("-O", "t.py"), id="flags-of-its-own"),
    ],
)
def test_a_python_that_runs_a_script_is_told_apart(
    args: tuple[str, ...], entry: Entry, entrypoint: str, rest: tuple[str, ...], tmp_path: Path
) -> None:
    """So that it may start from a warm interpreter; every other command line is left as it is."""
    found = read_entrypoint(sys.executable, args, tmp_path)

    assert (found.entry, found.entrypoint, found.args) == (entry, entrypoint, rest)


def test_no_entrypoint_cannot_be_run(tmp_path: Path) -> None:
    """It has a name, and that is all."""
    with pytest.raises(ValueError, match="entrypoint: None is not allowed"):
        read_entrypoint(None, (), tmp_path)


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match=r"entrypoint: settled or one of its args cannot be pickled: TypeError"):
        lay_down(tmp_path, settled, [threading.Lock()], "settled")


def test_what_is_laid_down_is_ours_alone(tmp_path: Path) -> None:
    """Whoever could write it could run code in the workers."""
    lay_down(tmp_path, lambda: 1, [], "<lambda>")

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
