"""A driver's own library that tells how busy devices are, called by `ctypes`. Where there is none, nobody can tell.

There is nothing to install, and nothing is started: it is loaded when somebody asks for the first time, and whatever goes wrong
in it means that nobody can tell.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = ["DeviceFault", "Driver"]


@dataclass(frozen=True, kw_only=True)
class DeviceFault:
    """An error that a device has reported; `hardware`: it must be reset or replaced."""

    device: str
    text: str
    hardware: bool

    def __str__(self) -> str:
        return f"{self.device}: {self.text}"


class Driver(abc.ABC):
    """The devices of one kind that the workers of this node see, by local rank; a subclass knows the calls."""

    #: The file that is loaded, and its function that must return 0 before all others.
    LIBRARY: ClassVar[str]
    BEGIN: ClassVar[str]

    #: The variable that says which devices the workers see.
    VISIBLE: ClassVar[str]

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL, environment: Mapping[str, str] = os.environ) -> None:
        self._load, self._environment = load, environment
        self._library: Any = None
        self._tried = False

    def begin(self) -> None:  # noqa: B027  a driver without errors has nothing to do
        """Nothing is watched here."""

    def renew(self) -> None:  # noqa: B027  a driver without errors has nothing to do
        """Nothing was noted."""

    def close(self) -> None:  # noqa: B027  a driver without errors has nothing to do
        """Nothing was begun."""

    def faults(self, local_rank: int) -> tuple[DeviceFault, ...]:
        """Return nothing: errors are not read here."""
        return ()

    def busy(self, local_rank: int) -> float:
        """Return how busy the device of a worker was of late, 0.0 to 1.0; 0.0 also where nobody can tell."""
        if not self._tried:
            self._tried = True
            self._library = self._begin()
        if self._library is not None:
            with contextlib.suppress(Exception):
                return self._percent(local_rank) / 100
        return 0.0

    def _begin(self) -> Any:
        try:
            library = self._load(self.LIBRARY)
            return library if getattr(library, self.BEGIN)() == 0 else None
        except (OSError, AttributeError):
            return None

    def _named(self, local_rank: int) -> str:
        """Return what the environment calls the device of a worker, its number where it says nothing."""
        names = [name.strip() for name in self._environment.get(self.VISIBLE, "").split(",") if name.strip()]
        return names[local_rank] if local_rank < len(names) else str(local_rank)

    @abc.abstractmethod
    def _percent(self, local_rank: int) -> int:
        """Return how many per cent of its last sample period the device computed; may raise anything."""
