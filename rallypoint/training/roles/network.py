"""Calls to one instance: find it, connect, send, wait, and notice that it was restarted."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rallypoint.training.roles.context import Settings, settings
from rallypoint.training.roles.directory import Directory, open_directory
from rallypoint.training.roles.errors import (
    CallTimeoutError,
    ProtocolError,
    RemoteError,
    Restarted,
    RolesError,
    UnreachableError,
)
from rallypoint.training.roles.frames import Frame, Kind
from rallypoint.training.roles.server import PING
from rallypoint.training.roles.transport import LOOK, Channel, connect
from rallypoint.training.roles.values import Buffer, decode, encode
from rallypoint.wire.roles import RoleEntry

__all__ = ["DEFAULT_TIMEOUT", "Network", "Target", "require_timeout", "this_network"]

#: Seconds that a call may take in all, where none are given.
DEFAULT_TIMEOUT = 60.0

#: Largest timeout in seconds: 30 days.
_LONGEST = 30 * 86400.0

#: Seconds between two looks for an instance: the first pause and the longest.
_SOON, _LATER = 0.005, 0.2

#: Idle connections to one instance that are kept.
_IDLE = 8


class Network:
    """The other instances of a job, and open connections to them; safe in any thread."""

    def __init__(self, how: Settings, directory: Directory) -> None:
        self.settings, self.directory = how, directory
        self._idle: dict[str, list[Channel]] = {}
        self._lock = threading.Lock()

    def take(self, entry: RoleEntry, until: float) -> Channel:
        """Return an idle connection to an instance, or a new one; raises `OSError`, `ProtocolError`, `CallTimeoutError`."""
        return self.take_idle(entry) or connect(self.settings, entry.host, entry.port, until=until)

    def take_idle(self, entry: RoleEntry) -> Channel | None:
        """Return an idle connection to an instance that the instance has not closed."""
        while (channel := self._pop(entry.id)) is not None:
            if channel.is_silent():
                return channel
            channel.close()
        return None

    def give_back(self, entry: RoleEntry, channel: Channel) -> None:
        """Keep a connection on which no answer is outstanding."""
        with self._lock:
            kept = self._idle.setdefault(entry.id, [])
            if len(kept) < _IDLE:
                kept.append(channel)
                return
        channel.close()

    def forget(self, entry: RoleEntry) -> None:
        """Close the idle connections to an instance that no longer exists."""
        with self._lock:
            kept = self._idle.pop(entry.id, [])
        for channel in kept:
            channel.close()

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            kept, self._idle = self._idle, {}
        for channels in kept.values():
            for channel in channels:
                channel.close()

    def close_in_child(self) -> None:
        """Close what a forked child has inherited; the lock may have been held by a thread that the child does not have."""
        self._lock = threading.Lock()
        self.close()

    def _pop(self, key: str) -> Channel | None:
        with self._lock:
            kept = self._idle.get(key)
            return kept.pop() if kept else None


class Target:
    """One instance, and the life of it that the caller knows. `rank` is None for the owner of a queue."""

    def __init__(self, network: Network, name: str, label: str, *, any_rank: bool = False) -> None:
        self._network, self._name, self._label, self._any_rank = network, name, label, any_rank
        self._known: RoleEntry | None = None
        self._looked = 0.0
        self._lock = threading.Lock()

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], timeout: float) -> Any:
        """Call a function of the instance and return its value.

        Raises:
            Restarted: the instance is not the one that the last call reached, or was restarted during the call.
            RemoteError: the function raised an exception.
            UnreachableError: the instance ended or did not start, and nothing replaced it within the timeout.
            CallTimeoutError: no answer within the timeout.
            ValueTypeError: an argument has a type that calls cannot carry.

        """
        until = time.monotonic() + timeout
        buffers: list[Buffer] = []
        tree = encode([list(args), dict(kwargs)], buffers, pickles=self._network.settings.pickles)
        while True:
            channel, entry = self._open(until, timeout)
            answer = self._exchange(channel, entry, method, (tree, buffers), (until, timeout))
            if answer.head.get("error") == "other":
                # The rank of an elastic worker has changed, or another process has the port of the one in the directory.
                self._network.give_back(entry, channel)
                self._pause(_LATER, until, timeout, "another instance responds at its address")
                continue
            return self._value(channel, entry, answer, (until, timeout, method))

    def _open(self, until: float, timeout: float) -> tuple[Channel, RoleEntry]:
        """Return a connection to the instance, once it has one; raises as `call`."""
        pause, why = _SOON, "has not called rallypoint.training.roles.serve()"
        known = self._known
        if known is not None and time.monotonic() < self._looked + LOOK:
            # A process that has ended has closed its connections; one that is stopped or cut off is found by the next look.
            channel = self._network.take_idle(known)
            if channel is not None:
                return channel, known
        while True:
            try:
                entry = self._look(self._known)
                if entry is not None and entry.port:
                    channel = self._network.take(entry, until)
                    self._remember(entry)
                    return channel, entry
                why = why if entry is None else "has ended"
            except CallTimeoutError:
                raise UnreachableError(self._unreachable(timeout, why)) from None
            except (OSError, ProtocolError) as error:
                why = f"{error}"
            self._pause(pause, until, timeout, why)
            pause = min(pause * 2, _LATER)

    def _exchange(
        self, channel: Channel, entry: RoleEntry, method: str, value: tuple[Any, list[Buffer]], limit: tuple[float, float]
    ) -> Frame:
        until, timeout = limit
        to = [entry.role, None if self._any_rank else entry.rank, entry.id]
        head = {"to": to, "method": method, "left": max(until - time.monotonic(), 0.0), "value": value[0]}
        watch = functools.partial(self._watch, entry)
        try:
            channel.send(Frame(kind=Kind.CALL, head=head, buffers=value[1]), until=until, watch=watch)
            return channel.receive(until=until, watch=watch)
        except CallTimeoutError:
            channel.close()
            raise CallTimeoutError(
                f"{self._label}: {method} did not finish within {timeout:g} s; whether it was executed is unknown"
            ) from None
        except RolesError:
            channel.close()
            raise
        except OSError as error:
            channel.close()
            raise self._lost(entry, until, timeout, error) from error

    def _value(self, channel: Channel, entry: RoleEntry, answer: Frame, call: tuple[float, float, str]) -> Any:
        try:
            value = self._read(channel, entry, answer, call)
        except RemoteError:
            self._network.give_back(entry, channel)
            raise
        except CallTimeoutError:
            channel.close()
            raise
        except OSError as error:
            channel.close()
            raise self._lost(entry, call[0], call[1], error) from error
        except BaseException:
            channel.close()
            raise
        self._network.give_back(entry, channel)
        return value

    def _read(self, channel: Channel, entry: RoleEntry, answer: Frame, call: tuple[float, float, str]) -> Any:
        """Return the value of an answer; raises its error."""
        until, timeout, method = call
        head, error = answer.head, answer.head.get("error")
        if answer.kind is Kind.RESULT:
            value = decode(head.get("value"), answer.buffers, pickles=self._network.settings.pickles)
            if head.get("confirm") is True:
                channel.send(Frame(kind=Kind.RECEIVED, head={"received": True}), until=until)
            return value
        if error == "late":
            raise CallTimeoutError(
                f"{self._label}: this instance was busy with other calls for {timeout:g} s; {method} was not executed"
            )
        if answer.kind is not Kind.ERROR or error != "raised":
            raise ProtocolError(f"{self._label}: the called process sent an invalid response")
        kind, message, trace = (str(head.get(key, "")) for key in ("type", "message", "traceback"))
        raise RemoteError(entry.role, entry.rank, type_name=kind, message=message, traceback=trace)

    def _look(self, expected: RoleEntry | None) -> RoleEntry | None:
        """Return the entry of the instance; raises `Restarted` if it is another life than the expected one, and `OSError`."""
        entry = self._network.directory.find(self._name)
        self._looked = time.monotonic()
        if entry is None or expected is None or entry.id == expected.id:
            return entry
        with self._lock:
            self._known = entry
        self._network.forget(expected)
        raise Restarted(entry.role, entry.rank, entry.incarnation)

    def _remember(self, entry: RoleEntry) -> None:
        with self._lock:
            self._known = self._known or entry

    def _watch(self, entry: RoleEntry) -> None:
        """Raise `Restarted` if the instance was restarted while a call waits for it."""
        with contextlib.suppress(OSError):  # the directory is away; the deadline remains
            self._look(entry)

    def _lost(self, entry: RoleEntry, until: float, timeout: float, error: OSError) -> RolesError:
        """Return the error of a call whose connection broke, once it is known what has become of the instance."""
        pause, next_try = _SOON, time.monotonic() + LOOK
        while True:
            try:
                self._watch(entry)
                if time.monotonic() >= next_try:
                    next_try += LOOK
                    self._ping(entry, until)
                    return UnreachableError(
                        f"{self._label}: the connection broke during the call ({error}), but the instance still runs; whether "
                        "the call was executed is unknown"
                    )
                self._pause(pause, until, timeout, f"has ended during the call ({error})")
            except Restarted as restarted:
                return restarted
            except UnreachableError as late:
                return late
            except (OSError, ProtocolError):  # it does not answer
                pass
            pause = min(pause * 2, _LATER)

    def _ping(self, entry: RoleEntry, until: float) -> None:
        """Raise `OSError` or `ProtocolError` unless the same life of the instance answers."""
        until = min(until, time.monotonic() + LOOK)
        channel = connect(self._network.settings, entry.host, entry.port, until=until)
        try:
            head = {"to": [entry.role, None, entry.id], "method": PING, "left": LOOK, "value": None}
            channel.send(Frame(kind=Kind.CALL, head=head), until=until)
            if channel.receive(until=until).kind is not Kind.RESULT:
                raise ProtocolError(f"{self._label}: another process responds at the address of this instance")
        finally:
            channel.close()

    def _pause(self, seconds: float, until: float, timeout: float, why: str) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise UnreachableError(self._unreachable(timeout, why))
        time.sleep(min(seconds, left))

    def _unreachable(self, timeout: float, why: str) -> str:
        return f"{self._label}: not reachable within {timeout:g} s: {why}"


_networks: dict[int, Network] = {}
_network_lock = threading.Lock()


def this_network() -> Network:
    """Return the network of this process's job; raises `RolesError` outside a job with several roles."""
    with _network_lock:
        found = _networks.get(os.getpid())
        if found is None:
            how = settings()
            found = _networks[os.getpid()] = Network(how, open_directory(how))
        return found


def require_timeout(timeout: float) -> float:
    """Return a timeout in seconds; raises `RolesError` if it is not allowed."""
    if type(timeout) in {int, float} and 0 <= timeout <= _LONGEST:
        return float(timeout)
    raise RolesError(f"timeout: {timeout!r} is not allowed; expected seconds, 0 to {_LONGEST:g}")


def _after_fork() -> None:
    """Let a child open connections of its own."""
    global _network_lock  # noqa: PLW0603  the lock may have been held by a thread that the child does not have
    _network_lock = threading.Lock()
    for network in _networks.values():
        network.close_in_child()
    _networks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
