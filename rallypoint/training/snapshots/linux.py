"""The few system calls that Python has not, or makes while it holds its lock: all of them here let other threads run."""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = ["HUGEPAGE", "POPULATE_WRITE", "advise", "move"]

#: madvise(2): fault pages in for writing, without changing what is in them (Linux 5.14); try huge pages.
POPULATE_WRITE, HUGEPAGE = 23, 14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.restype = ctypes.c_void_p

#: Copy `size` bytes: `move(to, of, size)`, two addresses that do not overlap.
move = _libc.memcpy


def advise(address: int, size: int, advice: int) -> bool:
    """Return whether the kernel took the advice; False where it does not know it. Raises `OSError` for want of memory."""
    if _libc.madvise(address, size, advice) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number))
