"""The answering side of this process: its server, and its entries in the directory."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rallypoint.training.roles.context import entry_of
from rallypoint.training.roles.errors import RolesError
from rallypoint.training.roles.network import Network, this_network
from rallypoint.training.roles.registry import Method, declared, methods_of
from rallypoint.training.roles.server import Operation, Server
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.roles import RoleEntry

__all__ = ["Service", "serve", "this_service"]

log = logging.getLogger("rallypoint.roles")

#: Seconds between two checks whether an entry must be announced.
_LOOK = 0.5


class Service:
    """The server of this process; `serve()` returns it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._methods: dict[str, Method] = {}
        self.operations: dict[str, Operation] = {}
        self._server = Server(network.settings, self._methods, self.operations)
        self._lock = threading.Lock()
        self._announced: dict[str, tuple[RoleEntry, float]] = {}
        #: For each queue of this process, whether this process is its owner at present.
        self._queues: dict[str, Callable[[], bool]] = {}
        self._ended = threading.Event()
        self._failed = self._outdated = False
        self._pid, self._port = os.getpid(), 0

    def start(self) -> None:
        """Listen, and announce the address of this process; ignored the second time. Raises `OSError`."""
        with self._lock:
            if self._port:
                return
            self._port = self._server.start()
        self._announce()
        threading.Thread(target=self._repeat, name="rallypoint-announce", daemon=True).start()
        atexit.register(self.close)

    def add(self, methods: dict[str, Method]) -> None:
        """Let other instances call these functions; raises `RolesError` if a name has another function already."""
        for name, method in methods.items():
            known = self._methods.get(name)
            if known is not None and known.call != method.call:
                raise RolesError(f"@rpc: two functions have the name {name!r}; rename one of them")
            self._methods[name] = method

    def add_queue(self, name: str, owned: Callable[[], bool]) -> None:
        """Announce this process as the owner of a queue, as long as `owned` is true."""
        self._queues[name] = owned
        if self._port:
            self._announce()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job ends this process with SIGTERM, or `close` is called; return False if the timeout expired first.

        In the main thread, a SIGTERM then ends this method and not the process, unless the script handles SIGTERM itself.
        """
        with self._handled():
            return self._ended.wait(timeout)

    def close(self) -> None:
        """Stop answering calls, and mark this instance as ended in the directory; ignored the second time."""
        if self._pid != os.getpid() or not self._port:
            return
        self._ended.set()
        self._server.close()
        with self._lock:
            known, self._announced, self._port = list(self._announced.values()), {}, 0
        for entry, _ in known:
            with contextlib.suppress(OSError):
                self._network.directory.announce(dataclasses.replace(entry, port=0))

    def abandon(self) -> None:
        """Close what a forked child has inherited."""
        self._server.abandon()

    @contextlib.contextmanager
    def _handled(self) -> Any:
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._ended.set()

        signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _repeat(self) -> None:
        while not self._ended.wait(_LOOK):
            self._announce()

    def _announce(self) -> None:
        """Announce entries that have changed, or must be repeated."""
        try:
            host, queues = self._network.settings.host, [name for name, owned in self._queues.items() if owned()]
            entries = [entry_of(host, self._port, queue=name) for name in ("", *queues)]
            with self._lock:
                if not self._port:
                    return
                for entry in entries:
                    self._announce_one(entry, time.monotonic())
        except (OSError, RallypointError) as error:
            if not self._failed:
                log.warning(
                    "this instance cannot publish its address, so other roles cannot call it yet: %s; retrying in %g s",
                    error,
                    _LOOK,
                )
            self._failed = True
            return
        self._failed = False

    def _announce_one(self, entry: RoleEntry, now: float) -> None:
        repeat = self._network.directory.repeat
        known, at = self._announced.get(entry.name, (None, now))
        if known == entry and (repeat is None or now < at + repeat):
            return
        if self._network.directory.announce(entry):
            # An elastic worker with a new rank leaves the entry of its old rank to the process that has this rank now.
            self._announced = {
                name: value for name, value in self._announced.items() if value[0].rank == entry.rank and name != entry.name
            }
            self._announced[entry.name] = entry, now
        elif not self._outdated:
            self._outdated = True
            log.warning(
                "instance %s/%d has a newer process, which now receives the calls from other roles instead of this process",
                entry.role,
                entry.rank,
            )


_services: dict[int, Service] = {}
_lock = threading.Lock()


def serve(target: object = None) -> Service:
    """Answer calls of other instances in background threads, and announce this instance in the directory of the job.

    Functions that are declared with `@rpc` can be called from then on, and the declared methods of `target`. May be called
    again to add the methods of another object. A process that only answers calls ends with `serve().wait()`.

    Raises:
        RolesError: outside a job with several roles, or two functions have the same name.
        OSError: this process cannot listen at its address.

    """
    service = this_service()
    service.add({**declared(), **({} if target is None else methods_of(target))})
    service.start()
    return service


def this_service() -> Service:
    """Return the service of this process, which may not have started; raises `RolesError`."""
    network = this_network()
    with _lock:
        return _services.setdefault(os.getpid(), Service(network))


def _after_fork() -> None:
    """Close the inherited sockets in a child: the child would keep the port of its parent open."""
    global _lock  # noqa: PLW0603  the lock may have been held by a thread that the child does not have
    _lock = threading.Lock()
    for service in _services.values():
        service.abandon()
    _services.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
