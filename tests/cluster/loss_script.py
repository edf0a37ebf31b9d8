"""A worker whose world makes a step only together, as with collectives, and which stamps each: `two worlds` would show.

It needs no torch: rank 0 collects a word of every other rank over TCP and answers all of them. A rank whose peer stands still
waits for ever, one whose peer is gone fails. Where TRAIL names a folder each rank writes a line for each step that its world
has made, rank 0 keeps the last step there for the next world, and training ends at the step in the file `finish`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from rallypoint.training import report_progress

RANK, WORLD, ROUND = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "RALLYPOINT_ROUND"))
ATTEMPT = os.environ.get("RALLYPOINT_ATTEMPT", "1")
PORT, PAUSE, LONGEST = 8650, float(os.environ.get("PAUSE", "0.1")), time.monotonic() + 1800
TRAIL = Path(os.environ["TRAIL"]) if "TRAIL" in os.environ else None


def hello() -> bytes:
    return f"{ATTEMPT}.{ROUND}".encode().ljust(16)


def exactly(peer: socket.socket, size: int = 16) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionError("Connection closed by peer")
        data += more
    return data


def gathered() -> list[socket.socket]:
    """Return a connection to each other rank, as rank 0 sees them."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    while True:
        with contextlib.suppress(OSError):
            server.bind((os.environ["POD_IP"], PORT))
            break
        time.sleep(0.05)
    server.listen()
    found: list[socket.socket] = []
    while len(found) < WORLD - 1:
        peer, _ = server.accept()
        peer.settimeout(2.0)
        try:
            if exactly(peer) == hello():
                peer.settimeout(None)
                found.append(peer)
        except OSError:
            peer.close()
    return found


def joined() -> socket.socket:
    """Return the connection to rank 0."""
    while time.monotonic() < LONGEST:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], PORT), timeout=2.0)
        except OSError:
            time.sleep(0.05)
            continue
        peer.settimeout(None)
        peer.sendall(hello())
        return peer
    raise SystemExit(3)


def number(name: str) -> int:
    try:
        return int((TRAIL / name).read_text()) if TRAIL else 0
    except (OSError, ValueError):
        return 0


def main() -> None:
    step = number("step")
    peers = gathered() if RANK == 0 and WORLD > 1 else []
    first = joined() if RANK else None
    trail = Path(os.devnull) if TRAIL is None else TRAIL / f"world.{ATTEMPT}.{ROUND}.{RANK}.{WORLD}.{os.getpid()}"
    with trail.open("a", buffering=1) as stamps:
        while time.monotonic() < LONGEST:
            if RANK == 0:
                for peer in peers:
                    exactly(peer)
                finish = number("finish")
                step += 1
                last = bool(finish) and step >= finish
                for peer in peers:
                    peer.sendall(f"{step} {int(last)}".encode().ljust(16))
            else:
                assert first is not None
                first.sendall(b"ready".ljust(16))
                told = exactly(first).split()
                step, last = int(told[0]), told[1] == b"1"
            stamps.write(f"{time.time()} {step}\n")
            if RANK == 0 and TRAIL:
                (TRAIL / ".step").write_text(str(step))
                (TRAIL / ".step").replace(TRAIL / "step")
            report_progress(step)
            if RANK == WORLD - 1 and TRAIL and (TRAIL / "die").exists():
                (TRAIL / "die").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if last:
                print(f"rank {RANK} is done at step {step}", flush=True)
                return
            time.sleep(PAUSE)
    sys.exit(3)


main()
