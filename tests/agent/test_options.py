"""torchrun's command line, as we read it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.devices import count_cpus, count_gpus
from rallypoint.agent.flags import REFUSED, add_run_flags
from rallypoint.agent.options import Meeting, RunOptions, parse_nnodes, read_options
from rallypoint.agent.signals import SIGNALS
from rallypoint.agent.workers.logs import Streams
from rallypoint.agent.workers.tee import DEFAULT_PREFIX
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.plan import Entry
from rallypoint.wire.sections import value_of

HERE = Meeting(host="h", port=1)


def read(line: str, **env: str) -> RunOptions:
    parser = RunParser()
    add_run_flags(parser, env)
    return read_options(parser.parse_args(line.split()), env)


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        pytest.param("t.py", "max_restarts", 3, id="three restarts by default, as dlrover-run's documentation has it"),
        pytest.param("--max-restarts 0 t.py", "max_restarts", 0, id="no restart, as torchrun's default"),
        pytest.param("t.py", "stop_grace", 30.0, id="torchrun's grace by default"),
        pytest.param("--shutdown-timeout 2 t.py", "stop_grace", 2.0, id="grace"),
        pytest.param("t.py", "exit_grace", 10.0, id="grace of a finished worker by default"),
        pytest.param("--exit-grace 0 t.py", "exit_grace", 0.0, id="no grace of a finished worker"),
        pytest.param("--nnodes 2:4 --rdzv-endpoint h:1 t.py", "max_nodes", 4, id="elastic"),
        pytest.param("--nnodes=3 --rdzv-endpoint h:1 t.py", "min_nodes", 3, id="fixed"),
        pytest.param("--nproc_per_node 4 t.py", "nproc_per_node", 4, id="spelled with underscores"),
        pytest.param("--nproc-per-node cpu t.py", "nproc_per_node", count_cpus(), id="one per CPU"),
        pytest.param("t.py --nnodes 5", "args", ("--nnodes", "5"), id="the script's own flags are its own"),
        pytest.param("-m pkg.train", "entry", Entry.MODULE, id="module"),
        pytest.param("--no-python bash", "entry", Entry.COMMAND, id="program"),
        pytest.param("--rdzv-conf join_timeout=5,last_call_timeout=2 t.py", "last_call", 2.0, id="last call"),
        pytest.param("--rdzv-conf timeout=5 t.py", "join_timeout", 5.0, id="torchrun's older name"),
        pytest.param("--rdzv-conf='join_timeout=5,last_call_timeout=2,timeout=5' t.py", "last_call", 2.0, id="single quotes"),
        pytest.param('--rdzv-conf "join_timeout=5" t.py', "join_timeout", 5.0, id="double quotes"),
        pytest.param("--rdzv-id run7 t.py", "name", "run7", id="id"),
        pytest.param("--monitor-interval 5 t.py", "report_interval", 5.0, id="period of reports"),
        pytest.param("t.py", "report_interval", 1.0, id="period of reports by default"),
        pytest.param("t.py", "start_method", "", id="no start method"),
        pytest.param("--start-method spawn t.py", "start_method", "spawn", id="said, though torchrun's default"),
        pytest.param("--standby 2 t.py", "standbys", 2, id="standbys"),
        pytest.param("--preload numpy,,pandas t.py", "preload", ("numpy", "pandas"), id="preload"),
        pytest.param("--event-log-handler null t.py", "role", "default", id="no events"),
        pytest.param("--virtual-local-rank t.py", "virtual_local_rank", True, id="virtual local rank"),
        pytest.param("--numa-binding core-complex t.py", "numa_binding", "core-complex", id="NUMA"),
        pytest.param("--numa_affinity t.py", "numa_binding", "node", id="NUMA, as dlrover-run calls it"),
        pytest.param("--nnodes 2:4 --node_unit 2 --rdzv-endpoint h:1 t.py", "node_unit", 2, id="node unit"),
        pytest.param(
            "--nnodes 2:4 --rdzv-conf node_unit=2 --rdzv-endpoint h:1 t.py", "node_unit", 2, id="node unit, as torch has it"
        ),
        pytest.param("--rdzv-conf lastcall_timeout=2 t.py", "last_call", 2.0, id="dlrover-run's last call"),
        pytest.param("--rdzv-conf last_call_timeout=0 t.py", "last_call", 0.0, id="no last call"),
        pytest.param("--rdzv-conf keep_alive_interval=2 t.py", "node_lease", 6.0, id="torchrun's lease"),
        pytest.param(
            "--rdzv-conf keep_alive_interval=2,keep_alive_max_attempt=5,node_lease=4 t.py", "node_lease", 4.0, id="our lease"
        ),
        pytest.param("--standalone --nnodes 1:4 t.py", "max_nodes", 1, id="standalone of an elastic run"),
        pytest.param("--accelerator cpu --nproc-per-node auto t.py", "nproc_per_node", count_cpus(), id="no GPUs wanted"),
        pytest.param("--dynamic-failover-extension a.b::C t.py", "failover_extension", "a.b::C", id="extension"),
    ],
)
def test_a_flag_reaches_the_plan(line: str, field: str, expected: object) -> None:
    """Each flag has its effect."""
    assert value_of(read(line).plan, field) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("t.py", None, id="one node by itself"),
        pytest.param("--standalone --rdzv-endpoint h:1 t.py", None, id="standalone ignores the endpoint"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint h:1 t.py", HERE, id="c10d"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint localhost:0 t.py", None, id="torchrun's way to be alone"),
        pytest.param(
            "--rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-conf is_host=no t.py",
            Meeting(host="h", port=1, may_host=False),
            id="not the host",
        ),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint h t.py", Meeting(host="h", port=29400), id="torchrun's port"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint [::1]:7 t.py", Meeting(host="::1", port=7), id="IPv6"),
        pytest.param(
            "--nnodes 2 --node-rank 1 --master-addr h t.py", Meeting(host="h", port=29500, may_host=False), id="static, node 1"
        ),
        pytest.param("--nnodes 2 --master-addr h --master-port 1 t.py", HERE, id="static, node 0 hosts"),
    ],
)
def test_where_the_agents_meet(line: str, expected: Meeting | None) -> None:
    """The endpoint, or torchrun's older way of naming it."""
    assert read(line).meeting == expected


