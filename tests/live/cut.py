"""A network between two processes that can be cut, and mended: a relay of TCP connections on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

__all__ = ["Wire", "wire"]

_CHUNK = 1 << 16


class Wire:
    """Relays to one port. While it is cut nothing passes and nobody is told, as where a switch has lost its power."""

    def __init__(self, loop: asyncio.AbstractEventLoop, to: int) -> None:
        self._loop, self._to = loop, to
        self._whole = asyncio.Event()
        self._whole.set()
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._pair, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Break everything."""
        self._server.close()
        await self._mend()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        await self._whole.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        self._open.add(far_writer)
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                self._open.discard(end)
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
            await self._whole.wait()
        writer.close()

    def cut(self) -> None:
        """Let nothing pass any more."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    async def _cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        """Break what was open, as the ends of a long silence find it, and let new connections pass."""
        asyncio.run_coroutine_threadsafe(self._mend(), self._loop).result()

    async def _mend(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._whole.set()
        await asyncio.sleep(0)  # the transports close in the loop's next turn


@contextlib.contextmanager
def wire(to: int) -> Iterator[Wire]:
    """Yield a wire to a port; it relays in a thread of its own until the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = Wire(loop, to)
    try:
        asyncio.run_coroutine_threadsafe(made.open(), loop).result()
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
