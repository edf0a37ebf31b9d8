"""Small disks of our own, which can be full: a tmpfs each, in a mount namespace that ends with the last who is in it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Disk", "private_mounts"]

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def private_mounts() -> str:
    """Let this process, and whom it starts from now on, have mounts of their own; return why not, "" where it may.

    It must have no second thread yet. Who is not root becomes it in a user namespace, where the kernel allows that.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWNS | (0 if uid == 0 else _CLONE_NEWUSER)
    if _libc.unshare(flags):
        return f"no mount namespace: {os.strerror(ctypes.get_errno())}"
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return _mount(b"none", b"/", b"", _MS_REC | _MS_PRIVATE, b"")


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes) -> str:
    if _libc.mount(source, target, kind, ctypes.c_ulong(flags), data):
        return f"no mount: {os.strerror(ctypes.get_errno())}"
    return ""


class Disk:
    """A folder that is a disk of so many bytes, or where it cannot be one (`why`) a plain folder, which is never full."""

    def __init__(self, path: Path, size: int, why: str = "") -> None:
        self.path = path
        path.mkdir(parents=True)
        self.why = why or _mount(b"chaos", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode())

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Have no byte free while the context lasts."""
        assert not self.why
        filler = self.path / ".filler"
        try:
            _fill(filler)
            yield
        finally:
            filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Take the disk away."""
        if not self.why:
            _libc.umount2(os.fsencode(self.path), 2)  # MNT_DETACH: somebody may still be there


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
