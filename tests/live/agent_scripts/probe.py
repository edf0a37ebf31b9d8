"""A node check's probe for tests: no torch, no time, and what a file says of this node is what it has.

`probe.py FOLDER`: FOLDER/NODE holds one word. Nodes are known by the folder of their output, which is that of their agent.
The collective is one of sockets, so that a node that is broken fails its partners as a real one does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

TASK = json.loads(os.environ["RALLYPOINT_CHECK"])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def main() -> None:
    ill = illness()
    say(stage="compute")
    if ill == "device":
        raise SystemExit("CUDA error: uncorrectable ECC error encountered")
    if ill == "stuck":
        signal.pause()
    if ill == "lost":
        os.kill(os.getpid(), signal.SIGKILL)
    say(stage="connect")
    slowest = gathered(ill, 30.0 if ill == "slow-network" else 10.0)
    say(compute=50.0 if ill == "slow-device" else 10.0, transfer=slowest, moved=1000 * SIZE, latency=0.001)


def illness() -> str:
    where = str(Path("/proc/self/fd/1").readlink())
    node = re.findall(r"node-(\d+)\.", where)[-1]
    path = Path(sys.argv[1]) / node
    return path.read_text().strip() if path.exists() else ""


def say(**words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def gathered(ill: str, mine: float) -> float:
    """Return the largest number of all ranks: rank 0 hears all of them and tells each."""
    if RANK == 0:
        return told_all(ill, mine)
    with socket.create_connection(ADDRESS) as line:
        if ill == "network":
            raise SystemExit("NCCL error: unhandled system error")
        line.sendall(f"{TASK['key']} {mine}\n".encode())
        answer = line.makefile().readline()
        if not answer:
            raise SystemExit("Connection closed by peer")
        return float(answer)


def told_all(ill: str, mine: float) -> float:
    if ill == "network":
        raise SystemExit("NCCL error: unhandled system error")
    numbers = [mine]
    lines: list[socket.socket] = []
    if SIZE > 1:
        server = socket.socket(fileno=TASK["fd"])
        while len(lines) < SIZE - 1:
            line, _ = server.accept()
            said = line.makefile().readline()
            if not said:
                raise SystemExit("Connection closed by peer")
            key, number = said.split()
            if key == TASK["key"]:  # who speaks of an old task is gone
                numbers.append(float(number))
                lines.append(line)
    for line in lines:
        line.sendall(f"{max(numbers)}\n".encode())
    return max(numbers)


main()
