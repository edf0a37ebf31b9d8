"""Facts about the processes of this machine, as /proc tells them."""

from __future__ import annotations

import os
import signal

from rallypoint.wire.env import JOB_MARK

__all__ = ["boot_id", "children", "kill_job", "lives", "marked", "owner", "send_to_marked", "start_ticks"]

#: Key of the flag in a process's auxiliary vector that is 1 for a set-user-ID program (getauxval(3)).
_AT_SECURE = 23


def boot_id() -> str:
    """Return the name of this boot of this machine; process numbers mean nothing beyond it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot, which tells it from later ones of its number.

    None when it has ended; a zombie has.
    """
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[2]


def owner(pid: int) -> int | None:
    """Return the user of a live process, None when it has ended, or when its user is not certain.

    The owner of /proc/PID is root for each process that protects its memory, so that is no evidence. A set-user-ID program can
    run as root with the environment of the user who started it.
    """
    ids = next((line.split()[1:] for line in _read(pid, "status").splitlines() if line.startswith(b"Uid:")), [])
    return int(ids[0]) if len(set(ids)) == 1 and not _is_set_user_id(pid) else None


def _is_set_user_id(pid: int) -> bool:
    words = memoryview(_read(pid, "auxv")).cast("L")
    return any(key == _AT_SECURE and value for key, value in zip(words[::2], words[1::2], strict=False))


def lives(pid: int, ticks: int, boot: str) -> bool:
    """Return whether the process lives that started at `ticks` of that `boot`, and not another one of its number."""
    return start_ticks(pid) == ticks and boot_id() == boot


def children() -> list[int]:
    """Return the children of this process, zombies included."""
    me = os.getpid()
    return [pid for pid in _pids() if (stat := _stat(pid)) is not None and stat[1] == me]


def marked(mark: str) -> list[int]:
    """Return the live processes, this one apart, whose environment at their start held `mark`."""
    me = os.getpid()
    return [pid for pid in _pids() if pid != me and _has_mark(pid, mark)]


def send_to_marked(mark: str, number: int, *, user: int) -> int:
    """Send a signal to every live process of `user` with `mark`; return how many there were.

    Other users can read the mark of a job in command lines, and start processes with this mark.
    """
    found = [pid for pid in marked(mark) if owner(pid) == user]
    for pid in found:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _has_mark(pid, mark):  # asked again: the number may be another process's by now
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
    return len(found)


def kill_job(uid: str, *, spare: str, user: int) -> int:
    """Kill every process of `user` that carries a mark of a job; return how many there were.

    Those with `spare` in their command line are not killed, but counted, and woken if somebody stopped them.
    """
    me, found = os.getpid(), 0
    for pid in _pids():
        if pid == me or not _is_of_job(pid, uid) or owner(pid) != user:
            continue
        found += 1
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _is_of_job(pid, uid):  # asked again, as above
                spared = spare in _read(pid, "cmdline").decode(errors="replace")
                signal.pidfd_send_signal(descriptor, signal.SIGCONT if spared else signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return state, parent and start of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended meanwhile, or hidden from this user
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[1]), int(fields[19])


def _has_mark(pid: int, mark: str) -> bool:
    return f"{JOB_MARK}={mark}".encode(errors="surrogatepass") in _read(pid, "environ").split(b"\0")


def _is_of_job(pid: int, uid: str) -> bool:
    prefix = f"{JOB_MARK}={uid}/".encode(errors="surrogatepass")
    return any(variable.startswith(prefix) for variable in _read(pid, "environ").split(b"\0"))


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended meanwhile, or another user's
        return b""
