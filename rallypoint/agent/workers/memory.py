"""Whether the kernel killed something of ours for want of memory: the one SIGKILL whose sender can be known."""

from __future__ import annotations

from pathlib import Path

__all__ = ["OomWatch"]

_CGROUPS = Path("/sys/fs/cgroup")


class OomWatch:
    """Looks at how many processes of our control group the kernel has killed; workers are in the same group as their agent."""

    def __init__(self, events: Path | None = None) -> None:
        self._events = _events_file() if events is None else events
        self._known = self._count()

    def killed(self) -> bool:
        """Return whether it killed another one since the last time. Where nobody counts, that is not known, and False."""
        before, self._known = self._known, self._count()
        return self._known > before

    def _count(self) -> int:
        try:
            lines = self._events.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return 0
        fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
        return int(fields.get("oom_kill", "0"))


def _events_file() -> Path:
    """Return the file in which version 2 of control groups counts, or version 1 where that has the memory."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    groups = {name: path for _, name, path in (line.split(":", 2) for line in lines)}
    old = next((path for name, path in groups.items() if "memory" in name.split(",")), None)
    if old is not None:
        return _in_group(_CGROUPS / "memory", old, "memory.oom_control")
    return _in_group(_CGROUPS, groups.get("", "/"), "memory.events")


def _in_group(root: Path, path: str, name: str) -> Path:
    # In a container the group is the root of what is seen, whatever its path is outside.
    file = root / path.lstrip("/") / name
    return file if file.exists() else root / name