@pytest.mark.parametrize(
    ("line", "address"),
    [
        pytest.param("t.py", None, id="one node by itself"),
        pytest.param("--master-addr h t.py", None, id="an address without a port"),
        pytest.param("--master-port 7 t.py", ("127.0.0.1", 7), id="a port"),
        pytest.param("--master-addr [::1] --master-port 7 t.py", ("::1", 7), id="IPv6"),
        pytest.param("--master-port 0 t.py", None, id="any port"),
        pytest.param("--rdzv-endpoint h:7 t.py", ("h", 7), id="static endpoint"),
        pytest.param("--rdzv-endpoint h:7 --master-port 8 t.py", ("h", 7), id="the endpoint wins"),
        pytest.param("--standalone --master-port 7 t.py", None, id="standalone"),
        pytest.param("--rdzv-backend c10d --rdzv-endpoint h:7 --master-port 8 t.py", None, id="c10d"),
        pytest.param("--nnodes 2 --master-addr h t.py", ("h", 29500), id="two nodes"),
        pytest.param("--nnodes 2 --node-rank 1 --master-addr h --master-port 7 t.py", ("h", 7), id="the second of two"),
    ],
)
def test_where_the_store_of_the_workers_is(line: str, address: tuple[str, int] | None) -> None:
    """Where torchrun's static rendezvous has it; otherwise the round says it."""
    master = read(line).master

    assert address == (master and (master.host, master.port))
    if "--nnodes" not in line and "c10d" not in line:
        assert read(line).meeting is None  # the coordinator has no port


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(
            "--rdzv-backend etcd t.py", r"--rdzv-backend etcd: not allowed; expected c10d, rallypoint, static", id="backend"
        ),
        pytest.param("--event-log-handler console t.py", r"console: not allowed; expected null; .* to stderr", id="events"),
        pytest.param("--accelerator mthreads.com/gpu t.py", r"expected nvidia.com/gpu, ascend-npu, cpu; ", id="no kind"),
        pytest.param("--accelerator cpu --nproc-per-node gpu t.py", r"gpu: not allowed with --accelerator cpu", id="no GPUs"),
        pytest.param("--hang-detection 3 t.py", r"--hang-detection 3: not allowed; expected 0, 1, 2", id="hang"),
        pytest.param("--hang-downtime -1 t.py", r"--hang-downtime -1: not allowed; expected minutes", id="downtime"),
        pytest.param("--dynamic-failover-extension a.C t.py", r"a.C: not allowed; expected MODULE::CLASS", id="extension"),
        pytest.param("--precheck 3 t.py", r"--precheck 3: not allowed; expected 0, 1, 2", id="check"),
        pytest.param("--exclude-straggler t.py", r"--exclude-straggler: requires a node check", id="straggler"),
        pytest.param("--start-method thread t.py", r"--start-method thread: not allowed; expected spawn, fork", id="start"),
        pytest.param("--numa-binding far t.py", r"--numa-binding far: not allowed; expected node, socket", id="NUMA"),
        pytest.param("--monitor-interval 0 t.py", r"--monitor-interval 0: not allowed; expected seconds, more", id="period"),
        pytest.param("--shutdown-timeout nan t.py", r"--shutdown-timeout nan: not allowed", id="shutdown is no number"),
        pytest.param("--shutdown-timeout inf t.py", r"--shutdown-timeout inf: not allowed", id="shutdown never ends"),
        pytest.param("--preload a..b t.py", r"--preload a..b: not allowed; expected names of modules", id="preload"),
        pytest.param("--exit-grace -1 t.py", r"--exit-grace -1: not allowed; expected seconds, 0 to", id="exit grace"),
        pytest.param("--exit-grace nan t.py", r"--exit-grace nan: not allowed; expected seconds", id="exit grace is no number"),
        pytest.param("--exit-grace 1e9 t.py", r"--exit-grace 1e\+09: not allowed; expected seconds", id="exit grace of years"),
        pytest.param(
            "--standby -1 t.py", r"--standby -1: not allowed; expected a number of standbys, 0 or more", id="standbys"
        ),
        pytest.param("--node-unit 0 t.py", r"--node-unit 0: not allowed; expected a number of nodes, 1 or more", id="no unit"),
        pytest.param(
            "--nnodes 2:3 --node-unit 2 --rdzv-endpoint h:1 t.py",
            "--node-unit 2: not allowed; expected a divisor of both bounds of --nnodes 2:3",
            id="unit",
        ),
        pytest.param(
            "--signals-to-handle SIGKILL t.py", r"'SIGKILL': not allowed; expected signals that can be caught", id="KILL"
        ),
        pytest.param("--signals-to-handle TERM t.py", r"--signals-to-handle 'TERM': not allowed", id="half a name"),
        pytest.param("--rdzv-conf is_host=maybe t.py", r"is_host 'maybe': not allowed; expected true or false", id="host"),
        pytest.param("--rdzv-conf join_timeout=0 t.py", r"join_timeout '0': not allowed; .* more than 0", id="no time"),
        pytest.param("--rdzv-conf node_unit=x t.py", r"node_unit 'x': not allowed; expected a number of nodes", id="unit key"),
        pytest.param(
            "--rdzv-conf timeout t.py",
            r"--rdzv-conf: setting timeout is not allowed; expected KEY=VALUE, such as timeout=60",
            id="no value",
        ),
        pytest.param(
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:0 t.py", r"port 0 is not allowed with 2 nodes", id="port 0"
        ),
        pytest.param("--master-port 65536 t.py", r"--master-port 65536: not allowed; expected a port", id="no port"),
        pytest.param("--nnodes 3:2 t.py", r"--nnodes 3:2: not allowed; expected N or MIN:MAX", id="bounds"),
        pytest.param(
            "--nproc-per-node many t.py",
            r"--nproc-per-node many: .* a whole number of 1 or more, cpu, gpu or auto",
            id="workers",
        ),
        pytest.param("--nproc-per-node 0 t.py", r"--nproc-per-node 0", id="no worker"),
        pytest.param(
            "--max-restarts -1 t.py", r"--max-restarts -1: not allowed; expected a number of restarts, 0 or more", id="restarts"
        ),
        pytest.param("--rdzv-conf =1 t.py", r"--rdzv-conf: setting =1 is not allowed; expected KEY=VALUE", id="no key"),
        pytest.param("--rdzv-conf timeout=soon t.py", r"--rdzv-conf timeout 'soon'", id="seconds"),
        pytest.param("--rdzv-backend c10d --nnodes 2 t.py", r"--rdzv-endpoint: is required for --nnodes 2", id="no endpoint"),
        pytest.param("--rdzv-endpoint h:x t.py", r"--rdzv-endpoint h:x: not allowed; expected HOST:PORT", id="port"),
        pytest.param("--standalone --nnodes 2 t.py", r"--standalone: not allowed with --nnodes 2", id="standalone of two"),
        pytest.param("--nnodes 2 --node-rank 2 t.py", r"--node-rank 2: not allowed; expected 0 to 1", id="slot"),
        pytest.param("--tee 4 t.py", r"--tee 4: not allowed; expected 0 \(none\)", id="stream"),
        pytest.param("-r 0:9 t.py", r"--redirects 0:9", id="stream of a rank"),
        pytest.param("--local-ranks-filter a t.py", r"--local-ranks-filter a", id="filter"),
        pytest.param("--no-python -m t.py", r"--no-python, --module: not allowed together", id="two ways to start"),
    ],
)
def test_a_wrong_flag_is_named(line: str, message: str) -> None:
    """The flag, the value and what is allowed."""
    with pytest.raises(RallypointError, match=message):
        read(line)


