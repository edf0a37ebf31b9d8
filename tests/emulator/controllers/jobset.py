"""JobSet's part, with that of the Jobs below: looks through the API, asks the rules, and does what they say."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.emulator.controllers.api import Api, ApiError, Kind, Object
from tests.emulator.controllers.jobset_rules import NAME, Memory, condition, turn
from tests.emulator.controllers.loop import Controller, Key, key_of

__all__ = ["JOBSETS", "JobSetController"]

JOBSETS = Kind("jobset.x-k8s.io/v1alpha2", "jobsets")
PODS = Kind("v1", "pods")


class JobSetController(Controller):
    """Runs the JobSets of a cluster; back-offs last `speed` times shorter."""

    def __init__(self, api: Api, *, speed: float = 1.0) -> None:
        super().__init__(api)
        self._speed = speed
        self._memory: dict[str, Memory] = {}

    async def follow(self, group: Callable[[Kind, Callable[[str, Object], None]], None]) -> None:
        group(JOBSETS, lambda _event, found: self.agenda.add(key_of(found)))
        group(PODS, self._pod)

    def _pod(self, event: str, pod: Object) -> None:
        name = pod["metadata"].get("labels", {}).get(NAME)
        if name:
            self.agenda.add((key_of(pod)[0], name))

    async def reconcile(self, key: Key) -> float | None:
        jobset = await self.api.get(JOBSETS, *key)
        if jobset is None or "deletionTimestamp" in jobset["metadata"]:
            return None
        memory = self._memory.setdefault(jobset["metadata"]["uid"], Memory())
        pods, _version = await self.api.list(PODS, key[0], f"{NAME}={key[1]}")
        uid = jobset["metadata"]["uid"]
        own = [pod for pod in pods if any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", []))]
        made = turn(jobset, own, memory, time.time(), speed=self._speed)
        if made.condition:
            conditions = [*jobset.get("status", {}).get("conditions", []), condition(made.condition, time.time())]
            body = {
                "metadata": {"resourceVersion": jobset["metadata"]["resourceVersion"]},
                "status": {"conditions": conditions},
            }
            await self.api.patch(JOBSETS, *key, body, part="status")
        for pod in made.delete:
            await self.api.delete(PODS, pod)
        for pod in made.create:
            try:
                await self.api.create(PODS, key[0], pod)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
        return made.after
