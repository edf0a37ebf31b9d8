"""An instance of a role that lives until it is told a word: `end` ends it well, `die` by SIGKILL, `fail` with exit code 3, and
`raise` by an exception.

It travels in the job's own command line, as `script.py` does. Where GATE names a folder words come as files of it, named
`role-rank`; elsewhere as requests to the pod's address, at WORD_PORT + the local rank. With SERVER=1 it ends well on SIGTERM;
with RESULT=1 it leaves a result in the end.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

role, rank = os.environ["RALLYPOINT_ROLE"], os.environ["RANK"]
life = f"{os.environ.get('RALLYPOINT_ATTEMPT')}.{os.environ.get('RALLYPOINT_INCARNATION', os.environ.get('RALLYPOINT_ROUND'))}"
words: list[str] = []


def listen() -> None:
    """Take words as the path of a request."""
    server = socket.create_server((os.environ["POD_IP"], int(os.environ["WORD_PORT"]) + int(os.environ["LOCAL_RANK"])))
    while True:
        connection, _ = server.accept()
        with connection:
            asked = connection.recv(4096).decode(errors="replace").split()
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        words.extend(path.strip("/") for path in asked[1:2])


def look() -> None:
    """Take a word as a file, once."""
    gate = Path(os.environ["GATE"]) / f"{role}-{rank}"
    if gate.exists():
        words.append(gate.read_text())
        gate.unlink()


if os.environ.get("SERVER"):
    signal.signal(signal.SIGTERM, lambda *_: words.append("end"))
if "GATE" not in os.environ:
    threading.Thread(target=listen, daemon=True).start()
print(f"{role} {rank} begins, pid {os.getpid()}, life {life}", flush=True)
over = time.monotonic() + 3600  # a test that was killed ends nothing any more
while "end" not in words and time.monotonic() < over:
    if "die" in words:
        os.kill(os.getpid(), signal.SIGKILL)
    if "fail" in words:
        sys.exit(3)
    if "raise" in words:
        raise RuntimeError("as it was told")
    time.sleep(0.02)
    if "GATE" in os.environ:
        look()
if os.environ.get("RESULT"):
    from rallypoint.training import report_result

    report_result({"role": role, "rank": int(rank)})
print(f"{role} {rank} is done", flush=True)
