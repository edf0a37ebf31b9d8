"""Calls between two processes: `rallypoint.training.roles` beside `torch.distributed.rpc`, on the same payloads.

Two processes of each library run at the same time on this machine; the rounds of both alternate. A small call sends two
numbers and returns their sum. A large call sends a float32 tensor of 64 MiB, and its receiver returns one element.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
OURS, TORCH = "rallypoint", "torch.distributed.rpc"

#: Elements of the large tensor.
LARGE = 16 << 20


def add(left: int, right: int) -> int:
    """Be called."""
    return left + right


def take(tensor: Any) -> float:
    """Be called with a tensor."""
    return float(tensor[-1])


def main() -> int:
    """Measure both libraries and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.role_calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=1000, help="small calls in each round")
    parser.add_argument("-n", type=int, default=5, help="rounds of each library")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return side(*args.side)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.calls, args.n)
    print_table(found, args.calls)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))
    return 0


def measure(folder: Path, calls: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each round by library and payload."""
    processes = {library: [start(folder, library, name) for name in ("server", "client")] for library in (OURS, TORCH)}
    found: dict[str, dict[str, list[float]]] = {library: {"small": [], "large": []} for library in processes}
    try:
        for library, (_, client) in processes.items():
            ask(client, f"small {calls}")  # connections and imports
            ask(client, "large 1")
            print(f"{library} is ready", flush=True)
        for _ in range(rounds):
            for payload, number in (("small", calls), ("large", 3)):
                for library, (_, client) in processes.items():
                    found[library][payload].append(ask(client, f"{payload} {number}") / number)
    finally:
        for pair in processes.values():
            for process in pair:
                process.kill()
                process.wait()
    return found


def start(folder: Path, library: str, name: str) -> subprocess.Popen[str]:
    """Start one process of a library."""
    secret, port = folder / "secret", folder / "port"
    if not secret.exists():
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port.write_text(str(free.getsockname()[1]))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RALLYPOINT_JOB": "calls",
        "RALLYPOINT_ROLE": name,
        "RALLYPOINT_ROLES": json.dumps({one: {"launch": "simple", "total": 1} for one in ("server", "client")}),
        "RALLYPOINT_ROLES_URL": f"file://{folder}/directory",
        "RALLYPOINT_ROLES_SECRET_FILE": str(secret),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port.read_text(),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.role_calls", "--side", library, name]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(client: subprocess.Popen[str], line: str) -> float:
    """Let a client make calls; return the seconds that they took."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(line + "\n")
    client.stdin.flush()
    return float(client.stdout.readline())


def side(library: str, name: str) -> int:
    """Be one of the processes."""
    import torch  # noqa: PLC0415  this process alone needs it

    call, server = (ours if library == OURS else theirs)(name)
    if name == "server":
        server()
        return 0
    large = torch.ones(LARGE)
    for line in sys.stdin:
        payload, number = line.split()
        began = time.perf_counter()
        for _ in range(int(number)):
            if payload == "small":
                assert call(add, 1, 2) == 3
            else:
                assert call(take, large) == 1.0
        print(time.perf_counter() - began, flush=True)
    return 0


def ours(name: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return how to call, and how to serve."""
    from rallypoint.training.roles import RoleGroup, rpc, serve  # noqa: PLC0415

    rpc(add)
    rpc(take)
    if name == "server":
        return add, lambda: serve().wait()
    group = RoleGroup("server", timeout=60)
    return lambda function, *args: group.call_rank0(function.__name__, *args), lambda: None


def theirs(name: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return how to call, and how to serve."""
    from torch.distributed import rpc  # noqa: PLC0415

    rpc.init_rpc(name, rank=0 if name == "server" else 1, world_size=2)
    return lambda function, *args: rpc.rpc_sync("server", function, args=args), rpc.shutdown


def print_table(found: dict[str, dict[str, list[float]]], calls: int) -> None:
    """Print medians, extremes and ratios."""
    units = {"small": ("µs per call", 1e6), "large": ("ms per 64 MiB", 1e3)}
    print(f"\n{calls} small calls and 3 large calls in each of {len(found[OURS]['small'])} rounds")
    for payload, (unit, factor) in units.items():
        medians = {library: statistics.median(values[payload]) for library, values in found.items()}
        for library, values in found.items():
            low, high = min(values[payload]) * factor, max(values[payload]) * factor
            print(f"  {payload:6} {library:24} {medians[library] * factor:8.1f} [{low:.1f}..{high:.1f}] {unit}")
        print(f"  {payload:6} ratio {medians[OURS] / medians[TORCH]:.2f}")


if __name__ == "__main__":
    sys.exit(main())
