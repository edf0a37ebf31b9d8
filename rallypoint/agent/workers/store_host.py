"""The process that serves the rounds' stores: `python -m rallypoint.agent.workers.store_host FD`; it alone knows torch.

Its agent hands it listening sockets over the Unix socket FD. Workers that connect before torch is imported here wait in the
kernel's backlog, so they start in parallel with this process. Each socket becomes a fresh `TCPStore`, which ends the one before
it: a store that outlives its round hands a restarted rank the address of a dead one.

torch's store has no limit of connections and no deadline. A thread ends those that send nothing (`silent_sockets.py`): a client
says something at once.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

from rallypoint.agent import descriptors
from rallypoint.agent.silent_sockets import SweepLimits, descriptors_open, sweep

__all__ = ["MESSAGE_BYTES", "NO_TORCH", "main"]

#: Exit code that says that torch is not installed, so there is nothing to serve.
NO_TORCH = 69

#: Bytes of the longest message from the agent.
MESSAGE_BYTES = 4096

#: Seconds that a connection may send nothing, and between two looks at how many there are. Where descriptors run out, torch's
#: server closes all that wait, ranks among them: strangers must be ended before that.
_PATIENCE, _LOOK = 10.0, 0.05


def main(argv: list[str]) -> int:
    """Serve until the agent is gone; return an exit code."""
    descriptors.raise_limit()
    with socket.socket(fileno=int(argv[0])) as agent:
        try:
            # Torch exports it without saying so. The import takes a second, and where there is no torch it must not break us.
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415
        except ImportError:
            return NO_TORCH
        return _serve(agent, TCPStore)


def _serve(agent: socket.socket, store_class: type) -> int:
    store: object | None = None
    guard = _Guard()
    threading.Thread(target=guard.run, name="silent-connections", daemon=True).start()
    while True:
        message, fds, _, _ = socket.recv_fds(agent, MESSAGE_BYTES, 1)
        if not message:
            return 0
        store, guard.port = None, 0  # the old one closes before the new one opens
        order = json.loads(message)
        if fds:
            guard.port = order["port"]
            store = store_class(order["host"], order["port"], None, True, wait_for_workers=False, master_listen_fd=fds[0])
    return 0 if store is None else 1


class _Guard:
    """Ends silent connections at the port of the current store."""

    def __init__(self) -> None:
        most = max(descriptors.shares().requests, 16)
        self._limits = SweepLimits(most=most, strangers=max(most // 4, 8), patience=_PATIENCE, senders_stay=True)
        self._looked = 0.0
        self.port = 0

    def run(self) -> None:
        """Look for ever; all of them every `_PATIENCE` seconds, and sooner where there are many."""
        while True:
            time.sleep(_LOOK)
            now = time.monotonic()
            many = descriptors_open() > self._limits.most // 2 + 16
            if self.port and (many or now >= self._looked + _PATIENCE):
                sweep(self.port, (), self._limits)
                self._looked = now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
