"""Waiting for an event, but not for ever."""

from __future__ import annotations

import asyncio

__all__ = ["set_within"]


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Return True as soon as `event` is set, False after `seconds` without."""
    if seconds <= 0 or event.is_set():
        return event.is_set()
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
        return event.is_set()
    finally:
        waiter.cancel()
