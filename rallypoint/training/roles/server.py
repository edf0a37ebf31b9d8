"""The port of one instance: accepts connections of other instances and executes their calls."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.training.roles.context import Settings, identity, process_id
from rallypoint.training.roles.errors import ProtocolError, RolesError, ValueTypeError
from rallypoint.training.roles.frames import Frame, Kind
from rallypoint.training.roles.registry import Method
from rallypoint.training.roles.transport import Channel, accept
from rallypoint.training.roles.values import Buffer, decode, encode
from rallypoint.wire.connections import Connections, Limits, peer_of
from rallypoint.wire.printable import printable
from rallypoint.wire.repeated_lines import limit_logger

__all__ = ["PING", "Caller", "Operation", "Outcome", "Server"]

log = logging.getLogger("rallypoint.roles")

#: Authenticated connections, and those that have not proven the secret, each with a thread. One thread for all of them would
#: be slower: beside a busy script, each operation of a socket waits for the interpreter, and several threads wait at once.
_MOST, _STRANGERS = 1024, 256

#: Seconds without a byte within a message, and in which a result must be taken.
_SILENCE = 30.0

#: Maximum length of an exception's message and of its traceback.
_MESSAGE, _TRACEBACK = 4096, 16384

#: Longest time that a caller may ask for, in seconds: 30 days.
_LONGEST = 30 * 86400.0

#: Seconds until the next try if a connection cannot be accepted.
_PAUSE = 0.1

PING = "roles.ping"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who waits for an answer: `until` is the deadline of the call, `waits` whether the connection still exists."""

    until: float
    waits: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Value of an operation; if `lost` is set, it is called unless the caller confirms that it has the value."""

    value: Any
    lost: Callable[[], None] | None = None


#: An operation of Rallypoint itself, such as that of a queue.
Operation = Callable[[list[Any], Caller], Outcome]


class Server:
    """Executes calls; `methods` are those of the user, and may grow while it runs."""

    def __init__(self, settings: Settings, methods: Mapping[str, Method], operations: Mapping[str, Operation]) -> None:
        self._settings, self._methods, self._operations = settings, methods, operations
        limits = Limits(most=_MOST + _STRANGERS, strangers=_STRANGERS, per_peer=_STRANGERS // 2, patience=None)
        self._open: Connections[socket.socket] = Connections(limits)
        self._lock, self._one_call = threading.Lock(), threading.Lock()
        self._listener: socket.socket | None = None

    def start(self) -> int:
        """Listen on a free port and return it; raises `OSError`."""
        limit_logger(log)
        host = self._settings.host
        local = host in {"127.0.0.1", "::1", "localhost"}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104  the address of a pod may be that of a host
        self._listener = socket.create_server((host if local else everywhere, 0), family=family, backlog=_STRANGERS)
        threading.Thread(target=self._accept, args=(self._listener,), name="rallypoint-roles", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening and close all connections; ignored the second time."""
        with self._lock:
            listener, self._listener = self._listener, None
            known = (*self._open, *(() if listener is None else (listener,)))
        for sock in known:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if listener is not None:
            listener.close()

    def abandon(self) -> None:
        """Close the descriptors that a forked child has inherited; its parent keeps the connections."""
        listener, self._listener = self._listener, None
        for sock in (*self._open, *(() if listener is None else (listener,))):
            with contextlib.suppress(OSError):
                sock.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, address = listener.accept()
            except OSError as error:
                if self._listener is not listener:
                    return
                log.error("this process cannot accept a call from another role: %s; retrying in %g s", error.strerror, _PAUSE)  # noqa: TRY400  one line
                time.sleep(_PAUSE)
                continue
            if not self._admit(sock, address[0]):
                continue
            try:
                threading.Thread(target=self._serve, args=(sock, address[0]), name="rallypoint-call", daemon=True).start()
            except RuntimeError as error:
                log.error(  # noqa: TRY400  one line
                    "cannot start a thread for a call from %s, so the connection is closed: %s", address[0], error
                )
                self._forget(sock)
                sock.close()
                time.sleep(_PAUSE)

    def _admit(self, sock: socket.socket, host: str) -> bool:
        """Count a connection and close the one that is too many; return whether this one stays."""
        with self._lock:
            ended = self._open.opened(sock, peer_of(host), time.monotonic())
            if self._listener is None and sock not in ended:
                ended.append(sock)
        for one in ended:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if sock in ended:
            self._forget(sock)
            sock.close()
        return sock not in ended

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.closed(sock)

    def _serve(self, sock: socket.socket, peer: str) -> None:
        mine = [sock]

        def replaced(new: socket.socket) -> None:
            with self._lock:
                self._open.replaced(mine[0], new)
            mine[0] = new

        def proven() -> None:
            with self._lock:
                if mine[0] not in self._open:
                    raise ProtocolError("too many connections")
                self._open.proven(mine[0])

        try:
            channel = accept(self._settings, sock, replaced, proven)
            while (frame := channel.receive_next(_SILENCE)) is not None:
                self._answer(channel, frame)
        except ProtocolError as error:
            log.warning("closed a connection from %s: %s", peer, error)
        except (RolesError, OSError) as error:
            log.debug("the connection from the calling process at %s was lost: %s", peer, error)
        finally:
            self._forget(mine[0])
            with contextlib.suppress(OSError):
                mine[0].close()

    def _answer(self, channel: Channel, frame: Frame) -> None:
        """Execute one call and send its result; raises `ProtocolError`, `OSError`."""
        to, name, left, tree = _call_of(frame)
        until = time.monotonic() + left
        caller = Caller(until=until, waits=channel.is_silent)
        wrong = _other_instance(to)
        outcome = Outcome(value=None)
        if wrong is not None:
            answer = Frame(kind=Kind.ERROR, head=wrong)
        else:
            outcome, answer = self._execute(name, decode(tree, frame.buffers, pickles=self._settings.pickles), caller)
        try:
            self._send(channel, answer)
            if outcome.lost is not None:
                self._require_receipt(channel)
        except BaseException:
            if outcome.lost is not None:
                outcome.lost()
            raise

    def _send(self, channel: Channel, answer: Frame) -> None:
        try:
            channel.send(answer, until=time.monotonic() + _SILENCE + _seconds_for(answer.buffers))
        except ValueTypeError as error:  # the value is too large; nothing has been sent
            channel.send(_raised(error), until=time.monotonic() + _SILENCE)

    @staticmethod
    def _require_receipt(channel: Channel) -> None:
        frame = channel.receive(until=time.monotonic() + _SILENCE)
        if frame.kind is not Kind.RECEIVED:
            raise ProtocolError(
                "received an invalid message from the calling process; expected a confirmation that it received the result"
            )

    def _execute(self, name: str, value: Any, caller: Caller) -> tuple[Outcome, Frame]:
        """Return the outcome and the frame to send."""
        outcome = Outcome(value=None)
        try:
            outcome = self._run(name, value, caller)
            buffers: list[Buffer] = []
            tree = encode(outcome.value, buffers, pickles=self._settings.pickles)
            head = {"value": tree, "confirm": outcome.lost is not None}
            return outcome, Frame(kind=Kind.RESULT, head=head, buffers=buffers)
        except _LateError:
            return outcome, Frame(kind=Kind.ERROR, head={"error": "late"})
        except BaseException as error:  # noqa: BLE001  also SystemExit: only the caller can react to it
            if outcome.lost is not None:
                outcome.lost()
            return Outcome(value=None), _raised(error)

    def _run(self, name: str, value: Any, caller: Caller) -> Outcome:
        if name == PING:
            return Outcome(value=None)
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], list) or not isinstance(value[1], dict):
            raise ValueTypeError(
                "arguments of a call between roles: expected a list (positional arguments) and a dict (keyword arguments)"
            )
        args, kwargs = value
        if name in self._operations:
            return self._operations[name](args, caller)
        method = self._methods.get(name)
        if method is None:
            raise LookupError(
                f"no function {name[:80]!r} is declared with @rpc; declared are: {', '.join(sorted(self._methods))}"
            )
        if method.concurrent:
            return Outcome(value=method.call(*args, **kwargs))
        if not self._one_call.acquire(timeout=max(caller.until - time.monotonic(), 0)):
            raise _LateError
        try:
            # The caller has given up while other calls were executed.
            if time.monotonic() >= caller.until or not caller.waits():
                raise _LateError
            return Outcome(value=method.call(*args, **kwargs))
        finally:
            self._one_call.release()


