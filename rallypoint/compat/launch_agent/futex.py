"""Waiting for a word of shared memory to change, by the kernel and over process borders.

Where the kernel offers no futex under a number that is known here, a wait is a short sleep; every caller looks again anyway.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from collections.abc import Callable

__all__ = ["wait", "wake"]

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1

#: Number of the call, by machine; the kernel takes a `timespec` of two longs there.
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}

#: Seconds of one look where there is no futex.
_LOOK = 0.005

_EVERYBODY = (1 << 31) - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _load() -> tuple[Callable[..., int], int] | None:
    number = _NUMBERS.get(platform.machine())
    if number is None or not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call, number


_FUTEX = _load()


def wait(word: ctypes.c_uint32, value: int, seconds: float) -> None:
    """Return when `word` is not `value` any more, or after `seconds`, or earlier for no reason."""
    if _FUTEX is None:
        time.sleep(min(seconds, _LOOK))
        return
    call, number = _FUTEX
    whole = int(seconds)
    until = _Timespec(whole, int((seconds - whole) * 1e9))
    call(
        ctypes.c_long(number),
        ctypes.byref(word),
        ctypes.c_long(_FUTEX_WAIT),
        ctypes.c_long(value),
        ctypes.byref(until),
        ctypes.c_void_p(None),
        ctypes.c_long(0),
    )


def wake(word: ctypes.c_uint32) -> None:
    """Let all who wait for `word` look again."""
    if _FUTEX is None:
        return
    call, number = _FUTEX
    nobody = ctypes.c_void_p(None)
    call(
        ctypes.c_long(number),
        ctypes.byref(word),
        ctypes.c_long(_FUTEX_WAKE),
        ctypes.c_long(_EVERYBODY),
        nobody,
        nobody,
        ctypes.c_long(0),
    )
