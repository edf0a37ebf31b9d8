"""Cleaning up although the caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rallypoint.backends.uninterrupted import uninterrupted


async def test_two_cancellations_interrupt_nothing() -> None:
    """The work ends, and the caller is cancelled then."""
    begun, go, done = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        begun.set()
        await go.wait()
        done.append("all")

    task = asyncio.create_task(uninterrupted(work()))
    await begun.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["all"]


async def test_result_and_error_are_those_of_the_work() -> None:
    """Without a cancellation nothing changes."""

    async def fails() -> None:
        raise ValueError("no")

    async def returns() -> int:
        return 3

    assert await uninterrupted(returns()) == 3
    with pytest.raises(ValueError, match="no"):
        await uninterrupted(fails())


async def test_an_error_of_the_work_does_not_hide_the_cancellation() -> None:
    """The caller wanted to end."""
    begun = asyncio.Event()

    async def fails() -> None:
        begun.set()
        await asyncio.sleep(0.01)
        raise ValueError("no")

    task = asyncio.create_task(uninterrupted(fails()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_end_of_the_loop_ends_the_work() -> None:
    """It cancels all tasks, that of the work as well."""

    async def forever() -> None:
        await asyncio.sleep(3600)

    task = asyncio.create_task(uninterrupted(forever()))
    await asyncio.sleep(0)
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert task.done()
