"""The life of one pod on its node: volumes, init containers, containers, restarts, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Protocol

from tests.emulator.bodies import Body
from tests.emulator.kubelet.environment import ConfigError, check_user, command_of, environment_of, image_environment
from tests.emulator.kubelet.images import Images, PullError
from tests.emulator.kubelet.process import ContainerProcess
from tests.emulator.kubelet.status import ContainerState, pod_status
from tests.emulator.kubelet.volumes import VolumeError, Volumes
from tests.emulator.store import Store

__all__ = ["Host", "PodRun"]

#: Seconds of a real kubelet between attempts to mount, to pull, to configure; and before restarts, from the first to the last.
RETRY, FIRST_RESTART, LAST_RESTART = 2.0, 10.0, 300.0

#: Seconds that a pod has which was deleted by force: the kubelet learns of it when it is gone.
FORCED = 1.0


class Host(Protocol):
    """What a pod needs of its node."""

    url: str
    speed: float
    routing: bool
    address: str
    images: Images
    image_env: dict[str, str]
    store: Store
    powered: asyncio.Event

    def volumes(self, pod: Body, folder: Path) -> Volumes: ...
    def report(self, run: PodRun) -> None: ...
    def finished(self, run: PodRun) -> None: ...
    def tell(self, pod: Body, kind: str, reason: str, message: str) -> None: ...


class PodRun:
    """A pod that was bound to a node. `run` ends when nothing of it is left on the machine."""

    def __init__(self, host: Host, pod: Body, folder: Path, address: str) -> None:
        self.pod, self.folder, self.address, self.host = pod, folder, address, host
        self.over: Body | None = None
        """What an eviction made of the status."""
        self.states = [
            ContainerState(
                name=container["name"],
                image=container["image"],
                role="main" if field == "containers" else "sidecar" if container.get("restartPolicy") == "Always" else "init",
                waiting={"reason": "ContainerCreating" if not pod["spec"].get("initContainers") else "PodInitializing"},
            )
            for field in ("initContainers", "containers")
            for container in pod["spec"].get(field) or []
        ]
        self.over_for_good = False
        """Whether nothing of it is left on the machine, and its last status is known."""
        self._specs = {one["name"]: one for field in ("initContainers", "containers") for one in pod["spec"].get(field) or []}
        self._running: dict[str, ContainerProcess] = {}
        self._sidecars: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._deadline = float("inf")
        self._oom: set[str] = set()
        self._volumes: Volumes | None = None

    def status(self) -> Body:
        address = self.address if self._volumes else ""  # a pod has its address when its volumes are there
        return pod_status(self.pod, self.states, address, self.host.address, self.over)

    def state(self, container: str) -> ContainerState | None:
        return next((one for one in self.states if one.name == container), None)

    # ------------------------------------------------------------------------------------------------ what others do to it

    def stop(self, grace: float) -> None:
        """Begin to end it, or end it sooner than was said before."""
        self._deadline = min(self._deadline, time.monotonic() + grace)
        self._stopping.set()

    def changed(self, pod: Body) -> None:
        """Take over what the API says of the pod."""
        self.pod = pod
        if self._volumes is not None:
            self._volumes.refresh(pod)

    def evict(self, message: str) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
        self.over = {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [condition]}
        self.stop(0.0)

    async def kill(self, container: str = "", *, oom: bool = False) -> None:
        """SIGKILL to one container, or to all: by the OOM killer, or because the machine is gone."""
        for name, process in list(self._running.items()):
            if not container or name == container:
                if oom:
                    self._oom.add(name)
                await process.kill()

    async def freeze(self) -> None:
        """Stop all that runs of it, without a word to anybody: its machine has no power."""
        await asyncio.gather(*(process.freeze() for process in self._running.values()))

    # ------------------------------------------------------------------------------------------------------- its own life

    async def run(self) -> None:
        watchdog = asyncio.create_task(self._end_when_told())
        try:
            self.host.report(self)
            if await self._mounted() and await self._initialised():
                mains = [one for one in self.states if one.role == "main"]
                await asyncio.gather(*(self._live(state) for state in mains))
            self.stop(self.pod["spec"]["terminationGracePeriodSeconds"])  # what runs now are sidecars
            await asyncio.gather(*self._sidecars)
        finally:
            watchdog.cancel()
            for task in self._sidecars:
                task.cancel()
        if self.status()["phase"] not in {"Succeeded", "Failed"}:
            done = all(one.succeeded() for one in self.states if one.role == "main")
            self.over = {"phase": "Succeeded" if done else "Failed", **(self.over or {})}
        await self.host.powered.wait()
        self.over_for_good = True
        self.host.finished(self)

    async def _end_when_told(self) -> None:
        """TERM to everybody when the pod is to end, KILL when its grace is over; as long as somebody may still be starting."""
        await self._stopping.wait()
        while True:
            if time.monotonic() >= self._deadline:
                await self.kill()
            for process in list(self._running.values()):
                process.terminate_once()
            await asyncio.sleep(min(max(self._deadline - time.monotonic(), 0.01), 0.05))

    async def _mounted(self) -> bool:
        volumes = self.host.volumes(self.pod, self.folder)
        while not self._stopping.is_set():
            try:
                await asyncio.to_thread(volumes.prepare)
            except (VolumeError, ValueError, OSError) as error:
                self.host.tell(self.pod, "Warning", "FailedMount", str(error))
                await self._pause(RETRY)
            else:
                self._volumes = volumes
                self.host.report(self)
                return True
        return False

    async def _initialised(self) -> bool:
        for state in self.states:
            if self._stopping.is_set():
                return False
            if state.role == "sidecar":
                self._sidecars.append(asyncio.create_task(self._live(state)))
                while not state.running and not self._stopping.is_set():  # noqa: ASYNC110 -- it may never run
                    await asyncio.sleep(0.005)
            elif state.role == "init":
                await self._live(state)
                if not state.succeeded():
                    return False
        return not self._stopping.is_set()

    async def _live(self, state: ContainerState) -> None:
        """Run a container, and again where its policy says so, until it has ended for good or the pod ends."""
        pause = FIRST_RESTART
        while not self._stopping.is_set():
            await self.host.powered.wait()
            if not await self._created(state):
                continue
            began = time.monotonic()
            await self._once(state)
            await self.host.powered.wait()
            self.host.report(self)
            if self._stopping.is_set() or not self._again(state):
                return
            if time.monotonic() - began > 2 * LAST_RESTART / self.host.speed:
                pause = FIRST_RESTART
            state.wait(
                "CrashLoopBackOff",
                f"back-off {pause:g}s restarting failed container={state.name} pod={self.pod['metadata']['name']}",
            )
            self.host.report(self)
            await self._pause(pause)
            pause = min(2 * pause, LAST_RESTART)
            state.restarts += 1

    def _again(self, state: ContainerState) -> bool:
        policy = "Always" if state.role == "sidecar" else self.pod["spec"]["restartPolicy"]
        if policy == "Always" and state.role == "init":
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and not state.succeeded())

    async def _created(self, state: ContainerState) -> bool:
        """Start the container; False where it could not be created this time, which its state tells."""
        spec, volumes = self._specs[state.name], self._volumes
        assert volumes
        try:
            self.host.images.pull(spec)
            check_user(self.pod, spec, root=self.host.images.runs_as_root(spec["image"]))
            mounts = volumes.mounts(spec)
            said = self._message(state)
            said.write_text("")
            mounts = type(mounts)((*mounts.folders, (spec["terminationMessagePath"], said)))
            base = image_environment(self.host.url, self.host.image_env, self.folder, routing=self.host.routing)
            # The address of the pod is known to its containers before the status that tells it is written.
            pod = {**self.pod, "status": {**(self.pod.get("status") or {}), "podIP": self.address, "hostIP": self.host.address}}
            environment = environment_of(pod, spec, self.host.store, mounts, base)
            argv = command_of(spec, environment, mounts)
        except PullError as error:
            backing_off = (state.waiting or {}).get("reason") == "ErrImagePull"
            reason = "ImagePullBackOff" if backing_off else error.reason
            message = f'Back-off pulling image "{spec["image"]}": {error.message}' if backing_off else error.message
            await self._refused(state, reason, message)
            return False
        except (ConfigError, ValueError) as error:
            await self._refused(state, "CreateContainerConfigError", str(error))
            return False
        folder = Path(mounts.rewrite(spec.get("workingDir") or str(self.folder / "root")))
        await self._start(state, argv, environment, folder)
        return True

    async def _refused(self, state: ContainerState, reason: str, message: str) -> None:
        state.wait(reason, message)
        self.host.tell(self.pod, "Warning", "Failed", message)
        self.host.report(self)
        await self._pause(RETRY)

    async def _start(self, state: ContainerState, argv: list[str], environment: dict[str, str], folder: Path) -> None:
        mark = f"{self.pod['metadata']['uid']}/{state.name}/{state.restarts}"
        if state.restarts:
            state.previous_log = state.log
        state.log.close()
        state.log = type(state.log)()
        process = ContainerProcess(mark, state.log)
        state.run(mark)
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            await process.start(argv, environment, folder)
        except OSError as error:
            message = f'failed to create containerd task: exec: "{argv[0]}": {error.strerror or error}: unknown'
            state.end(128, "StartError", message)
            state.log.close()
            return
        self._running[state.name] = process
        if not self.host.powered.is_set():  # the machine went off meanwhile
            await process.kill()
        self.host.report(self)

    async def _once(self, state: ContainerState) -> None:
        process = self._running.get(state.name)
        if process is None:  # it did not start
            return
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill_found()
            raise
        finally:
            self._running.pop(state.name, None)
        oom = state.name in self._oom
        self._oom.discard(state.name)
        fallback = self._specs[state.name].get("terminationMessagePolicy") == "FallbackToLogsOnError" and code != 0
        written = self._message(state).read_text(errors="replace")[:4096]
        state.end(code, "OOMKilled" if oom else "", written or (state.log.tail(2048) if fallback else ""))

    def _message(self, state: ContainerState) -> Path:
        """Where a container leaves its termination message."""
        return self.folder / f"message-{state.name}"

    async def _pause(self, seconds: float) -> None:
        """Wait as long as a kubelet would, at this one's speed, or until the pod is to end."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds / self.host.speed)