@pytest.mark.parametrize("flag", REFUSED)
def test_a_flag_without_effect_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is accepted and then ignored; the reason is told."""
    with pytest.raises(SystemExit) as ended:
        read(f"{flag} x t.py")

    assert ended.value.code == 2
    assert REFUSED[flag] in capsys.readouterr().err


def test_streams_and_ranks_are_read() -> None:
    """By rank or for all."""
    options = read("-r 0:1,1:2 --tee 3 --local-ranks-filter 0,1 t.py")

    assert options.streams == Streams(redirects_of={0: 1, 1: 2}, tee=3, console=frozenset({0, 1}))


@pytest.mark.parametrize(
    ("line", "tee", "redirects", "prefix"),
    [
        pytest.param("--log-dir d t.py", 3, 0, "", id="alone, both are copied"),
        pytest.param("--log-dir d -r 0 t.py", 0, 0, DEFAULT_PREFIX, id="none, as it says"),
        pytest.param("--log-dir d -t 1 t.py", 1, 0, DEFAULT_PREFIX, id="one"),
        pytest.param("--log-dir /dev/null -r 3 t.py", 0, 0, DEFAULT_PREFIX, id="no folder"),
        pytest.param("t.py", 0, 0, DEFAULT_PREFIX, id="without a folder"),
    ],
)
def test_a_log_folder_alone_gets_both_streams(line: str, tee: int, redirects: int, prefix: str) -> None:
    """Unless something says which; /dev/null keeps no file, as in torchrun."""
    options = read(line)

    assert (options.streams.tee, options.streams.redirects, options.prefix) == (tee, redirects, prefix)
    assert read("--log-dir d t.py", PET_REDIRECTS="1").streams == Streams(redirects=1)
    assert read("--log-dir d t.py", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="x").prefix == "x"


def test_filters_of_lines_are_read() -> None:
    """Two commas are one."""
    streams = read("--tee 3 --duplicate-stdout-filters loss,,step,lr --duplicate-stderr-filters E t.py").streams

    assert (streams.duplicate_out, streams.duplicate_err) == (("loss,step", "lr"), ("E",))


def test_signals_are_read() -> None:
    """Those of torchrun where nobody says otherwise."""
    assert read("--signals-to-handle SIGTERM,SIGUSR1 t.py").signals == (signal.SIGTERM, signal.SIGUSR1)
    assert read("t.py").signals == SIGNALS


@pytest.mark.parametrize(
    ("line", "note"),
    [
        pytest.param("--rdzv-conf read_timeout=60 t.py", "--rdzv-conf read_timeout: ignored; ", id="a key of torchrun"),
        pytest.param("--rdzv-conf pend_timeout=60 t.py", "--rdzv-conf pend_timeout: ignored; ", id="of dlrover-run"),
        pytest.param("--rdzv-conf jointimeout=60 t.py", "--rdzv-conf jointimeout: ignored; unknown key", id="no key"),
        pytest.param("--standalone --nnodes 1:2 t.py", "--nnodes 1:2: ignored; ", id="standalone"),
        pytest.param("--node-rank 1 t.py", "--node-rank 1: ignored; the run has one node", id="a rank of one node"),
        pytest.param(
            "--rdzv-backend c10d --rdzv-endpoint h:1 --nnodes 2 --node-rank 1 t.py",
            "--node-rank 1: ignored; --rdzv-backend c10d",
            id="a rank that is dealt out",
        ),
        pytest.param("--tee 1 --duplicate-stderr-filters E t.py", "--duplicate-stderr-filters: ignored; --tee", id="filter"),
        pytest.param("--tls /nope t.py", "--tls /nope: ignored; the run has one node", id="TLS of one node"),
        pytest.param("--secret-file /nope t.py", "--secret-file /nope: ignored; the run has one node", id="secret of one node"),
        pytest.param("--numa-affinity --numa-binding socket t.py", "--numa-affinity: ignored; ", id="two bindings"),
    ],
)
def test_what_has_no_effect_is_told_by_name(line: str, note: str) -> None:
    """Once, and nothing else is told."""
    (told,) = read(line).notes

    assert told.startswith(note)
    assert not read("--tee 3 --duplicate-stdout-filters loss --rdzv-conf timeout=5 t.py").notes


def test_auto_config_asks_the_environment() -> None:
    """The number of nodes is the scheduler's, and a worker is for each GPU."""
    found = read("--auto-config --rdzv-endpoint h:1 t.py", NODE_NUM="2:4", CUDA_VISIBLE_DEVICES="0,1,2").plan
    alone = read("--auto-config --nproc-per-node 2 t.py", CUDA_VISIBLE_DEVICES="").plan

    assert (found.min_nodes, found.max_nodes, found.nproc_per_node) == (2, 4, 3)
    assert (alone.max_nodes, alone.nproc_per_node) == (1, 2)


