"""The process between a supervisor and a node: it outlives the one and writes down how the other ended.

It is started isolated and without `site`: it needs nothing but the standard library and the few files beside it, and has
read them all before the node runs.

```
shim FOLDER RECORD ATTEMPT LOG COMMAND...        and the node's mark in the environment
```

A node is started once and no more, whoever asks and however often, also when supervisors are killed half-way:

1. The shim takes the lock in FOLDER and keeps it for life. Lock taken, or `shim.json` or `exit.json` there: it goes away.
2. In a session of its own it writes `shim.json`. From here on every supervisor sees the node.
3. Only then it reads RECORD: a supervisor that was stopped for a while may ask for what the job no longer wants. A record is
   saved before anybody looks whether all is gone, so either the new record is seen here, or `shim.json` is seen there.
4. COMMAND runs in a process group (and where allowed in a cgroup) of its own.
5. When it has ended, all that descends from it is killed. Only after the last one is gone, `exit.json` appears.

SIGTERM is passed on to the node's process group, once. SIGUSR1 kills the node at once. A shim that is gone without an
`exit.json` was killed itself, and its node is lost.

The job is where its record is. Somebody who removes that, or FOLDER, has ended the job: the shim sees it within `_LOOK` seconds
and kills the node, whether there is a supervisor or not. The same holds for the process that `RALLYPOINT_LIFELINE` names.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

from rallypoint.backends.local import cgroup, durable, proc
from rallypoint.wire.env import JOB_MARK, LIFELINE

__all__ = ["EXIT_FILE", "FORCE", "LOCK_FILE", "SHIM_FILE", "main", "write_exit"]

LOCK_FILE, SHIM_FILE, EXIT_FILE = "lock", "shim.json", "exit.json"

#: Asks a shim to kill its node at once.
FORCE = signal.SIGUSR1

_SIGNALS = {signal.SIGCHLD, FORCE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_PR_SET_CHILD_SUBREAPER = 36

#: Phases of the record in which nodes may start (supervision/record.py).
_STARTING = ("Resuming", "Running")

#: How often a shim looks whether its job is still there, in seconds.
_LOOK = 2.0

#: More than `exit.json` needs; taken ahead, so that a disk that fills up meanwhile loses no exit code.
_EXIT_BYTES = 4096


class _Spec:
    """The arguments; no dataclass, which would double the time to start."""

    def __init__(self, arguments: list[str]) -> None:
        self.folder, self.record, attempt, self.log, *self.command = arguments
        self.attempt = int(attempt)
        self.mark = os.environ[JOB_MARK]
        self.lifeline = tuple(map(int, os.environ.pop(LIFELINE, "").split()))
        self.cgroup = cgroup.find(f"rallypoint-{self.mark.replace('/', '.')}")
        #: Descriptors that can be read while a signal is pending, and once the process has ended that the node depends on.
        self.signals, self.lost = -1, list[int]()


def main(arguments: list[str]) -> int:
    """Start the shim, unless this node was started before; return 0 once `shim.json` is there.

    Otherwise the return value is the error's `errno`, and stderr has a line about it.
    """
    spec = _Spec(arguments)
    try:
        lock = _claim(spec.folder)
    except OSError as error:
        return _complain(str(error), error.errno or 1)
    if lock is None:
        return 0
    reading, writing = os.pipe()
    if os.fork() != 0:
        # The caller waits for this process alone; the shim's own parent is whoever reaps orphans here.
        os.close(writing)
        with open(reading, encoding="utf-8") as report:
            number, _, text = report.read().partition(" ")
        return _complain(text, int(number)) if number else 0
    os.close(reading)
    os._exit(_shim(spec, writing))


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    return code


def _claim(folder: str) -> int | None:
    """Return the node's lock, or None when somebody starts, has started or has ended this node."""
    lock = durable.try_lock(f"{folder}/{LOCK_FILE}")
    if lock is not None and any(os.path.exists(f"{folder}/{name}") for name in (SHIM_FILE, EXIT_FILE)):
        os.close(lock)
        return None
    return lock


def _shim(spec: _Spec, report: int) -> int:
    try:
        _settle(spec)
    except OSError as error:
        os.write(report, f"{error.errno or 1} {error}".encode())
        return 1
    os.close(report)
    if not _wanted(spec):
        write_exit(spec.folder, exit_code=None, reason="not started: the job no longer needed it")
        return 0
    status = _tend(spec, _start(spec))
    _sweep(spec)
    if _abandoned(spec):
        return 0  # nobody is left to read how it ended, and no place to write it
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        write_exit(spec.folder, exit_code=128 + number, number=number, reason=f"killed by {signal.Signals(number).name}")
    else:
        write_exit(spec.folder, exit_code=os.WEXITSTATUS(status))
    return 0


