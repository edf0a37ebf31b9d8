"""The controllers that a cluster may have beside Kubernetes: of AppWrapper, JobSet, KubeRay, Kueue, the training operator.

They are clients of the API like any other, and need nothing else of the emulator but that it asks their webhooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from tests.emulator.controllers.api import Api
from tests.emulator.controllers.appwrapper import AppWrapperController
from tests.emulator.controllers.jobset import JobSetController
from tests.emulator.controllers.kuberay import RayClusterController, RayJobController
from tests.emulator.controllers.kueue import KueueController
from tests.emulator.controllers.loop import Controller
from tests.emulator.controllers.pytorchjob import PyTorchJobController
from tests.emulator.controllers.webhooks import WEBHOOKS
from tests.emulator.resources import Resource

__all__ = ["NAMES", "Running", "start", "webhooks"]

NAMES = ("appwrapper", "jobset", "kueue", "pytorchjob", "raycluster", "rayjob")


class Running:
    """Controllers at work; `close` stops them, and what they have made stays."""

    def __init__(self, api: Api, tasks: Collection[asyncio.Task[None]]) -> None:
        self._api, self._tasks = api, tasks

    async def close(self) -> None:
        """Stop; raises what made one of them stop by itself."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.__aexit__(None, None, None)
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error


async def start(url: str, names: Collection[str], *, speed: float = 1.0, master: str = "localhost", token: str = "") -> Running:
    """Start controllers against the API server at `url`.

    Args:
        url: of the API server.
        names: which ones, of `NAMES`; anything else is a `ValueError`.
        speed: so many times faster do AppWrapper's graces and polls pass.
        master: where pods find their PyTorchJob's master; "" for its Service, in a cluster that resolves names.
        token: for the API server, where it asks for one.
    """
    _known(names)
    api = await Api(url, token).__aenter__()
    made: dict[str, Callable[[], Controller]] = {
        "appwrapper": lambda: AppWrapperController(api, speed=speed),
        "jobset": lambda: JobSetController(api, speed=speed),
        "kueue": lambda: KueueController(api),
        "pytorchjob": lambda: PyTorchJobController(api, host=master),
        "raycluster": lambda: RayClusterController(api),
        "rayjob": lambda: RayJobController(api),
    }
    return Running(api, [asyncio.create_task(made[name]().run(), name=name) for name in sorted(names)])


def webhooks(names: Collection[str]) -> list[Callable[[Resource, dict[str, Any]], None]]:
    """Return what is to be asked before an object is created, for these controllers."""
    _known(names)
    return [WEBHOOKS[name] for name in sorted(names) if name in WEBHOOKS]


def _known(names: Collection[str]) -> None:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise ValueError(f"controllers: {', '.join(unknown)} are not known; there are {', '.join(NAMES)}")