class _LateError(Exception):
    """The caller no longer waits; the call was not executed."""


def _call_of(frame: Frame) -> tuple[list[Any], str, float, Any]:
    """Return instance, method, timeout and arguments of a call; raises `ProtocolError`."""
    to, name, left = (frame.head.get(key) for key in ("to", "method", "left"))
    if frame.kind is Kind.CALL and isinstance(to, list) and len(to) == 3 and isinstance(name, str) and _is_timeout(left):
        return to, name, float(left), frame.head.get("value")  # type: ignore[arg-type]
    raise ProtocolError("received an invalid call from another role; expected the called instance, a method and a timeout")


def _is_timeout(left: Any) -> bool:
    return type(left) in {int, float} and 0 <= left <= _LONGEST


def _other_instance(to: list[Any]) -> dict[str, Any] | None:
    """Return the error if a call is for another instance than this one, or for an earlier life of it."""
    role, rank, incarnation = identity()
    if to[2] == process_id() and to[0] == role and to[1] in (rank, None):
        return None
    return {"error": "other", "role": role, "rank": rank, "incarnation": incarnation}


def _raised(error: BaseException) -> Frame:
    """Return the frame of an exception, whose texts are shortened."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  any class may define its text
        message = "(its text cannot be read)"
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # noqa: BLE001  as above
        text = ""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    head = {"error": "raised", "type": name[:200], "message": printable(message[:_MESSAGE]), "traceback": text[-_TRACEBACK:]}
    return Frame(kind=Kind.ERROR, head=head)


def _seconds_for(buffers: Any) -> float:
    """Return the time that a slow network needs for some buffers: 10 MB/s."""
    return float(sum(len(part) for part in buffers)) / 10e6
