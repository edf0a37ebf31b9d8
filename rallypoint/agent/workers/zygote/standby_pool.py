"""The zygote of an agent and its standbys: started beside the first attempt, refilled in the background, replaced on failure.

Workers can run without them: if a fork is not possible, workers are started as programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.agent.workers.zygote.messages import PACKET, packet, unpacked
from rallypoint.agent.workers.zygote.standby import Standby
from rallypoint.wire.python import run_module

__all__ = ["StandbyPool", "Wanted", "declared"]

log = logging.getLogger("rallypoint.zygote")

#: The zygote.
_MODULE = "rallypoint.agent.workers.zygote"

#: Seconds after the last start of a worker before standbys are made again: the cores belong to the recovery until then.
_SETTLE = 0.25

#: Seconds until the second look for what the workers have imported, and between two looks at the most: each time it is not
#: there it is waited for twice as long, as a script may never train. Nothing waits for it.
_LOOK, _LONGEST_LOOK = 1.0, 30.0

#: Zygotes that may end before they were ready, in a row: then there is something wrong that another one will not mend.
_STILLBIRTHS = 3


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is kept ready.

    Attributes:
        standbys: so many forks.
        preload: modules that are imported beside torch.
        learned: file in which a worker leaves the names of what it has imported; None learns nothing.
        device: standbys make the context of a CUDA device, too, where there is one: the n-th that of device n.
        startup: file of the start-up module of workers, which a standby loads before it is one; "" is none.
    """

    standbys: int
    preload: tuple[str, ...] = ()
    learned: Path | None = None
    device: bool = False
    startup: str = ""


