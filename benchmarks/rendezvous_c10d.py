"""torch's c10d rendezvous with N simulated agents: threads in a few processes, one TCPStore server in the first of them.

Each agent has a connection of its own to that store, as real ones have. It must: a client of the store waits for a key with its
lock held, and at the end of a round every rank waits for the key that rank 0 sets; had they one client together, rank 0 could
not set it once another rank waits, and nobody would ever go on.

Runs with the interpreter of the peers' environment, which has torch and nothing of ours:
`python rendezvous_c10d.py N PROCESSES PORT`. Prints a line of JSON: seconds from the first agent's call to the last one's
return, and the CPU that all of them took.
"""

import json
import multiprocessing
import sys
import threading
import time
from datetime import timedelta
from typing import Any

__all__ = ["main"]

#: Seconds for everything; the parent ends all of them long before.
_LIMIT = 900.0

_JOIN_TIMEOUT = timedelta(seconds=_LIMIT)


def _agents(count: int, total: int, port: int, hosts: bool, meet: tuple[Any, Any, Any]) -> None:  # noqa: FBT001
    import torch  # noqa: F401, PLC0415
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (  # noqa: PLC0415
        DynamicRendezvousHandler,
        RendezvousTimeout,
    )

    ready, go, told = meet
    # It serves as long as it is referred to.
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=_JOIN_TIMEOUT) if hosts else None
    stores = [TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=_JOIN_TIMEOUT) for _ in range(count)]
    handlers = [
        DynamicRendezvousHandler.from_backend(
            "bench",
            store,
            C10dRendezvousBackend(store, "bench"),
            total,
            total,
            "127.0.0.1",
            RendezvousTimeout(join=_JOIN_TIMEOUT),
        )
        for store in stores
    ]
    threads = [threading.Thread(target=handler.next_rendezvous) for handler in handlers]
    ready.release()
    go.wait()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put((began, time.monotonic(), time.process_time()))
    time.sleep(_LIMIT)  # whoever needs the store may need it still
    del server


def main() -> int:
    """Let N agents meet once."""
    total, processes = int(sys.argv[1]), int(sys.argv[2])
    context = multiprocessing.get_context("spawn")
    ready, go, told = context.Semaphore(0), context.Event(), context.Queue()
    shares = [total // processes + (i < total % processes) for i in range(processes)]
    port = int(sys.argv[3])
    started = []
    for number, count in enumerate(shares):
        process = context.Process(target=_agents, args=(count, total, port, number == 0, (ready, go, told)))
        process.start()
        started.append(process)
        if number == 0:
            ready.acquire()  # the others need its store
    for _ in started[1:]:
        ready.acquire()
    go.set()
    seen = [told.get() for _ in started]
    for process in started:
        process.terminate()
    seconds = max(ended for _, ended, _ in seen) - min(began for began, _, _ in seen)
    print(json.dumps({"seconds": seconds, "cpu": sum(cpu for _, _, cpu in seen)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
