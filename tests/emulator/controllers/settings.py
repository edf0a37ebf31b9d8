"""What an AppWrapper's annotations say, as its controller reads them: whatever is malformed is silently the default. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.emulator.controllers.times import parse_go_duration

__all__ = ["PREFIX", "Settings"]

PREFIX = "workload.codeflare.dev.appwrapper/"

_CEILING = 86400.0
_TTL = 604800.0
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The periods (seconds), limits and exit codes of one AppWrapper; the defaults are the operator's own.

    `creation_retry`, `starting_poll` and `running_poll` are what the controller waits for between two looks.
    """

    admission: float = 60.0
    warmup: float = 300.0
    failure: float = 60.0
    retry_pause: float = 90.0
    forceful_deletion: float = 600.0
    deletion_on_failure: float = 0.0
    success_ttl: float = _TTL
    creation_retry: float = 1.0
    starting_poll: float = 5.0
    running_poll: float = 60.0
    retry_limit: int = 3
    terminal_exit_codes: frozenset[int] = frozenset()
    retryable_exit_codes: frozenset[int] = frozenset()

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Settings:
        """Return the settings of an AppWrapper with these annotations."""
        own = {key.removeprefix(PREFIX): text for key, text in annotations.items() if key.startswith(PREFIX)}
        return cls(
            admission=_grace(own.get("admissionGracePeriodDuration"), cls.admission),
            warmup=_grace(own.get("warmupGracePeriodDuration"), cls.warmup),
            failure=_grace(own.get("failureGracePeriodDuration"), cls.failure),
            retry_pause=_grace(own.get("retryPausePeriodDuration"), cls.retry_pause),
            forceful_deletion=_grace(own.get("forcefulDeletionGracePeriodDuration"), cls.forceful_deletion),
            deletion_on_failure=_grace(own.get("deletionOnFailureGracePeriodDuration"), cls.deletion_on_failure),
            success_ttl=_ttl(own.get("successTTLDuration")),
            retry_limit=_integer(own.get("retryLimit"), cls.retry_limit),
            terminal_exit_codes=_codes(own.get("terminalExitCodes")),
            retryable_exit_codes=_codes(own.get("retryableExitCodes")),
        )

    def at_speed(self, speed: float) -> Settings:
        """Return the settings of a controller for which all that is waited for lasts `speed` times shorter.

        How long pods may take to appear and to start stays: they are real processes, which start at their own pace.
        """
        shorter = [f.name for f in dataclasses.fields(self) if f.type == "float" and f.name not in {"admission", "warmup"}]
        periods = {name: getattr(self, name) / speed for name in shorter}
        return dataclasses.replace(self, **periods)


def _grace(text: str | None, default: float) -> float:
    seconds = None if text is None else parse_go_duration(text)
    return default if seconds is None else min(max(seconds, 0.0), _CEILING)


def _ttl(text: str | None) -> float:
    seconds = None if text is None else parse_go_duration(text)
    return seconds if seconds is not None and 0 < seconds < _TTL else _TTL


def _integer(text: str | None, default: int) -> int:
    return default if text is None or not _INTEGER.fullmatch(text) else int(text)


def _codes(text: str | None) -> frozenset[int]:
    # Nothing is trimmed: of "3, 10" only 3 is taken.
    return frozenset(int(item) for item in (text or "").split(",") if _INTEGER.fullmatch(item))