class StandbyPool:
    """One zygote at a time, and the forks of it that wait."""

    def __init__(self, spawner: Spawner, reaper: Reaper, wanted: Wanted) -> None:
        self._spawner, self._reaper, self._wanted = spawner, reaper, wanted
        self._env: dict[str, str] = {}
        self._place = ""
        self._line: socket.socket | None = None
        self._pid = 0
        self._ready = self._busy = self._closing = self._starting = False
        self._pending: deque[tuple[Standby, dict[str, Any]]] = deque()
        self._standbys: list[Standby] = []
        self._generation = self._stillbirths = 0
        self._refused: set[str] = set()
        self._learning = wanted.learned is not None
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Task[None] | None = None
        self._birth: asyncio.Task[None] | None = None
        self._was_ready: list[Callable[[], None]] = []
        self._was_prepared: list[Callable[[], None]] = []
        self._imports: tuple[str, ...] = ()
        self.given_up = ""

    # --- What the launcher asks for ----------------------------------------------------------------------------------------

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the zygote; empty before there was one."""
        return self._env

    @property
    def waiting(self) -> tuple[Standby, ...]:
        """The forks that are ready for a command."""
        return tuple(s for s in self._standbys if s.ready and not s.taken)

    @property
    def prepared(self) -> bool:
        """Whether nothing is left to import or to warm: every standby is ready, or no fork can be had."""
        if self.given_up:
            return True
        return self._ready and not self._busy and not self._imports and len(self._current()) >= self._wanted.standbys

    def _current(self) -> tuple[Standby, ...]:
        return tuple(s for s in self.waiting if s.generation == self._generation)

    def when_ready(self, told: Callable[[], None]) -> None:
        """Call `told` whenever a zygote has become ready."""
        self._was_ready.append(told)

    def when_prepared(self, told: Callable[[], None]) -> None:
        """Call `told` whenever `prepared` may have changed."""
        self._was_prepared.append(told)

    def begin(self, env: Mapping[str, str], place: str, imports: Sequence[str] = ()) -> None:
        """Start a zygote with this environment, whose own modules are in the folder `place`; a zygote with another one ends.

        `imports`: modules that the script is known to import; those from installed packages are imported before any fork.
        """
        if self.given_up or self._closing or self._starting:
            return
        self._imports = tuple(imports)
        self._env, self._place = dict(env), place
        self._end_zygote()
        for standby in self.waiting:
            self._dismiss(standby)
        self._start()

    async def take(self, slot: int) -> Standby | None:
        """Return a fork that is ready, or None where none can be had. `slot` is the local rank that it is for."""
        ready = self.waiting
        if ready:
            standby = next((one for one in ready if one.slot == slot), ready[0])
            self._standbys.remove(standby)
            return standby
        if not self._ready or self._busy:
            return None
        standby = self._order(slot)
        if not await standby.settled:
            return None
        self._standbys.remove(standby)
        return standby

    def refill_soon(self) -> None:
        """Make the standbys that are missing, once nothing was started for a moment."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closing:
            self._timer = asyncio.get_running_loop().call_later(_SETTLE, self._refill)

    def close(self) -> None:
        """End the zygote and every standby that has not become a worker."""
        self._closing = True
        for task in (self._look, self._birth):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        pids = [pid for pid in (self._pid, *(standby.pid for standby in self._standbys)) if pid]
        for standby in self._standbys:
            standby.kill()
        self._standbys.clear()
        self._end_zygote()
        # The reaper closes next, and whoever runs an agent in a process of their own wants no zombies in it.
        threading.Thread(target=_reap, args=(pids,), daemon=True, name="reap").start()

    # --- The zygote --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._starting = True
        self._birth = asyncio.create_task(self._start_zygote())

    async def _start_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        words = (str(theirs.fileno()), self._place, *self._wanted.preload)
        self._generation += 1
        generation = self._generation
        try:
            with theirs:
                argv = run_module(_MODULE, *words, python=(sys.executable, "-u"))
                command = Command(argv=argv, env=self._env, keep=(theirs.fileno(),))
                self._pid = await self._spawner.spawn(command, lambda code: self._zygote_ended(generation, code))
        except OSError as error:
            ours.close()
            self._give_up(f"cannot start the process: {error}")
            return
        finally:
            self._starting = False
        self._line = ours
        self._reaper.shelter(self._pid)
        asyncio.get_running_loop().add_reader(ours, self._heard)

    def _heard(self) -> None:
        if self._line is None:
            return
        try:
            data = self._line.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # its end is told by the reaper
            asyncio.get_running_loop().remove_reader(self._line)
            return
        message = unpacked(data)
        if "ready" in message:
            self._became_ready(message["ready"])
        elif "unfit" in message:
            self._give_up(message["unfit"])
        elif "born" in message:
            self._born(message["born"])
        elif "barren" in message:
            log.warning("the preload process cannot fork a standby worker: %s", message["barren"])
            self._pending.popleft()[0].unborn()
        elif "learned" in message:
            self._has_learned(message["learned"])

    def _became_ready(self, told: Mapping[str, Any]) -> None:
        for name, error in told["failed"].items():
            log.warning("cannot preload %s: %s", name, error)
        for name, variables in told["asked"].items():
            log.warning(
                "the preload process does not import module %s, because its import reads environment variables that differ "
                "between workers: %s",
                name,
                ", ".join(variables),
            )
        log.debug(
            "preload process pid=%d is ready; it imported %d modules in %.1f s and uses %d MB in huge pages",
            self._pid,
            told["modules"],
            told["seconds"],
            told["huge"] >> 20,
        )
        self._ready, self._stillbirths = True, 0
        if self._imports:
            self._import_first()
            return
        self._serve()

    def _serve(self) -> None:
        for call in self._was_ready:
            call()
        self._refill()
        self._tell_prepared()
        if self._learning and (self._look is None or self._look.done()):
            self._look = asyncio.create_task(self._look_for_learned())

    def _zygote_ended(self, generation: int, code: int) -> None:
        if generation != self._generation or self._closing:
            return
        was_ready = self._ready
        if was_ready:
            self._imports = ()  # one of them may have ended it
        self._drop_line()
        if self.given_up:
            return
        self._stillbirths = 0 if was_ready else self._stillbirths + 1
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._stillbirths >= _STILLBIRTHS:
            self._give_up(f"{_STILLBIRTHS} preload processes exited before they were ready, the last with {how}")
            return
        log.warning("the preload process (zygote) exited with %s; the agent starts it again", how)
        self._start()

    def _end_zygote(self) -> None:
        self._generation += 1  # its end is expected from now on
        pid = self._pid
        self._drop_line()
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                log.debug("the agent does not stop preload process pid=%d, because this process has already exited", pid)

    def _drop_line(self) -> None:
        self._ready = self._busy = False
        if self._pid:
            self._reaper.unshelter(self._pid)
        self._pid = 0
        if self._line is not None:
            asyncio.get_running_loop().remove_reader(self._line)
            self._line.close()
        self._line = None
        while self._pending:
            self._pending.popleft()[0].unborn()

    def _give_up(self, reason: str) -> None:
        """Live without a zygote from now on, and say why, once."""
        if not self.given_up:
            log.info("the agent keeps no standby workers (%s); each worker starts as a new process", reason)
        self.given_up = reason
        self._end_zygote()
        self._tell_prepared()

    def _tell_prepared(self) -> None:
        for call in self._was_prepared:
            call()

    # --- Standbys ----------------------------------------------------------------------------------------------------------

    def _refill(self) -> None:
        self._timer = None
        if not self._ready or self._closing:
            return
        there = {s.slot for s in self._standbys if s.generation == self._generation}
        for slot in range(self._wanted.standbys):
            if slot not in there:
                self._order(slot, warm=True, **({"device": slot} if self._wanted.device else {}))

    def _order(self, slot: int, **start: Any) -> Standby:
        """Ask the zygote for one more fork, and tell it what to `start` with."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        standby = Standby(self._reaper, ours, self._changed, generation=self._generation, slot=slot)
        self._standbys.append(standby)
        self._pending.append((standby, {"startup": self._wanted.startup, **start}))
        with theirs:
            try:
                if self._line is not None:
                    socket.send_fds(self._line, [packet({"fork": True})], [theirs.fileno()])
            except OSError as error:
                log.debug("the agent cannot request a standby worker from the preload process: %s", error)
                self._pending.pop()
                standby.unborn()
        return standby

    def _born(self, pid: int) -> None:
        standby, start = self._pending.popleft()
        standby.born(pid, start)

    def _changed(self, standby: Standby) -> None:
        if standby not in self._standbys:
            return
        if standby.lost:
            self._standbys.remove(standby)
            log.warning(
                "standby worker pid=%d exited before it replaced a worker; the agent starts another standby worker", standby.pid
            )
            self.refill_soon()
            return
        own, share = standby.memory.own / 1e6, standby.memory.share / 1e6
        log.debug(
            "standby worker pid=%d is ready; memory: %.0f MB private, %.0f MB proportional (PSS)", standby.pid, own, share
        )
        if standby.trouble:
            log.warning("standby worker pid=%d cannot prepare torch or the GPU: %s", standby.pid, standby.trouble)
        stale = [s for s in self.waiting if s.generation != standby.generation]
        if stale:
            self._dismiss(stale[0])
        self._tell_prepared()

    def _dismiss(self, standby: Standby) -> None:
        self._standbys.remove(standby)
        standby.dismiss()

    # --- What the script imports -------------------------------------------------------------------------------------------

    def _import_first(self) -> None:
        """Have the zygote import what the script is known to import, before there are forks of it."""
        if self._line is not None:
            self._busy = True  # it forks nobody meanwhile
            self._line.send(packet({"import": self._imports, "without": sorted(self._refused)}))

    async def _look_for_learned(self) -> None:
        file, pause = self._wanted.learned, _LOOK
        while file is not None and not await asyncio.to_thread(file.exists):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
        if self._line is not None and self._ready:
            self._busy = True  # it forks nobody meanwhile
            self._line.send(packet({"learn": str(file), "without": sorted(self._refused)}))

    def _has_learned(self, told: Mapping[str, Any]) -> None:
        self._busy = False
        first, kept = bool(self._imports), self._imports
        self._imports = ()
        asked, reason = told["asked"], told["unfit"]
        if asked or reason:
            # What is imported cannot be undone: another zygote does without.
            for name, variables in asked.items():
                log.info(
                    "the preload process does not import module %s, because its import reads environment variables that differ "
                    "between workers: %s",
                    name,
                    ", ".join(variables),
                )
            if reason:
                log.info("the preload process cannot import the modules of the training script: %s", reason)
            self._refused |= set(asked)
            self._learning = self._learning and not reason
            self._imports = () if reason else kept
            self._end_zygote()
            self._start()
            return
        if first:
            self._serve()
            return
        if told["count"]:
            log.debug("the preload process has loaded %d more modules that the script imports", told["count"])
            self._replace_standbys()

    def _replace_standbys(self) -> None:
        """Make standbys that have what was learned; each that is ready lets an older one go."""
        for standby in self._standbys:
            standby.generation = 0
        self._refill()


def _reap(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):  # the reaper was quicker
            os.waitpid(pid, 0)


def declared(text: Sequence[str]) -> tuple[str, ...]:
    """Return the names of modules in `a,b`, each once, in order."""
    names = (part.strip() for item in text for part in item.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