def test_a_variable_that_is_no_switch_is_an_error() -> None:
    """But only for who runs something: an agent in a pod does not read it."""
    with pytest.raises(RallypointError, match="environment variable PET_STANDALONE 'yes': not allowed; expected 0 or 1"):
        read("t.py", PET_STANDALONE="yes")


@pytest.mark.parametrize(
    ("variable", "value", "rest"),
    [
        pytest.param("PET_NNODES", "0", "0: not allowed; expected N or MIN:MAX", id="torchrun's"),
        pytest.param("PET_MAX_RESTARTS", "x", "'x': not allowed; expected a whole number", id="no number"),
        pytest.param("RALLYPOINT_MAX_RESTARTS", "x", "'x': not allowed; expected a whole number", id="no number in ours"),
        pytest.param(
            "RALLYPOINT_MAX_RESTARTS", "-1", "-1: not allowed; expected a number of restarts, 0 or more", id="a small number"
        ),
        pytest.param("RALLYPOINT_HANG_DOWNTIME", "soon", "'soon': not allowed; expected a number", id="no minutes"),
        pytest.param("RALLYPOINT_PRECHECK", "9", "9: not allowed; expected 0, 1, 2", id="a choice"),
        pytest.param("RALLYPOINT_NETWORK_CHECK", "maybe", "'maybe': not allowed; expected 0 or 1", id="a switch"),
        pytest.param("RALLYPOINT_RDZV_CONF", "join_timeout=0", "join_timeout '0': not allowed", id="a key of rdzv_conf"),
        pytest.param("PET_RDZV_BACKEND", "etcd", "etcd: not allowed; expected c10d", id="a backend"),
        pytest.param("PET_NPROC_PER_NODE", "many", "many: not allowed; expected a whole number of 1 or more", id="workers"),
        pytest.param("PET_SIGNALS_TO_HANDLE", "TERM", "'TERM': not allowed", id="a signal"),
        pytest.param("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1", "'-1': not allowed", id="torch's own"),
    ],
)
def test_an_error_names_the_variable_that_says_it(variable: str, value: str, rest: str) -> None:
    """Not another variable, and no flag; where the flag is given as well, that counts and the variable is no error."""
    with pytest.raises(RallypointError) as caught:
        read("t.py", **{variable: value})

    said = str(caught.value)
    assert variable in said.partition(":")[0]
    assert rest in said
    assert "--" not in said.partition(rest)[0]


