"""A cgroup for each node, where this machine lets us have one: nobody leaves it, so one write kills everybody.

It is a second net below the reaper and the mark, never the only one: where cgroup v2 is absent or not ours to write (most
containers), every function here does nothing.
"""

from __future__ import annotations

import errno
import os

__all__ = ["find", "join", "kill", "make", "of_user", "populated", "remove"]


def find(name: str) -> str:
    """Return the path at which a cgroup `name` may be made below our own; "" where there is none that we may write."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
    mount = _mount()
    if own is None or mount is None:
        return ""
    root, point = mount
    parent = point + own[len(root) :].rstrip("/")
    return f"{parent}/{name}" if own.startswith(root) and os.access(parent, os.W_OK) else ""


def of_user(path: str, user: int) -> str:
    """Return a path if it is a cgroup that `user` owns, and "" otherwise: what is written to it then stays in cgroups."""
    mount = _mount()
    try:
        inside = mount is not None and os.path.realpath(path).startswith(f"{mount[1]}/")
        return path if path and inside and os.stat(path).st_uid == user else ""
    except (OSError, ValueError):
        return ""


def make(path: str) -> None:
    """Make a cgroup, unless it is there."""
    try:
        if path:
            os.mkdir(path)
    except OSError:  # not ours to make after all; then `join` and `kill` do nothing
        return


def join(path: str) -> None:
    """Move this process into a cgroup; those that it starts from now on live in it, too."""
    _write(path, "cgroup.procs", "0")


def populated(path: str) -> bool:
    """Return whether a live process is in a cgroup."""
    try:
        with open(f"{path}/cgroup.events", encoding="ascii") as file:
            return "populated 1" in file.read()
    except OSError:  # no such cgroup
        return False


def kill(path: str) -> None:
    """Kill every process in a cgroup."""
    _write(path, "cgroup.kill", "1")


def remove(path: str) -> None:
    """Remove an empty cgroup and those that were made inside of it."""
    for folder, _, _ in os.walk(path, topdown=False) if path else ():
        try:
            os.rmdir(folder)
        except OSError as error:
            # Gone already, or not empty yet: the kernel lets go of the dead a little later than their parent does.
            if error.errno not in (errno.ENOENT, errno.EBUSY):
                raise


def _mount() -> tuple[str, str] | None:
    """Return the root and the mount point of cgroup v2, None where it is not mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mount = next((line.split() for line in file if " - cgroup2 " in line), None)
    return None if mount is None else (mount[3].rstrip("/"), mount[4])


def _write(path: str, name: str, text: str) -> None:
    if not path:
        return
    try:
        with open(f"{path}/{name}", "w", encoding="ascii") as file:
            file.write(text)
    except OSError:  # no right to it, or an older kernel
        return
