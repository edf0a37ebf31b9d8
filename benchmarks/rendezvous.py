"""N agents ask for a place in the first round: from the first one's connection to the last one's answer, beside torch's c10d.

Ours is the real coordinator in a process of its own, with HTTP or gRPC (`--service`) and the durable status file of a
supervised job; `bare` is a server of grpcio that echoes: what gRPC costs before anything of ours is done. The agents are
simulated, in two processes, and each has a connection of its own and says what a real one says.
c10d's agents are threads around torch's own `DynamicRendezvousHandler`, in four processes, each with a client of the store of
its own. Either way all of them share the cores of this machine, so the figure is that of server and clients together: with
c10d most of it is clients that poll and compute in Python, which the machines of a cluster would spread. Quote neither for
what N real nodes would see; what tells most is how it grows.

With `--tls` the coordinator has certificates and does all that it does for real agents. The agents' part is less than theirs
(`tls13.py`): thousands of them share two cores, where each real one has its own machine for the millisecond that it takes.

256 agents of c10d take over a minute of two cores, 512 do not finish in seven: `--c10d 32,64,128,256` asks for them, with a
`--c10d-limit` that allows for it. A rendezvous of c10d that is not over by then is counted, and has no figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import PEERS, cpu_seconds
from benchmarks.report import Case, arguments, deliver, versions
from rallypoint.backends.certificates import new_files
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build

__all__ = ["main"]

TOKEN = "a secret of the benchmark"
SIMULATORS = 2
C10D_PROCESSES = 4


@dataclass(frozen=True, kw_only=True)
class Met:
    """One rendezvous: seconds, CPU seconds of the server, and how many requests were made."""

    seconds: float
    server_cpu: float
    asked: int = 0


@contextlib.contextmanager
def coordinator(folder: Path, nodes: int, service: str, *, tls: bool) -> Iterator[tuple[Endpoint, int]]:
    """Run the real coordinator for a world of `nodes`, with certificates where `tls`; yield where it listens and its pid."""
    plan = build(
        Plan,
        name="bench",
        role="worker",
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=8,
        entry=Entry.SCRIPT,
        entrypoint="train.py",
        args=(),
        last_call=0.0,
        service_type=service,
        tls="auto" if tls else "",
        node_lease=600.0,  # thousands of agents in two processes may be slower than any real one
    )
    (folder / "plan.json").write_text(codec.dumps(plan))
    (folder / "secret").write_text(TOKEN)
    endpoint = folder / "endpoint.json"
    command: list[str | Path] = [sys.executable, "-m", "rallypoint.agent", "coordinator", "--attempt", "1"]
    command += ["--plan", folder / "plan.json", "--secret-file", folder / "secret", "--uid", "u1", "--term", "1"]
    command += ["--endpoint-file", endpoint, "--status-file", folder / "status.json"]
    if tls:
        command += ["--tls", _certificates(folder)]
    with (folder / "coordinator.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            while not endpoint.exists():
                if process.poll() is not None:
                    raise SystemExit((folder / "coordinator.log").read_text())
                _pause()
            yield codec.loads(Endpoint, endpoint.read_text()), process.pid
        finally:
            process.kill()


def _certificates(folder: Path) -> Path:
    made = folder / "tls"
    made.mkdir()
    for name, text in new_files("bench", time.time()).items():
        (made / name).write_text(text)
    return made


@contextlib.contextmanager
def bare() -> Iterator[tuple[Endpoint, int]]:
    """Run a server of grpcio with nothing of ours in it, and yield where it listens and its pid."""
    command = [sys.executable, "-m", "benchmarks.rendezvous_bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Endpoint(attempt=1, term=1, host="127.0.0.1", port=1, grpc=int(_heard(process))), process.pid
        finally:
            process.kill()


def _pause() -> None:
    subprocess.run(["sleep", "0.02"], check=True)


def ours(nodes: int, service: str) -> Met:
    """Let simulated agents meet at our coordinator once, over `service` (`grpc`, `grpc+tls`, ...), or at one that is `bare`."""
    service, _, tls = service.partition("+")
    with (
        tempfile.TemporaryDirectory(prefix="rendezvous-bench-") as name,
        bare() if service == "bare" else coordinator(Path(name), nodes, service, tls=bool(tls)) as (where, pid),
    ):
        players: list[subprocess.Popen[str]] = []
        folder = f"{name}/tls" if tls else ""
        port, spoken = (where.port, "http") if service == "http" else (where.grpc, "grpc")
        try:
            shares = [range(number, nodes, SIMULATORS) for number in range(min(SIMULATORS, nodes))]
            players += (_player(where.host, port, spoken, share, folder) for share in shares)
            before = cpu_seconds([pid])
            for player in players:
                _say(player, "go")
            seen = [json.loads(_heard(player)) for player in players]
            used = cpu_seconds([pid]) - before
        finally:
            for player in players:
                player.kill()
                player.wait()
    seconds = max(s["ended"] for s in seen) - min(s["began"] for s in seen)
    return Met(seconds=seconds, server_cpu=used, asked=sum(s["asked"] for s in seen))


def _player(host: str, port: int, service: str, numbers: range, tls: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.rendezvous_agents"]
    player = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    task = {"host": host, "port": port, "service": service, "token": TOKEN, "numbers": list(numbers), "tls": tls}
    _say(player, json.dumps(task))
    if _heard(player) != "ready\n":
        raise SystemExit("a simulator of agents did not start")
    return player


def _say(player: subprocess.Popen[str], line: str) -> None:
    assert player.stdin is not None
    player.stdin.write(f"{line}\n")
    player.stdin.flush()


def _heard(player: subprocess.Popen[str]) -> str:
    assert player.stdout is not None
    line = player.stdout.readline()
    if not line:
        raise SystemExit(f"a simulator of agents ended with {player.wait()}")
    return line


def c10d(nodes: int, limit: float) -> Met | None:
    """Let simulated agents meet by torch's c10d rendezvous once; return None when they have not within `limit` seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("rendezvous_c10d.py")
    command = [str(PEERS / "python"), str(script), str(nodes), str(min(nodes, C10D_PROCESSES)), str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            said, trouble = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the processes with the agents, too
    if process.returncode:
        raise SystemExit(f"c10d with {nodes} agents failed:\n{trouble[-2000:]}")
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return Met(seconds=told["seconds"], server_cpu=told["cpu"])


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """How often c10d is measured, with how many agents, and how many seconds it has each time."""

    nodes: Sequence[int]
    turns: int
    limit: float


def measure(nodes: Sequence[int], peer: Peer, services: Sequence[str], n: int) -> list[Case]:
    """Take turns, `n` of them; within a turn the services begin in turns, too."""
    met: dict[tuple[str, int], list[Met | None]] = {}
    for turn in range(n):
        for count in sorted({*nodes, *peer.nodes}):
            for service in (*services[turn % len(services) :], *services[: turn % len(services)]):
                if count in nodes:
                    met.setdefault((_name(service), count), []).append(ours(count, service))
            if count in peer.nodes and turn < peer.turns:
                met.setdefault(("c10d", count), []).append(c10d(count, peer.limit))
            last = ", ".join(f"{who} {_seconds(known[-1])}" for (who, of), known in met.items() if of == count)
            print(f"  turn {turn + 1}, {count}: {last}", file=sys.stderr)
    return [_case(who, count, known) for (who, count), known in sorted(met.items(), key=lambda item: (item[0][1], item[0][0]))]


def _name(service: str) -> str:
    return "grpcio alone" if service == "bare" else f"ours, {service.replace('+', ' with ')}"


def _seconds(one: Met | None) -> str:
    return "not in time" if one is None else f"{one.seconds:.3f} s"


def _case(who: str, count: int, met: Sequence[Met | None]) -> Case:
    known = [one for one in met if one is not None]
    cpu = sorted(one.server_cpu for one in known)[len(known) // 2] if known else float("nan")
    counts = {"not in time": len(met) - len(known)} if who == "c10d" else {"asked": max(one.asked for one in known)}
    return Case(
        name=f"{who} {count}",
        command={"c10d": "DynamicRendezvousHandler.next_rendezvous", "grpcio alone": "benchmarks.rendezvous_bare"}.get(
            who, "rallypoint-agent coordinator"
        ),
        samples=tuple(one.seconds for one in known),
        parts={"cpu of all agents" if who == "c10d" else "cpu of the server": cpu},
        counts=counts,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=3, help="how often each is measured (default 3)")
    parser.add_argument("--nodes", default="32,128,512,2000,4000", help="how many agents of ours (default %(default)s)")
    parser.add_argument("--c10d", default="32,64,128", help="how many agents of c10d; empty for none (default %(default)s)")
    parser.add_argument("--c10d-turns", type=int, default=2, help="how often each of these is measured (default 2)")
    parser.add_argument("--c10d-limit", type=float, default=60.0, help="seconds that each has (default 60)")
    parser.add_argument(
        "--service", default="grpc,http", help="service_type of ours: grpc, http; or bare (default %(default)s)"
    )
    parser.add_argument("--tls", action="store_true", help="each service of ours with mutual TLS as well, in turn")
    options = parser.parse_args(argv)
    services = options.service.split(",")
    if not set(services) <= {"grpc", "http", "bare"}:
        parser.error(f"--service {options.service}: not allowed; expected grpc, http or bare, with commas")
    if options.tls:
        services += [f"{service}+tls" for service in services if service != "bare"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # whatever was started is ended, too
    peers = _numbers(options.c10d) if (PEERS / "python").exists() else []
    peer = Peer(nodes=peers, turns=options.c10d_turns, limit=options.c10d_limit)
    cases = measure(_numbers(options.nodes), peer, services, options.n)
    deliver("rendezvous", cases, versions("torch", "aiohttp", "grpcio", "airflow-provider-rallypoint"), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
