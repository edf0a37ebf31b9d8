"""The counters of a run, by the names that torch's agent gives them, where `metrics_cfg` wants them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Outlet", "counters", "read_outlet"]

_DESTINATIONS = ("null", "console", "file")


@dataclass(frozen=True, kw_only=True)
class Outlet:
    """Where counters go: "null", "console" (stderr), or a "file" to which a JSON line each is added."""

    destination: str = "null"
    path: Path | None = None

    def put(self, numbers: Mapping[str, float], *, run_id: str, at: float) -> None:
        """Tell numbers by name; `at` is seconds since the epoch. Raises `OSError` for a file that cannot be written."""
        if self.destination == "console":
            for name, value in numbers.items():
                sys.stderr.write(f"[{at:.3f}][torchelastic]: {name}={value:g}\n")
        elif self.path is not None:
            lines = [json.dumps({"at": at, "run_id": run_id, "name": name, "value": value}) for name, value in numbers.items()]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))


def read_outlet(metrics_cfg: Mapping[str, str]) -> Outlet:
    """Return what `metrics_cfg` says; raises `ValueError`."""
    unknown = sorted(set(metrics_cfg) - {"destination", "path"})
    if unknown:
        raise ValueError(f"metrics_cfg: {unknown[0]!r} is not allowed; expected destination, path")
    destination, path = metrics_cfg.get("destination", "null"), metrics_cfg.get("path", "")
    if destination not in _DESTINATIONS:
        raise ValueError(
            f"metrics_cfg['destination']: {destination!r} is not allowed; expected one of {', '.join(_DESTINATIONS)}"
        )
    if (destination == "file") is not bool(path):
        raise ValueError(
            f"metrics_cfg['path']: {path!r} is not allowed with destination {destination!r}; expected no path, or "
            "destination 'file'"
        )
    return Outlet(destination=destination, path=Path(path) if path else None)


def counters(role: str, *, succeeded: bool, rounds: int, seconds: float) -> dict[str, float]:
    """Return the counters of one run: exactly one of the four ends is 1, as in torch's agent."""
    retried = rounds > 1
    base = f"workers.{role}"
    return {
        f"{base}.run_total": 1,
        f"{base}.run_success_with_retries": int(succeeded and retried),
        f"{base}.run_success_no_retries": int(succeeded and not retried),
        f"{base}.run_failed_with_retries": int(not succeeded and retried),
        f"{base}.run_failed_no_retries": int(not succeeded and not retried),
        f"{base}.rounds": rounds,
        f"{base}.duration.ms": round(seconds * 1000),
    }
