"""A worker that counts steps until it is told a word: `end` ends it well, `die` by SIGKILL.

It travels in the job's own command line, so it needs nothing of the image but what an agent needs. Where GATE names a folder
words come as files of it, named by rank; elsewhere as requests to the pod's address, at 8700 + the local rank. MODE=fail
raises at the third step; MODE=ordered does at each what the job is asked to: pause, resume, stop. Where TRAIL names a folder
each step is told there, for whoever looks for two worlds.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from rallypoint.training import report_progress, stop_requested

rank, local_rank, round_ = (os.environ[name] for name in ("RANK", "LOCAL_RANK", "RALLYPOINT_ROUND"))
words: list[str] = []


def listen() -> None:
    """Take words as the path of a request."""
    server = socket.create_server((os.environ["POD_IP"], 8700 + int(local_rank)))
    while True:
        connection, _ = server.accept()
        with connection:
            asked = connection.recv(4096).decode(errors="replace").split()
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        words.extend(path.strip("/") for path in asked[1:2])


def look() -> None:
    """Take a word as a file, once."""
    gate = Path(os.environ["GATE"]) / rank
    if gate.exists():
        words.append(gate.read_text())
        gate.unlink()


if "GATE" not in os.environ:
    threading.Thread(target=listen, daemon=True).start()
trail = Path(os.environ["TRAIL"]) / f"{round_}-{rank}-{os.getpid()}" if "TRAIL" in os.environ else Path(os.devnull)
print(f"round {round_}: rank {rank} of {os.environ['WORLD_SIZE']} begins", flush=True)
over, step = time.monotonic() + 3600, 0  # a test that was killed ends nothing any more
with trail.open("a", buffering=1) as told:
    while "end" not in words and time.monotonic() < over:
        step += 1
        told.write(f"{time.time()}\n")
        report_progress(step)
        if os.environ.get("MODE") == "fail" and step == 3:
            print("about to divide", file=sys.stderr, flush=True)
            raise ZeroDivisionError("the loss is not a number")
        if os.environ.get("MODE") == "ordered" and stop_requested():
            print(f"rank {rank} stops", flush=True)
            sys.exit(143)
        if "die" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        if "GATE" in os.environ:
            look()
print(f"rank {rank} is done", flush=True)
