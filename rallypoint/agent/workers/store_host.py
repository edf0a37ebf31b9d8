"""The process that serves the rounds' stores: `python -m rallypoint.agent.workers.store_host FD`; it alone knows torch.

Its agent hands it listening sockets over the Unix socket FD. Workers that connect before torch is imported here wait in the
kernel's backlog, so they start in parallel with this process. Each socket becomes a fresh `TCPStore`, which ends the one before
it: a store that outlives its round hands a restarted rank the address of a dead one.
"""

from __future__ import annotations

import json
import socket
import sys

__all__ = ["MESSAGE_BYTES", "NO_TORCH", "main"]

#: Exit code that says that torch is not installed, so there is nothing to serve.
NO_TORCH = 69

#: Bytes of the longest message from the agent.
MESSAGE_BYTES = 4096


def main(argv: list[str]) -> int:
    """Serve until the agent is gone; return an exit code."""
    with socket.socket(fileno=int(argv[0])) as agent:
        try:
            # Torch exports it without saying so. The import takes a second, and where there is no torch it must not break us.
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415
        except ImportError:
            return NO_TORCH
        return _serve(agent, TCPStore)


def _serve(agent: socket.socket, store_class: type) -> int:
    store: object | None = None
    while True:
        message, fds, _, _ = socket.recv_fds(agent, MESSAGE_BYTES, 1)
        if not message:
            return 0
        store = None  # the old one closes before the new one opens
        order = json.loads(message)
        if fds:
            store = store_class(order["host"], order["port"], None, True, wait_for_workers=False, master_listen_fd=fds[0])
    return 0 if store is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
