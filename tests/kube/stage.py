"""The Kubernetes backend on the emulator, with hands that do what outside of it happens."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import Backend, LogLine
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.labels import JOB, UID
from rallypoint.backends.kubernetes.manifests.objects import STATUS_KEY, status_configmap
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import ElasticJob, load_job
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.podlog import front
from rallypoint.wire.status import JobStatus
from tests.backends.stage import FAST, Stage
from tests.emulator.running import Running
from tests.waiting import eventually

__all__ = ["POD_STAND_IN", "KubernetesStage"]

POD_STAND_IN = Path(__file__).with_name("pod_stand_in.py")

_namespaces = itertools.count(1)


class KubernetesStage(Stage):
    """A namespace of an emulated cluster, with stand-ins for agents."""

    refusal = "resources: "
    remembers = False

    def __init__(self, folder: Path, emulator: Running) -> None:
        super().__init__(folder)
        self.emulator = emulator
        self.namespace = f"stage-{next(_namespaces)}"
        self.ends = folder / "ends"
        self.ends.mkdir()
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self._others = itertools.count(1)
        self.opened: list[Backend] = []
        self.backend = self.another()

    def another(self) -> Backend:
        # Nobody shares anything with a cluster of another name.
        access = Access(namespace=self.namespace, server=self.emulator.url, context=f"process-{next(self._others)}")
        backend = KubernetesBackend(access, beat=0.2, silent=2.0)
        self.opened.append(backend)
        return backend

    async def close(self) -> None:
        """End what the backends hold, and what runs in the namespace."""
        for backend in self.opened:
            await backend.close()
        self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}")

    def job(self, name: str = "digits", **fields: Any) -> ElasticJob:
        own = {"image": "py", "python": [sys.executable, "-I", "-S", str(POD_STAND_IN), str(self.ends)]}
        what = {**own, "entrypoint": "train.py"} if "roles" not in fields else {}
        return load_job({"name": name, **what, **FAST, **fields}, based=False)

    def ask(self, method: str, path: str, body: Any = None, *, fine: tuple[int, ...] = (), content: str = "") -> Any:
        """Any request to the API server; returns the answer's JSON."""
        token = self.emulator.admin_token
        kind = content or "application/json"
        code, answer = self.emulator.request(method, path, body, token=token, content=kind)
        assert code < 300 or code in fine, (method, path, code, answer)
        return answer if code < 300 else None

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def pods(self, selector: str = JOB) -> list[dict[str, Any]]:
        return self.ask("GET", f"{self.path('pods')}?labelSelector={selector.replace('=', '%3D')}")["items"]

    def break_submissions(self) -> None:
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        self.ask("POST", self.path("resourcequotas"), quota)

    def clock(self) -> Callable[[], float]:
        return time.time

    def end_node(self, record: JobRecord, node: int, exit_code: int) -> None:
        end = self.ends / f"node-{record.attempt}-{node}-1"
        new = end.with_suffix(".new")
        new.write_text(str(exit_code))
        new.replace(end)

    def say(self, status: JobStatus) -> None:
        ref = JobRef(name=status.job, uid=status.uid, namespace=self.namespace)
        place = self.path("configmaps", names.status_configmap(ref))
        change = {"data": {STATUS_KEY: codec.dumps(status)}}

        def said() -> bool:
            # Under a storm of conflicts it is our turn to be refused, too.
            self.ask("POST", self.path("configmaps"), status_configmap(ref), fine=(409,))
            return self.ask("PATCH", place, change, content="application/merge-patch+json", fine=(404, 409)) is not None

        eventually(said)

    def delete_from_outside(self, name: str) -> None:
        self.ask("DELETE", self.path("configmaps", names.job_configmap(name)))

    def left_of(self, record: JobRecord) -> int:
        return len(self.pods(f"{UID}={record.uid}"))

    def write_log(self, line: LogLine, *, attempt: int, round_: int, end: str = "\n") -> None:
        with (self.ends / f"node-{attempt}-0-1.say").open("a") as file:
            file.write(front(round_, line.rank, line.stream) + line.text + end)
        eventually(lambda: line.text in self._log_of(f"-a{attempt}-n0-1"))

    def _log_of(self, end: str) -> str:
        found = [p["metadata"]["name"] for p in self.pods() if p["metadata"]["name"].endswith(end)]
        token = self.emulator.admin_token
        code, text = self.emulator.request("GET", self.path("pods", found[0]) + "/log", token=token)
        return str(text) if code == 200 else ""
