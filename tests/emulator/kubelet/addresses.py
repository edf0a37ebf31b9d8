"""Addresses for pods: each pod has one of its own under 127.0.0.0/8, which Linux answers on without being told."""

from __future__ import annotations

import random
import socket

__all__ = ["Addresses"]

#: Nobody else binds this port: who holds it on the first address of a block owns the block.
DOOR = 29_099


class Addresses:
    """Hands out addresses, each once, so that nothing that was meant for a pod reaches its successor.

    No two emulators on a machine have the same ones.
    """

    def __init__(self) -> None:
        self._doors: list[socket.socket] = []
        self._left: list[str] = []

    def take(self) -> str:
        if not self._left:
            self._left = self._block()
        return self._left.pop()

    def close(self) -> None:
        for door in self._doors:
            door.close()
        self._doors.clear()
        self._left.clear()

    def _block(self) -> list[str]:
        while True:
            prefix = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}"
            door = socket.socket()
            try:
                door.bind((f"{prefix}.1", DOOR))
            except OSError:  # another emulator has it
                door.close()
                continue
            self._doors.append(door)
            return [f"{prefix}.{last}" for last in range(254, 1, -1)]
