"""Waiting for a condition with a deadline: the one way in which a test may let time pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["PATIENCE", "eventually", "eventually_async"]

#: Time-outs are those of a quiet machine; so many times as much is waited before a test fails. Where all is well it is free.
PATIENCE = 10.0

T = TypeVar("T")
#: What should have come true, or a function that tells it when it has not: only then is it the story up to the failure.
Why = str | Callable[[], str]


def eventually(predicate: Callable[[], T | None], timeout: float = 30.0, every: float = 0.02, why: Why = "") -> T:
    """Return the first truthy value of `predicate`; after `timeout` patient seconds fail with `why` and the last value.

    It is asked every `every` seconds, and less often the longer it takes: what is slow should not be slowed down by looking.
    """
    began = time.monotonic()
    while not (value := predicate()):
        waited = time.monotonic() - began
        if waited > PATIENCE * timeout:
            raise AssertionError(_too_late(value, timeout, why))
        time.sleep(_pause(every, waited))
    return value


async def eventually_async(
    predicate: Callable[[], Awaitable[T | None] | T | None], timeout: float = 30.0, every: float = 0.02, why: Why = ""
) -> T:
    """As `eventually`, in an event loop: `predicate` may be a plain function or a coroutine function."""
    began = time.monotonic()
    while True:
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        waited = time.monotonic() - began
        if waited > PATIENCE * timeout:
            raise AssertionError(_too_late(value, timeout, why))
        await asyncio.sleep(_pause(every, waited))


def _pause(every: float, waited: float) -> float:
    return max(every, min(waited / 100, 0.25))


def _too_late(value: object, timeout: float, why: Why) -> str:
    told = why() if callable(why) else why
    return f"{told or 'the condition'}: not so after {PATIENCE * timeout:g} s; the last value was {value!r}"