def _settle(spec: _Spec) -> None:
    """Become the shim that `shim.json` then names."""
    os.setsid()
    # Blocked for life and waited for: one that comes before the node runs is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.chdir(spec.folder)
    log = durable.open_regular(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(), "the kernel refused prctl(PR_SET_CHILD_SUBREAPER), so the shim cannot adopt the node's orphans"
        )
    spec.signals, spec.lost = _signals(), _lifeline(spec)
    durable.reserve(f"{spec.folder}/{EXIT_FILE}", _EXIT_BYTES)
    pid = os.getpid()
    told = {
        "boot_id": proc.boot_id(),
        "pid": pid,
        "start_ticks": proc.start_ticks(pid),
        "attempt": spec.attempt,
        "mark": spec.mark,
        "cgroup": spec.cgroup,
        "host": os.uname().nodename,
        "started_at": time.time(),
        "command": spec.command,
    }
    durable.write_text(f"{spec.folder}/{SHIM_FILE}", json.dumps(told, indent=1) + "\n")


def _wanted(spec: _Spec) -> bool:
    try:
        with open(spec.record, encoding="utf-8") as file:
            record = json.load(file)
    except FileNotFoundError:  # deleted meanwhile
        return False
    uid = spec.mark.partition("/")[0]
    same = (record["uid"], record["attempt"]) == (uid, spec.attempt)
    return same and record["phase"] in _STARTING and not record["deletion"]


def _start(spec: _Spec) -> int:
    """Fork the node's first process; return its number, which is its process group's, too."""
    cgroup.make(spec.cgroup)
    pid = os.fork()
    if pid != 0:
        try:
            os.setpgid(pid, pid)  # both sides do: whoever is first, the group exists before it is sent anything
        except (PermissionError, ProcessLookupError):  # it has done so, or has ended
            return pid
        return pid
    try:
        os.setpgid(0, 0)
        cgroup.join(spec.cgroup)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored is inherited
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(spec.command[0], spec.command)
    except OSError as error:
        _complain(f"cannot start {spec.command[0]}: {error.strerror}", 0)
    finally:
        os._exit(127)


def _tend(spec: _Spec, node: int) -> int:
    """Pass on signals until the node's first process has ended; return its wait status."""
    asked, pause = False, 0.0
    news = select.poll()
    for descriptor in (spec.signals, *spec.lost):
        news.register(descriptor, select.POLLIN)
    while True:
        news.poll(1000 * pause)
        pause = _LOOK
        told = signal.sigtimedwait(_SIGNALS, 0)
        number = told.si_signo if told is not None else FORCE if _abandoned(spec) else 0
        if number == signal.SIGCHLD:
            status = _reap(node)
            if status is not None:
                return status
        elif number == FORCE:
            os.killpg(node, signal.SIGKILL)
            while spec.lost:  # it can be read from now on, and all that follows is the end of the node
                news.unregister(spec.lost.pop())
        elif number and not asked:  # supervisors ask until they see it gone; the node hears it once
            asked = True
            os.killpg(node, signal.SIGTERM)


def _signals() -> int:
    """Return a descriptor that can be read while a signal of `_SIGNALS` is pending."""
    libc, signals = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(128)  # more than any `sigset_t` needs
    libc.sigemptyset(signals)
    for number in _SIGNALS:
        libc.sigaddset(signals, int(number))
    descriptor = int(libc.signalfd(-1, signals, os.O_CLOEXEC))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "the kernel refused signalfd, so the shim cannot wait for signals")
    return descriptor


def _lifeline(spec: _Spec) -> list[int]:
    """Return a descriptor that can be read once the process has ended that the node depends on; none where there is none."""
    try:
        return [os.pidfd_open(spec.lifeline[0])] if spec.lifeline else []
    except ProcessLookupError:  # the first look finds that it has ended
        return []


def _abandoned(spec: _Spec) -> bool:
    """Return whether the job was deleted from outside, or the process ended that the node depends on."""
    if spec.lifeline and proc.start_ticks(spec.lifeline[0]) != spec.lifeline[1]:
        return True
    try:
        os.stat(spec.record)
        return not os.path.samestat(os.stat(spec.folder), os.stat("."))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # a disk that fails for a moment is no deletion
        return False


def _reap(node: int) -> int | None:
    """Reap everybody who has ended; return the node's wait status if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == node:
            found = status


def _sweep(spec: _Spec) -> None:
    """Kill all that descends from the node; return when nobody is left."""
    pause = 0.001
    while True:
        cgroup.kill(spec.cgroup, os.geteuid())
        children = proc.children()
        for child in children:
            _kill(child)
        strangers = proc.send_to_marked(spec.mark, signal.SIGKILL, user=os.geteuid())
        _reap(0)
        if not children and not strangers:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    cgroup.remove(spec.cgroup, os.geteuid())


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is its own
    except PermissionError:  # it runs as somebody else: the node has ended when it has
        return


def write_exit(folder: str, *, exit_code: int | None, number: int | None = None, reason: str = "") -> None:
    """Write how a node ended: 128 + `number` where a signal ended it, None when nobody saw its end."""
    told = {"exit_code": exit_code, "signal": number, "ended_at": time.time(), "reason": reason}
    durable.write_text(f"{folder}/{EXIT_FILE}", json.dumps(told, indent=1) + "\n")
