"""A cgroup for each node, where this machine lets us have one: nobody leaves it, so one write kills everybody.

It is a second net below the reaper and the mark, never the only one: where cgroup v2 is absent or not ours to write (most
containers), every function here does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

__all__ = ["find", "join", "kill", "make", "populated", "remove"]


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


def populated(path: str, user: int) -> bool:
    """Return whether a live process is in a cgroup of `user`."""
    with _opened(path, user) as folder, contextlib.suppress(OSError):
        if folder is not None:
            file = os.open("cgroup.events", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                return b"populated 1" in os.read(file, 4096)
            finally:
                os.close(file)
    return False


def kill(path: str, user: int) -> None:
    """Kill every process in a cgroup of `user`."""
    with _opened(path, user) as folder, contextlib.suppress(OSError):  # an older kernel has no such file
        if folder is not None:
            file = os.open("cgroup.kill", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                os.write(file, b"1")
            finally:
                os.close(file)


def remove(path: str, user: int) -> None:
    """Remove an empty cgroup of `user`, and those that were made inside of it."""
    with _opened(path, user) as folder:
        if folder is None:
            return
        for _, names, _, inside in os.fwalk(".", topdown=False, dir_fd=folder):
            for name in names:
                _remove(name, inside)
        above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            _remove(os.path.basename(os.readlink(f"/proc/self/fd/{folder}")), above)
        finally:
            os.close(above)


def _remove(name: str, parent: int) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        # Gone already, or not empty yet: the kernel lets go of the dead a little later than their parent does.
        if error.errno not in (errno.ENOENT, errno.EBUSY):
            raise


@contextlib.contextmanager
def _opened(path: str, user: int) -> Iterator[int | None]:
    """Open the folder of a cgroup that `user` owns; None for anything else.

    A script of the job writes the path, and can replace what is there at any time: what has been opened stays what it was.
    """
    try:
        mount = _mount()
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if path and mount else None
    except (OSError, ValueError):  # `ValueError`: a path with NUL or lone surrogates
        mount = folder = None
    if mount is None or folder is None:
        yield None
        return
    try:
        found = os.fstat(folder)
        # All cgroups of one mount are on its device, which nothing else is on.
        yield folder if found.st_uid == user and found.st_dev == os.stat(mount[1]).st_dev else None
    finally:
        os.close(folder)


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