def test_a_flag_of_the_line_is_named_by_itself() -> None:
    """Though its variable is set, and whatever that says."""
    with pytest.raises(RallypointError, match=r"^--max-restarts -2: not allowed"):
        read("--max-restarts -2 t.py", PET_MAX_RESTARTS="x")


def test_the_environment_gives_defaults() -> None:
    """PET_ variables as in torchrun; a flag wins over them."""
    options = read("--max-restarts 1 t.py", PET_NNODES="1:2", PET_RDZV_ENDPOINT="h:1", PET_MAX_RESTARTS="7", PET_MODULE="1")

    assert (options.plan.max_nodes, options.plan.budgets.max_restarts, options.plan.entry) == (2, 1, Entry.MODULE)


def test_run_path_runs_the_script_by_runpy() -> None:
    """In the interpreter that runs one line of ours, with the script's own arguments."""
    plan = read("--run-path /a/t.py --lr 1").plan

    assert plan.entry is Entry.COMMAND
    assert plan.args[-3:] == ("/a/t.py", "--lr", "1")


@pytest.mark.parametrize("text", ["0", "1:0", "a", "1:2:3", "", ":"])
def test_wrong_numbers_of_nodes(text: str) -> None:
    """Every way to write it wrong is an error, none a default."""
    with pytest.raises(RallypointError):
        parse_nnodes(text)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("0,1", 2, id="two"),
        pytest.param("", 0, id="none"),
        pytest.param("-1", 0, id="hidden"),
        pytest.param("GPU-a,GPU-b,-1,GPU-c", 2, id="the list ends at -1"),
    ],
)
def test_visible_gpus_are_counted(visible: str, expected: int) -> None:
    """CUDA_VISIBLE_DEVICES decides where it is set."""
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_gpus_are_counted_by_the_drivers_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no nvidia-smi."""
    monkeypatch.setenv("PATH", "")
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()

    assert (count_gpus({}, tmp_path), count_gpus({}, tmp_path / "absent")) == (2, 0)
