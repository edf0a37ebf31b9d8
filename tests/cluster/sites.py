"""Where jobs run, with the hands that a test needs there: this machine, or a namespace of a cluster."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from rallypoint.backends.contract import Backend, BackendError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.client import MERGE_PATCH, KubeApi
from rallypoint.backends.kubernetes.errors import ApiError
from rallypoint.backends.kubernetes.labels import JOB
from rallypoint.backends.kubernetes.names import SUPERVISOR_ROLE
from rallypoint.backends.kubernetes.rbac import rbac
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.site import KUBERNETES, LOCAL
from rallypoint.backends.site import Site as Where
from rallypoint.job import ElasticJob, load_job
from rallypoint.wire.status import RankStatus
from tests.emulator.running import Running
from tests.live.jobs import Process, processes, without_children
from tests.waiting import eventually_async

__all__ = ["ClusterSite", "LocalSite", "Pods", "Site", "emulated"]

SCRIPT = Path(__file__).with_name("script.py").read_text()

#: Seconds without a beat until the tests take a supervisor for dead: more than one beat of one that lives. They open a second
#: one only after they have killed the first.
SILENT = 12.0


class Site(abc.ABC):
    """One place where jobs run. `where` says to the command line which."""

    python = sys.executable
    where: Where

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def job(self, name: str = "counter", env: dict[str, str] | None = None, **fields: Any) -> ElasticJob:
        """Return a job of the script; `fields` are its own, by the name of the block where they are in one."""
        document: dict[str, Any] = {
            "name": name,
            "entrypoint": {"command": [self.python, "-c", SCRIPT]},
            "env": {**self.env(), **(env or {})},
            "recovery": {"stop_grace_period": "2s"},
            "rendezvous": {"last_call_timeout": "10m"},  # the second node may be as slow as it likes; a shrink has none
            "fault_tolerance": {"retry_limit": 1, "retry_pause_period": 0, "failure_grace_period": "1s"},
            "health": {"report_interval": "100ms"},
            **self.fields(),
        }
        for key, value in fields.items():
            known = document.get(key)
            document[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
        return load_job(document, based=self.where.on_this_machine, base=self.folder if self.where.on_this_machine else None)

    def env(self) -> dict[str, str]:
        """Return what the script must know of the place."""
        return {}

    def fields(self) -> dict[str, Any]:
        """Return what every job of the place has."""
        return {}

    @abc.abstractmethod
    def open(self) -> Backend:
        """Return the place as another process would open it."""

    @abc.abstractmethod
    async def tell(self, job: str, worker: RankStatus, word: str) -> None:
        """Say a word to a worker; one that is gone hears nothing."""

    @abc.abstractmethod
    async def nodes(self, job: str) -> dict[int, str]:
        """Return what each node of a job that runs is, by its slot: another word for another process or pod."""

    @abc.abstractmethod
    async def lose_node(self, job: str, node: int) -> None:
        """Take a node away with all that runs in it, at once."""

    async def lose_host(self, job: str, instance: str) -> None:
        """Take away what runs an instance of a simple role (`role-index`) with all that runs in it, at once."""
        raise NotImplementedError(f"{job}: {instance}")

    async def drain_host(self, job: str, instance: str) -> None:
        """Ask what runs an instance of a simple role to end with its grace, as one does who knows nothing of Rallypoint."""
        await self.lose_host(job, instance)

    async def machines(self, job: str, role: str) -> dict[str, str]:
        """Return the machine of each node or group of a role by its number."""
        raise NotImplementedError(f"{job}: {role}")

    @abc.abstractmethod
    async def lose_coordinator(self, job: str) -> None:
        """Take the coordinator away at once."""

    @abc.abstractmethod
    async def left(self, job: str) -> list[str]:
        """Return what there is of a job, in words."""


class LocalSite(Site):
    """Processes of this machine."""

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder)
        self.home = home
        self.where = Where(kind=LOCAL, home=str(home))
        self.gate = folder / "gate"
        self.gate.mkdir()

    def env(self) -> dict[str, str]:
        return {"GATE": str(self.gate)}

    def open(self) -> Backend:
        return LocalBackend(self.home)

    async def tell(self, job: str, worker: RankStatus, word: str) -> None:
        partial = self.gate / f".{worker.rank}"
        partial.write_text(word)
        partial.replace(self.gate / str(worker.rank))

    async def _processes(self) -> list[Process]:
        return await asyncio.to_thread(processes, str(self.home))

    async def _of(self, job: str) -> list[Process]:
        """Return the processes of a job, or of an elastic role as the job that it is."""
        folders = (*self.home.glob(f"jobs/{job}"), *self.home.glob(f"jobs/*/jobs/{job}"))
        uids = {json.loads((folder / "record.json").read_text())["uid"] for folder in folders}
        homes = (self.home, *(folder.parents[1] for folder in folders))
        found = [process for home in dict.fromkeys(homes) for process in await asyncio.to_thread(processes, str(home))]
        return [process for process in found if process.mark.partition("/")[0] in uids]

    async def nodes(self, job: str) -> dict[int, str]:
        agents = {p.pid: p for p in await self._of(job) if "rallypoint.agent node" in p.command and "shim" not in p.command}
        return {int(agents[pid].mark.split("/")[-2]): str(pid) for pid in await asyncio.to_thread(without_children, agents)}

    async def lose_node(self, job: str, node: int) -> None:
        _kill([p for p in await self._of(job) if p.mark.split("/")[-2:-1] == [str(node)]])

    async def lose_host(self, job: str, instance: str) -> None:
        _kill(await self._host(job, instance))

    async def drain_host(self, job: str, instance: str) -> None:
        _kill([p for p in await self._host(job, instance) if "shim" not in p.command], signal.SIGTERM)

    async def _host(self, job: str, instance: str) -> list[Process]:
        """Return the shim and the host of the group that has an instance: they end with all that they have started."""
        newest = max(self.home.glob(f"jobs/{job}/hosts/*/*/units/{instance}"), key=lambda path: path.stat().st_mtime)
        folder = newest.parents[1]
        pids = {json.loads((folder / name).read_text())["pid"] for name in ("shim.json", "host.json")}
        return [process for process in await self._of(job) if process.pid in pids]

    async def lose_coordinator(self, job: str) -> None:
        _kill([p for p in await self._of(job) if "rallypoint.agent coordinator" in p.command])

    async def left(self, job: str) -> list[str]:
        folder = self.home / "jobs" / job
        return [p.command for p in await self._processes()] + ([str(folder)] if folder.exists() else [])


def _kill(found: list[Process], number: int = signal.SIGKILL) -> None:
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            process.kill(number)


class Pods:
    """How pods are made in a cluster whose nodes the tests did not choose."""

    def __init__(self, *, image: str, policy: str = "", python: str = "python", host_paths: tuple[str, ...] = ()) -> None:
        self.python = python
        volumes = [{"name": f"host-{n}", "hostPath": {"path": path}} for n, path in enumerate(host_paths)]
        self.fields: dict[str, Any] = {
            "image": image,
            "python": [python],
            **({"image_pull_policy": policy} if policy else {}),
            "resources": {"cpu": "50m", "memory": "128Mi", "cpu_limit": "2", "memory_limit": "2Gi"},
            # Images of Python run as root, which our pods refuse to.
            "pod_security_context": {"runAsUser": 10_001, "runAsGroup": 10_001, "fsGroup": 10_001},
            "volumes": volumes,
            "volume_mounts": [
                {"name": v["name"], "mountPath": path, "readOnly": True} for v, path in zip(volumes, host_paths, strict=True)
            ],
        }


class ClusterSite(Site):
    """A namespace of its own, in which supervisors have the Role that we print, and no right beyond it."""

    def __init__(self, folder: Path, kubeconfig: str, pods: Pods, *, env: dict[str, str] | None = None) -> None:
        super().__init__(folder)
        self.pods, self.python = pods, pods.python
        self.namespace = f"rallypoint-test-{secrets.token_hex(4)}"
        self._kubeconfig, self._env = kubeconfig, env or {}
        self.administrator = Access(namespace=self.namespace, kubeconfig=kubeconfig)
        self._hands = KubeApi(self.administrator)
        self._granted = str(folder / "kubeconfig.supervisor")
        self.where = Where(kind=KUBERNETES, namespace=self.namespace, kubeconfig=self._granted)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[ClusterSite]:
        """Have the namespace and its accounts while the context lasts."""
        try:
            await self._begin()
            yield self
        finally:
            with contextlib.suppress(BackendError):  # it was not made
                await self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}")
            await self._hands.close()

    async def _begin(self) -> None:
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        for manifest in rbac(self.namespace, network=True):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            await self.ask("POST", f"{root}/namespaces/{self.namespace}/{manifest['kind'].lower()}s", manifest)
        token = await self.token(SUPERVISOR_ROLE)
        text = await asyncio.to_thread(_with_token, Path(self._kubeconfig), token)
        await asyncio.to_thread(Path(self._granted).write_text, text)
        await self._ready()

    async def token(self, account: str) -> str:
        """Return a token of a service account."""
        what = {"spec": {"expirationSeconds": 7200}}
        answer = await self.ask("POST", self.path("serviceaccounts", account, "token"), what)
        return str(answer["status"]["token"])

    def env(self) -> dict[str, str]:
        return self._env

    def fields(self) -> dict[str, Any]:
        return self.pods.fields

    def open(self) -> Backend:
        # A context of its own: nothing is shared with another that this process opened.
        return KubernetesBackend(Access(namespace=self.namespace, kubeconfig=self._granted), silent=SILENT)

    def path(self, kind: str, name: str = "", sub: str = "") -> str:
        group = "/apis/coordination.k8s.io/v1" if kind == "leases" else "/api/v1"
        return "/".join(part for part in (group, "namespaces", self.namespace, kind, name, sub) if part)

    async def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Any request, as the administrator who gave the kubeconfig."""
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        return json.loads(await self._hands.request(method, path, query=query, body=body, kind=kind))

    async def ask_text(self, path: str, **query: str) -> str:
        """A request whose answer is no JSON."""
        return (await self._hands.request("GET", path, query=query, timeout=10.0)).decode(errors="replace")

    async def ensure(self, path: str, body: Any) -> None:
        """Create an object unless it is there."""
        try:
            await self.ask("POST", path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    async def listed(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        query = {"labelSelector": selector} if selector else {}
        found: list[dict[str, Any]] = (await self.ask("GET", self.path(kind), **query))["items"]
        return found

    async def living(self, job: str, part: str) -> list[dict[str, Any]]:
        """Return the pods of a job that run: those of a part, `node` or `coordinator`."""
        found = await self.listed("pods", f"{JOB}={job},rallypoint.dev/part={part}")
        return [pod for pod in found if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]]

    async def tell(self, job: str, worker: RankStatus, word: str) -> None:
        for pod in await self.living(job, "node"):
            if pod["metadata"]["labels"]["rallypoint.dev/node"] != str(worker.node):
                continue
            path = self.path("pods", f"{pod['metadata']['name']}:{8700 + worker.local_rank}", f"proxy/{word}")
            with contextlib.suppress(BackendError):  # it has ended, or has not begun
                await self._hands.request("GET", path, timeout=10.0)

    async def nodes(self, job: str) -> dict[int, str]:
        return {
            int(pod["metadata"]["labels"]["rallypoint.dev/node"]): f"{pod['metadata']['uid']} {_restarts(pod)}"
            for pod in await self.living(job, "node")
        }

    async def lose_node(self, job: str, node: int) -> None:
        for pod in await self.living(job, "node"):
            if pod["metadata"]["labels"]["rallypoint.dev/node"] == str(node):
                await self.remove(pod["metadata"]["name"])

    async def lose_coordinator(self, job: str) -> None:
        for pod in await self.living(job, "coordinator"):
            await self.remove(pod["metadata"]["name"])

    async def remove(self, pod: str) -> None:
        """Delete a pod without grace, as somebody does who knows nothing of Rallypoint."""
        await self.ask("DELETE", self.path("pods", pod), {"gracePeriodSeconds": 0})

    async def left(self, job: str) -> list[str]:
        every = [(kind, await self.listed(kind, f"{JOB}={job}")) for kind in ("configmaps", "secrets", "services", "pods")]
        leases = [("leases", await self.listed("leases"))]
        return [f"{kind}/{found['metadata']['name']}" for kind, items in (*every, *leases) for found in items]

    async def logs_of(self, pod: str) -> str:
        """Return what a pod wrote, "" where that cannot be read."""
        try:
            return (await self._hands.request("GET", self.path("pods", pod, "log"))).decode(errors="replace")
        except BackendError:
            return ""

    async def _ready(self) -> None:
        """Wait until pods can be made: a new namespace has no account at first."""

        async def there() -> Any:
            try:
                return bool(await self.ask("GET", self.path("serviceaccounts", "default")))
            except ApiError:
                return False

        await eventually_async(there)


def emulated(emulator: Running, folder: Path, **env: str) -> ClusterSite:
    """A namespace of the emulated cluster."""
    return ClusterSite(folder, str(emulator.kubeconfig(folder / "kubeconfig")), Pods(image="any:1"), env=env)


def _restarts(pod: dict[str, Any]) -> str:
    return ",".join(str(one.get("restartCount", 0)) for one in pod["status"].get("containerStatuses") or [])


def _with_token(kubeconfig: Path, token: str) -> str:
    """Return a kubeconfig of the same cluster for whom a token belongs to."""
    known = yaml.safe_load(kubeconfig.read_text())
    context = next(c["context"] for c in known["contexts"] if c["name"] == known["current-context"])
    cluster = next(c for c in known["clusters"] if c["name"] == context["cluster"])
    if authority := cluster["cluster"].get("certificate-authority"):
        cluster["cluster"]["certificate-authority"] = str(kubeconfig.absolute().parent / authority)
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [cluster],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": cluster["name"], "user": "test"}}],
        }
    )
