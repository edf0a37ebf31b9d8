"""A digest at the speed of memory: 8-KiB rows are summed as 64-bit words, and BLAKE2b of the sums is the digest.

It finds every change within a single word of a row (so each flipped bit), rows that were lost, torn, swapped or are from
another snapshot, and nearly everything else. What it does not find are words that changed places within one row, and changes
that cancel each other out there: no fault of memory or of a disk does that, and no attacker is meant to be kept off by it.
"""

from __future__ import annotations

import ctypes
import hashlib

import torch

__all__ = ["ROW", "digest_of", "rounded", "row_sums"]

#: Bytes of a row. What is digested is a whole number of rows.
ROW = 8192


def rounded(size: int) -> int:
    """Return `size` in whole rows."""
    return -(-size // ROW) * ROW


def row_sums(data: torch.Tensor) -> torch.Tensor:
    """Return the sums of the rows of `data`, bytes of a multiple of `ROW`."""
    return data.view(torch.int64).view(-1, ROW // 8).sum(1)


def digest_of(sums: torch.Tensor) -> str:
    """Return the digest, in hex, of the sums of all rows in their order."""
    sums = sums.contiguous()
    content = ctypes.string_at(sums.data_ptr(), 8 * sums.numel()) if sums.numel() else b""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
