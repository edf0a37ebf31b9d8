"""Who waits for news and is told to stop at the very moment at which they come, stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rallypoint.backends.kubernetes.watching.cache import KubernetesChanges
from rallypoint.backends.kubernetes.watching.follow import _next
from rallypoint.backends.local.changes import _is_set_within

#: Something that waits, and the news that it waits for.
Waiter = tuple[Awaitable[Any], Callable[[], Any]]


def event() -> Waiter:
    ended = asyncio.Event()
    return _is_set_within(ended, 60.0), ended.set


def changes() -> Waiter:
    job = KubernetesChanges()
    return job.wait(60.0), job.tell


def line() -> Waiter:
    queue: asyncio.Queue[Any] = asyncio.Queue()
    return _next(queue, 60.0), lambda: queue.put_nowait("a line")


@pytest.mark.parametrize("make", [event, changes, line])
async def test_a_cancellation_is_not_forgotten(make: Callable[[], Waiter]) -> None:
    """However few steps of the event loop lie between the news and the cancellation."""
    cancelled = 0
    for steps in range(6):
        waiting, tell = make()
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0.01)
        tell()
        for _ in range(steps):
            await asyncio.sleep(0)
        told = task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() is told
        cancelled += told
    assert cancelled >= 2
