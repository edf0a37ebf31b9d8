"""One node (or coordinator) of a job: what its folder tells, and how it is started and ended. Everything here may block."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import rallypoint
from rallypoint.backends.contract import ActionError
from rallypoint.backends.local import cgroup, durable, proc
from rallypoint.backends.local.files import FATAL, open_below, pinned, read_optional, read_owned
from rallypoint.backends.local.shim import EXIT_FILE, FORCE, LOCK_FILE, SHIM_FILE, write_exit
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.wire.bounds import PID, WHOLE
from rallypoint.wire.env import JOB_MARK
from rallypoint.wire.tail import Bounds, last_lines

__all__ = ["SHIM", "Exit", "NodeFolder", "Shim"]

#: Touched when a node is asked to end.
_ENDING_FILE = "ending"

#: What tells a shim by its command line.
SHIM = "rallypoint.backends.local.shim"

#: Starts a shim isolated from everything but the standard library and this package.
_LAUNCH = f"import sys; sys.path.append(sys.argv[1]); from {SHIM} import main; sys.exit(main(sys.argv[2:]))"
_ROOT = str(Path(rallypoint.__file__).parents[1])

#: How long a shim may take to write its file, in seconds; a hundred times what it takes.
_START_TIMEOUT = 30.0

#: How long what a lost node left may take to die, in seconds, before another turn looks again.
_KILL_TIMEOUT = 2.0

#: Of the agent's own log, in the record.
_TAIL = Bounds(lines=20, size=8192, width=2048)


@dataclass(frozen=True, kw_only=True)
class Shim:
    """`shim.json`: who watches a node, and how its processes are found. `boot_id`, `pid` and `start_ticks` name one process."""

    limits: ClassVar = {"pid": PID, "start_ticks": WHOLE}

    boot_id: str
    pid: int
    start_ticks: int
    attempt: int
    mark: str
    cgroup: str
    host: str
    started_at: float
    command: tuple[str, ...]

    def alive(self) -> bool:
        """Return whether the shim itself still runs."""
        return proc.lives(self.pid, self.start_ticks, self.boot_id)

    def open(self) -> int | None:
        """Return a pidfd of the shim, or None when it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        try:
            alive = self.alive()
        except OSError:
            os.close(descriptor)
            raise
        if alive:
            return descriptor
        os.close(descriptor)
        return None

    def send(self, *numbers: int, user: int) -> bool:
        """Send signals to the shim, a process of `user`; return whether it was there."""
        descriptor = self.open()
        if descriptor is None:
            return False
        try:
            if proc.owner(self.pid) != user:
                return False
            for number in numbers:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def left_something(self, user: int) -> bool:
        """Return whether a process of the node, which is of `user`, runs, whatever became of the shim."""
        if proc.boot_id() != self.boot_id:
            return False
        return cgroup.populated(self.cgroup, user) or any(proc.owner(pid) == user for pid in proc.marked(self.mark))


