"""An emulator in a thread of its own, for tests that call it as they would call a cluster; and the client of its troubles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.emulator.emulator import Emulator
from tests.emulator.options import Options

__all__ = ["Answer", "Running", "Troubles", "kubeconfig", "running"]

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

#: A status code and the JSON, or the text, that came with it.
Answer = tuple[int, Any]


class Troubles:
    """What can be done to an emulated cluster, from any process and any thread: `troubles.lose_node(name="node-a")`.

    Each method is an operation of `tests.emulator.control.Control`, which tells its arguments.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)

        def perform(**told: Any) -> Any:
            code, answer = self.request("POST", f"/emulator/{operation}", told)
            if code != 200:
                raise ValueError(f"{operation}({told}): {answer}")
            return answer["result"]

        return perform

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        token: str = "",
        timeout: float = 60.0,
    ) -> Answer:
        """Any request to the server, without a client library."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content, **({"Authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with _OPENER.open(request, timeout=timeout) as response:
                return response.status, _read(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error.read())


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


class Running(Troubles):
    """An emulator that runs in this process."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__(emulator.url)
        self.emulator = emulator
        self.admin_token = emulator.access.admin_token

    def kubeconfig(self, file: Path, *, token: str = "") -> Path:
        """Write a kubeconfig for the administrator, or for whose token that is."""
        file.write_text(kubeconfig(self.url, token or self.admin_token))
        return file


def kubeconfig(url: str, token: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "emulator",
            "clusters": [{"name": "emulator", "cluster": {"server": url}}],
            "users": [{"name": "emulator", "user": {"token": token}}],
            "contexts": [{"name": "emulator", "context": {"cluster": "emulator", "user": "emulator", "namespace": "default"}}],
        }
    )


async def _drain() -> None:
    """End what aiohttp still has to say to clients that have gone."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def running(options: Options) -> Iterator[Running]:
    """Run an emulator until the block ends; nothing that it started is there afterwards."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="emulator", daemon=True)
    thread.start()

    def do(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    async def build() -> Emulator:
        emulator = Emulator(options)
        await emulator.start()
        return emulator

    try:
        emulator = do(build())
        try:
            yield Running(emulator)
        finally:
            do(emulator.close())
            do(_drain())
            do(loop.shutdown_default_executor())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
