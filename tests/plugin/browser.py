"""A real Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import eventually_async

__all__ = ["Browser", "Tab", "chromium", "open_browser"]


def chromium() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class _NoPageError(AssertionError):
    """The browser has refused something, as it does in a page that is about to be left."""


class Tab:
    """One page. What its console says is in `errors`, what the network refused in `refused`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[Any]) -> None:
        self._socket, self._answers, self._count = socket, dict[int, asyncio.Future[Any]](), 0
        self._reading = asyncio.create_task(self._read())
        self.errors: list[str] = []
        self.refused: list[str] = []

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._note(told["method"], told["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            kept = self.refused if params["entry"]["source"] == "network" else self.errors
            kept.append(params["entry"]["text"])

    async def ask(self, method: str, **params: Any) -> Any:
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        told = await answer
        if "error" in told:
            raise _NoPageError(f"{method}: {told['error']}")
        return told["result"]

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        told = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def show(self, address: str, *, width: int, height: int = 900, theme: str = "light", stored: str = "") -> None:
        """Open an address in a window of this width; `stored` is what Airflow's own switch says of the theme."""
        await self.resize(width=width, height=height, theme=theme)
        origin = address.partition("/rallypoint")[0]
        if stored:
            await self.ask("Page.navigate", url=f"{origin}/rallypoint/assets/0/style.css")
            await eventually_async(lambda: self.run(f"location.origin === {origin!r} && document.readyState === 'complete'"))
            await self.run(f"localStorage.setItem('theme', {stored!r})")
        self.errors.clear()
        self.refused.clear()
        await self.ask("Page.navigate", url=address)
        drawn = "document.readyState === 'complete' && document.querySelector('#page:not([aria-busy]) h1') !== null"
        settled = (
            "(document.fonts.ready, new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true)))))"
        )
        await eventually_async(
            lambda: self.run(f"location.href === {address!r} && {drawn}"),
            why=lambda: f"{address} is drawn; errors: {self.errors}",
        )
        await self.run(settled)

    async def resize(self, *, width: int, height: int = 900, theme: str = "light") -> None:
        """Have a window of this size; `theme` is what the system wishes."""
        phone = width < 600
        await self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        await self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    async def visit(self, address: str, *, until: str) -> None:
        """Open any address, until an expression is true there."""
        self.errors.clear()
        self.refused.clear()
        await self.ask("Page.navigate", url=address)
        await self.wait_for(until, why=address)

    async def wait_for(self, expression: str, *, why: str) -> None:
        """Wait until an expression of the page is true; while one page makes way for the next, nothing is."""

        async def holds() -> Any:
            with contextlib.suppress(_NoPageError):
                return bool(await self.run(f"document.readyState === 'complete' && Boolean({expression})"))
            return None

        await eventually_async(
            holds,
            why=lambda: f"{why}: {expression}; errors: {self.errors}, refused: {self.refused}",
        )

    async def press(self, key: str) -> None:
        """Press a key and let it go; Enter is one."""
        code = {"Enter": 13}[key]
        await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, text="\r")
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    async def picture(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        size = await self.run(
            "({width: innerWidth, height: Math.ceil(document.documentElement.getBoundingClientRect().height)})"
        )
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip={"x": 0, "y": 0, **size, "scale": 1})
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

    async def close(self) -> None:
        await self._socket.close()
        await self._reading


class Browser:
    """A Chromium that listens on `port`."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._port, self._session = port, session

    async def tab(self) -> Tab:
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            target = await answer.json(content_type=None)
        tab = Tab(await self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
        for domain in ("Page", "Runtime", "Log"):
            await tab.ask(f"{domain}.enable")
        return tab


@contextlib.asynccontextmanager
async def open_browser(program: str, folder: Path) -> AsyncIterator[Browser]:
    """Start a Chromium whose profile is in `folder`, and end it."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-extensions", "--mute-audio"]
    process = await asyncio.create_subprocess_exec(
        program,
        *options,
        *quiet,
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
        env={**os.environ, "TZ": "UTC", "HOME": str(folder)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    listening = folder / "DevToolsActivePort"
    try:
        await eventually_async(lambda: listening.exists() and listening.read_text().count("\n") >= 1, why="Chromium listens")
        async with aiohttp.ClientSession() as session:
            yield Browser(int(listening.read_text().splitlines()[0]), session)
    finally:
        process.terminate()
        await process.wait()
