"""Starting a process in the quickest way there is: as a standby that is told its command, else as a program."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable

from rallypoint.agent.workers.reaper import Ended
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.agent.workers.zygote import choosing
from rallypoint.agent.workers.zygote.imports import imported_by
from rallypoint.agent.workers.zygote.standby import StandbyLostError
from rallypoint.agent.workers.zygote.standby_pool import StandbyPool
from rallypoint.wire import env

__all__ = ["Launcher"]

log = logging.getLogger("rallypoint.zygote")


#: Standbys that are tried for one worker; after that the reason is not theirs.
_TRIES = 2


class Launcher:
    """Starts the workers of a node. Without a `pool` of standbys every one is a program.

    `own` starts programs of ours, to which it does not matter with which variables their modules were imported.
    """

    def __init__(self, spawner: Spawner, pool: StandbyPool | None, *, startup: str = "", names: str = "") -> None:
        self._spawner, self._pool, self._startup, self._names = spawner, pool, startup, names
        self._said = False
        self._forks = True
        self.own = _Own(self)

    def when_ready(self, told: Callable[[], None]) -> None:
        """Call `told` whenever forks can be had."""
        if self._pool is not None:
            self._pool.when_ready(told)

    def when_prepared(self, told: Callable[[], None]) -> None:
        """Call `told` whenever `prepared` may have changed."""
        if self._pool is not None:
            self._pool.when_prepared(told)

    def close(self) -> None:
        """End what waits to become a worker."""
        if self._pool is not None:
            self._pool.close()

    @property
    def prepared(self) -> bool:
        """Whether nothing is left that could be prepared for workers: standbys are ready, or they are started as programs."""
        return not self._forks or self._pool is None or self._pool.prepared

    def prepare(self, command: Command) -> None:
        """Start the zygote before any worker, for workers that are started by `command`; a later call changes nothing."""
        pool = self._pool
        if pool is None or pool.given_up or pool.environment:
            return
        reason = choosing.refusal(command.argv, python=sys.executable)
        if reason:
            self._forks = False
            self._say(reason)
            return
        place = choosing.place_of(command.argv, command.cwd)
        pool.begin(choosing.zygote_env(self._with_names(command).env), place, imports=imported_by(command.argv, place))

    def _with_names(self, command: Command) -> Command:
        names = {env.MODULES_FILE: self._names} if self._names else {}
        return dataclasses.replace(command, env={**command.env, **names})

    async def spawn(self, command: Command, ended: Ended) -> int:
        """Start a worker and return the number of its process, which leads a session of its own.

        `ended` is called when it has ended. Raises `OSError` when it cannot be started. The first workers are programs: the
        zygote is started beside them, with the environment that they have.
        """
        pool = self._pool
        if pool is None or pool.given_up:
            return await self._spawner.spawn(command, ended)
        reason = choosing.refusal(command.argv, python=sys.executable)
        if reason:
            self._forks = False
            self._say(reason)
            return await self._spawner.spawn(command, ended)
        command = self._with_names(command)
        if choosing.birth_variables(command.env) != choosing.birth_variables(pool.environment):
            if pool.environment:
                log.info(
                    "the agent restarts the preload process (zygote), because environment variables that affect imports have "
                    "changed"
                )
            pool.begin(choosing.zygote_env(command.env), choosing.place_of(command.argv, command.cwd))
            return await self._spawner.spawn(command, ended)
        pid = await self.fork(command, ended, startup=self._startup)
        return await self._spawner.spawn(command, ended) if pid is None else pid

    async def fork(self, command: Command, ended: Ended, *, startup: str) -> int | None:
        """Start a process as a fork; None where none can be had. Raises `OSError` when the command cannot be started."""
        pool, slot = self._pool, int(command.env.get("LOCAL_RANK", "0"))
        for _ in range(_TRIES):
            standby = None if pool is None else await pool.take(slot)
            if pool is None or standby is None:
                break
            pool.refill_soon()
            try:
                return await standby.start(command, startup, ended)
            except StandbyLostError as error:
                log.warning("standby pid=%d failed: %s", standby.pid, error)
        return None

    def _say(self, reason: str) -> None:
        if not self._said:
            log.info("the agent keeps no standby workers (%s); each worker starts as a new process", reason)
        self._said = True

    async def program(self, command: Command, ended: Ended) -> int:
        """Start a process as a program."""
        return await self._spawner.spawn(command, ended)


class _Own:
    """Starts programs of ours as forks, where that can be."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def spawn(self, command: Command, ended: Ended) -> int:
        """See `Starter.spawn`."""
        pid = await self._launcher.fork(command, ended, startup="")
        return await self._launcher.program(command, ended) if pid is None else pid