@dataclass(frozen=True, kw_only=True)
class Exit:
    """`exit.json`: how a node ended. `exit_code` is None when nobody saw its end; nothing of it runs any more."""

    exit_code: int | None
    signal: int | None
    ended_at: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class NodeFolder:
    """The folder of one incarnation of a node (`number` its slot), or of one term of the coordinator (`number` -1)."""

    path: Path
    number: int
    incarnation: int

    @property
    def log(self) -> Path:
        """What the agent (or the coordinator) says itself."""
        return self.path / ("coordinator.log" if self.number < 0 else "agent.log")

    @property
    def _job(self) -> Path:
        return self.path.parents[1 if self.number < 0 else 2]

    def shim(self) -> Shim | None:
        """Return who watches this node, or None when it was never started."""
        return read_optional(Shim, self.path / SHIM_FILE)

    def look(self) -> NodeSeen | None:
        """Return what is true of this node, or None when it was never started."""
        shim = self.shim()
        if shim is None:
            return None
        # In this order: a shim that is dead by now has written its exit file before, or never will.
        alive = shim.alive()
        ended = read_optional(Exit, self.path / EXIT_FILE)
        if ended is None and not alive:
            reason = f"its parent process (shim), pid {shim.pid}, exited without writing an exit file"
            return self._seen(shim, state=NodeState.LOST, present=shim.left_something(self._owner()), reason=reason)
        if ended is None:
            return self._seen(shim, state=NodeState.ENDING if self._asked_to_end() else NodeState.RUNNING, present=True)
        if ended.exit_code is None:
            return self._seen(shim, state=NodeState.LOST, present=alive, reason=ended.reason)
        state = NodeState.FAILED if ended.exit_code else NodeState.SUCCEEDED
        return self._seen(shim, state=state, present=alive, exit_code=ended.exit_code, reason=ended.reason)

    def _owner(self) -> int:
        return (self.path / SHIM_FILE).lstat().st_uid

    def _asked_to_end(self) -> bool:
        return (self.path / _ENDING_FILE).exists()

    def _seen(self, shim: Shim, *, state: NodeState, present: bool, exit_code: int | None = None, reason: str = "") -> NodeSeen:
        bad_end = state in (NodeState.FAILED, NodeState.LOST)
        tail = self._tail() if bad_end else ()
        return NodeSeen(
            attempt=shim.attempt,
            node=self.number,
            incarnation=self.incarnation,
            state=state,
            present=present,
            host=shim.host,
            exit_code=exit_code,
            reason=reason or next((line for line in reversed(tail) if line.strip()), ""),
            log_tail=tail,
            deleting=present and self._asked_to_end(),
        )

    def _tail(self) -> tuple[str, ...]:
        try:
            with open_below(self.path, self.log) as file:
                return tuple(str(line) for line in last_lines(file, _TAIL))
        except FileNotFoundError:  # the log was deleted; how the node ended is known without it
            return ()

    def start(self, command: Sequence[str], *, record: Path, attempt: int, mark: str, environment: Mapping[str, str]) -> None:
        """Start the node unless it was started before; returns once every supervisor can see it. Raises `ActionError`."""
        arguments = (str(self.path), str(record), str(attempt), str(self.log), *command)
        try:
            # One by one: the job's folder may be gone, and must not come back as a folder without a record.
            for folder in (self.path.parents[1], self.path.parent, self.path):
                folder.mkdir(mode=0o700, exist_ok=True)
                if folder.is_symlink():
                    raise ActionError(f"{folder}: the path is a symbolic link; expected a folder", fatal=True)
            started = subprocess.run(
                (sys.executable, "-I", "-S", "-c", _LAUNCH, _ROOT, *arguments),
                env={**environment, JOB_MARK: mark},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C for the supervisor is none for it
                timeout=_START_TIMEOUT,
                check=False,
            )
        except OSError as error:
            raise ActionError(f"{self.path}: {error}", fatal=error.errno in FATAL) from error
        except subprocess.TimeoutExpired as error:
            raise ActionError(
                f"{self.path}: the parent process (shim) of this node did not start within {_START_TIMEOUT:g} s"
            ) from error
        # Who only brings the shim on its way carries the mark, too, and may be swept away with a node that ends at once.
        if started.returncode != 0 and self.shim() is None:
            lines = started.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"the shim exited with code {started.returncode}"
            raise ActionError(f"{self.path}: {why}", fatal=started.returncode in FATAL)

    def end(self, *, force: bool, user: int | None = None) -> None:
        """Ask the node to end, or kill it at once. Nothing happens when it has ended, or was never started.

        A script can name any process and cgroup in `shim.json`, and replace each folder by a link to another job's. So all is
        read from folders that are held open, and only processes of the user who owns the file and the job are ended. `user` is
        the one whose job this was when it was read. Raises `ActionError`.
        """
        with contextlib.suppress(FileNotFoundError), pinned(self._job, self._job.parent) as job:
            own = job.stat().st_uid
            with pinned(job / self.path.relative_to(self._job), job) as inside:
                found = read_owned(Shim, inside, inside / SHIM_FILE)
                if found is None or (inside / EXIT_FILE).exists():
                    return
                shim, wrote = found
                if wrote != own or own != (own if user is None else user):
                    raise ActionError(
                        f"{self.path}: {SHIM_FILE} belongs to user {wrote}, not to the user of the job; delete the folder"
                    )
                if not force:
                    os.close(durable.open_regular(str(inside / _ENDING_FILE), os.O_WRONLY | os.O_CREAT))
                # SIGCONT: a stopped shim would not handle the other signal.
                if not shim.send(FORCE if force else signal.SIGTERM, signal.SIGCONT, user=wrote):
                    self._end_leftovers(inside, shim, wrote, force=force)

    def remove_cgroup(self) -> None:
        """Remove the cgroup of this node, if the user who wrote `shim.json` owns it."""
        shim = self.shim()
        if shim is not None:
            cgroup.remove(shim.cgroup, self._owner())

    def _end_leftovers(self, inside: Path, shim: Shim, user: int, *, force: bool) -> None:
        lock = durable.try_lock(str(inside / LOCK_FILE))
        if lock is None or (inside / EXIT_FILE).exists():  # another supervisor does this, or the shim has ended
            if lock is not None:
                os.close(lock)
            return
        try:
            deadline = time.monotonic() + (_KILL_TIMEOUT if force else 0.0)
            while shim.left_something(user):
                if force:
                    cgroup.kill(shim.cgroup, user)
                proc.send_to_marked(shim.mark, signal.SIGKILL if force else signal.SIGTERM, user=user)
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.01)
            cgroup.remove(shim.cgroup, user)
            write_exit(str(inside), exit_code=None, reason=f"its parent process (shim), pid {shim.pid}, was killed")
        finally:
            os.close(lock)
