"""What the pods of simple roles tell of their instances. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rallypoint.backends.kubernetes.roles.lives import Life, Lives, instance_of, read_lives
from rallypoint.backends.kubernetes.watching.views import Container, HostView, PodView, Running, Terminated, Waiting
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState
from rallypoint.wire.codec import WireError
from rallypoint.wire.exits import signal_name
from rallypoint.wire.result import read_result
from rallypoint.wire.sanitize import clean_text

__all__ = ["seen"]

#: Earlier lives of one container that are told: the kubelet may have restarted it often between two looks.
_EARLIER = 32

#: A container that waits for such a reason does not start by itself.
_STUCK = frozenset({"ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"})

_SIGNALS = 128

#: The last line of a traceback, as `KeyError: 'x'` or `pkg.errors.SomeError`; and how many characters of it are kept.
_EXCEPTION = re.compile(r"\s*[A-Za-z_][\w.]*(?:Error|Exception)\b(?!\()")
_LONGEST = 500


def seen(pods: Iterable[PodView], lives: Lives, hosts: Iterable[HostView]) -> tuple[UnitSeen, ...]:
    """Return every life that pods tell of, and those that were started and of which no pod is there any more."""
    machines, every = {host.name: host for host in hosts}, tuple(pods)
    found = {unit.key: unit for pod in every for unit in _of_pod(pod, machines.get(pod.host))}
    newest = {(key.role, key.index): key for key in sorted(found)}
    living = {(f"{pod.labels.place}-{pod.labels.node}", pod.labels.incarnation) for pod in every if not pod.over}
    for at, last in lives.pods.items():
        if not last.made or (at, last.number) in living:
            continue
        for key in (lives.instances[name] for name in last.lives if name in lives.instances):
            known = newest.get((key.role, key.index))
            if known is None or key > known:
                newest[key.role, key.index] = key
                found[key] = UnitSeen(key=key, state=UnitState.LOST, present=False, reason=f"{_name(key)}: its pod was deleted")
    return tuple(found[key] for key in sorted(found))


def _of_pod(pod: PodView, host: HostView | None) -> Iterator[UnitSeen]:
    statuses = {one.name: one for one in pod.containers if not one.init}
    for name, first in read_lives(pod.lives).items():
        container = statuses.get(name)
        restarts = 0 if container is None else container.restarts
        for number in range(max(0, restarts - _EARLIER), restarts):
            key = _key(pod, name, first, number)
            end = container.last if container is not None and number == restarts - 1 else None
            unit = UnitSeen(key=key, state=UnitState.FAILED, present=False, reason=_ended(key, end), exit_code=_code(end))
            yield unit if end is None else dataclasses.replace(unit, ended_at=end.at)
        yield _last(pod, host, container, _key(pod, name, first, restarts))


def _key(pod: PodView, name: str, first: Life, restarts: int) -> UnitKey:
    role, index = instance_of(name)
    incarnation = first.incarnation + restarts
    return UnitKey(role=role, attempt=pod.labels.attempt, reset=first.reset, index=index, incarnation=incarnation)


def _last(pod: PodView, host: HostView | None, container: Container | None, key: UnitKey) -> UnitSeen:
    """Return the last life of a container."""
    end = _end(container)
    if end is not None:
        return _over(pod, key, end)
    if pod.over:
        why = pod.message or pod.reason or pod.target or "its pod ended"
        return UnitSeen(key=key, state=UnitState.LOST, present=False, reason=f"{_name(key)}: {why}")
    if host is not None and host.ready is None and pod.host:
        return UnitSeen(key=key, state=UnitState.LOST, present=True, reason=f"{_name(key)}: machine {host.name} is unreachable")
    if container is not None and isinstance(container.state, Waiting) and container.state.reason in _STUCK:
        why = container.state.message or container.state.reason
        return UnitSeen(key=key, state=UnitState.FAILED, present=True, reason=f"{_name(key)} does not start: {why}")
    return UnitSeen(key=key, state=UnitState.RUNNING, present=True)


def _end(container: Container | None) -> Terminated | None:
    """Return how the last run of a container ended; None while it runs or has not begun."""
    if container is None or isinstance(container.state, Running):
        return None
    return container.state if isinstance(container.state, Terminated) else container.last


def _over(pod: PodView, key: UnitKey, end: Terminated) -> UnitSeen:
    """Return a life whose process ended; what somebody ended with its pod is lost, whatever its exit code."""
    if pod.deleting or pod.target:
        why = pod.target_message or pod.target or "its pod was deleted"
        return UnitSeen(key=key, state=UnitState.LOST, present=False, reason=f"{_name(key)}: {why}")
    state = UnitState.FAILED if end.code else UnitState.SUCCEEDED
    reason, code = _ended(key, end), _code(end)
    unit = UnitSeen(key=key, state=state, present=False, reason=reason, exit_code=code, ended_at=end.at)
    return dataclasses.replace(unit, result=_result(end)) if state is UnitState.SUCCEEDED else unit


def _result(end: Terminated) -> Any:
    """Return the result that an instance left as its termination message; None for any other message."""
    try:
        return read_result(end.message.encode())
    except WireError:
        return None


def _code(end: Terminated | None) -> int | None:
    """Return an exit code as of `subprocess`: negative for a signal."""
    if end is None:
        return None
    return _SIGNALS - end.code if end.code > _SIGNALS else end.code


def _ended(key: UnitKey, end: Terminated | None) -> str:
    if end is None:
        return f"{_name(key)} ended and was restarted"
    if end.reason == "OOMKilled":
        return f"{_name(key)} was killed because it used more memory than its limit"
    if end.code > _SIGNALS:
        return f"{_name(key)} was killed by {signal_name(end.code - _SIGNALS)}"
    error = _error(end.message)
    return f"{_name(key)} exited with code {end.code}{f': {error}' if error else ''}"


def _error(message: str) -> str:
    """Return the last line of a message, which may be the end of a log, that names an exception of Python; "" for none."""
    found = (line.strip() for line in reversed(message.splitlines()) if _EXCEPTION.match(line))
    return clean_text(next(found, ""), _LONGEST)


def _name(key: UnitKey) -> str:
    return f"{key.role} {key.index}"
