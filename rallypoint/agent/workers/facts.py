"""What is known of a worker that ended badly: its exit, its first error, the last lines of its log, and a kill for want of
memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rallypoint.agent.workers.group import Worker
from rallypoint.agent.workers.logs import RankLogs
from rallypoint.wire import sanitize
from rallypoint.wire.exits import describe_exit
from rallypoint.wire.incident import Culprit, FaultKind
from rallypoint.wire.masked import Masking
from rallypoint.wire.tail import Bounds, last_lines

__all__ = [
    "TAIL_BYTES",
    "OomWatch",
    "end_of",
    "first_error",
    "how",
    "is_ending",
    "raised",
    "recorded_error",
    "recorded_traceback",
    "tail_lines",
    "with_traceback",
]

#: Bytes of a log tail that travel with an incident.
TAIL_BYTES = 8 * 1024

#: Bytes at the end of a log in which the last traceback is looked for.
_SEARCHED = 64 * 1024

#: Characters of an error's one line.
_ERROR_CHARS = 500

#: torch's exception hook puts this before each line once a process group exists.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK = "Traceback (most recent call last):"

#: Begins the line that stands for a traceback which an earlier round has printed (training/startup/tracebacks.py).
_AGAIN = "rallypoint: the same error as on rank "

#: Flag of a process that is ending (include/linux/sched.h).
_PF_EXITING = 0x4

_CGROUPS = Path("/sys/fs/cgroup")


def recorded_error(text: str, mask: Masking = str) -> str:
    """Return the error in one line from the text of torch's error file, masked; "" when there is none in it.

    The file holds `{"message": {"message": ..., "extraInfo": {...}}}`, or `{"message": "..."}` from older writers.
    """
    try:
        data: Any = sanitize.parse(text)
    except ValueError:
        return ""
    message = data.get("message") if isinstance(data, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    return _one_line(mask(message)) if isinstance(message, str) else ""


def recorded_traceback(text: str, mask: Masking = str) -> tuple[str, ...]:
    """Return the lines of the traceback in the text of torch's error file, masked; none where it has none."""
    try:
        data: Any = sanitize.parse(text)
    except ValueError:
        return ()
    message = data.get("message") if isinstance(data, dict) else None
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    return tuple(mask(traceback).splitlines()) if isinstance(traceback, str) else ()


def with_traceback(lines: Sequence[str], recorded: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a log with the recorded traceback in the place of the line that stands for it."""
    places = [i for i, line in enumerate(lines) if _RANK_PREFIX.sub("", line).startswith(_AGAIN)]
    if not places or not recorded:
        return tuple(lines)
    return (*lines[: places[-1]], *recorded, *lines[places[-1] + 1 :])


def first_error(recorded: str, lines: Sequence[str]) -> str:
    """Return the error in one line: what was recorded, or the last traceback's conclusion, or the last line of the log."""
    if recorded:
        return recorded
    clean = [_RANK_PREFIX.sub("", line) for line in lines]
    return _one_line(_conclusion(clean)) or next((_one_line(line) for line in reversed(clean) if line.strip()), "")


def _conclusion(lines: Sequence[str]) -> str:
    starts = [i for i, line in enumerate(lines) if line.strip() == _TRACEBACK]
    after = lines[starts[-1] + 1 :] if starts else ()
    return next((line for line in after if line.strip() and not line[0].isspace()), "")


def _one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return sanitize.clean_text(line if len(line) <= _ERROR_CHARS else line[: _ERROR_CHARS - 1] + "…")


def tail_lines(lines: Sequence[str], count: int, limit: int = TAIL_BYTES) -> tuple[str, ...]:
    """Return the last `count` lines, fewer where they have more than `limit` bytes; a longer line is cut at its front."""
    kept: list[str] = []
    for line in reversed(lines[-count:] if count else ()):
        room = limit - sum(len(k.encode()) + 1 for k in kept)
        if room <= 1:
            break
        kept.append(sanitize.clean_text(line).encode()[-(room - 1) :].decode(errors="replace"))
    return tuple(reversed(kept))


def end_of(worker: Worker, *, host: str, incarnation: int, log_tail: int, mask: Masking = str) -> Culprit:
    """Return how a worker ended badly, from its exit code and its files; never raises for what it cannot read.

    `host` is the machine, `log_tail` the number of lines kept; `mask` hides the job's secrets in what the script wrote.
    """
    path, lines = _read_tail(worker.logs)
    recorded = _read_text(worker.logs.error_file)
    # Masked as parsed: JSON text has other characters in the place of some. And masked before anything is cut.
    lines = with_traceback(tuple(map(mask, lines)), recorded_traceback(recorded, mask))
    error = first_error(recorded_error(recorded, mask), lines)
    if path is not None and _disk_is_full(path.parent):
        full = f"no space left on the disk of its log: {path.parent}"
        error = f"{error} ({full})" if error else full
    code = worker.code
    return Culprit(
        node=worker.place.assignment.node,
        incarnation=incarnation,
        host=host,
        rank=worker.place.rank,
        local_rank=worker.place.local_rank,
        pid=worker.pid,
        exit_code=code if code is None or code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        error=error,
        log_tail=tail_lines(lines, log_tail),
        log_path="" if path is None else str(path),
        at=worker.ended_at,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_tail(logs: RankLogs) -> tuple[Path | None, tuple[str, ...]]:
    # stderr says most about an end; where it is empty, stdout has to do.
    for path in (logs.err, logs.out):
        lines = _read_end(path)
        if lines:
            return path, lines
    return logs.err or logs.out, ()


def _read_end(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            found = last_lines(file, Bounds(lines=_SEARCHED, size=_SEARCHED))
    except OSError:
        return ()
    # The first one may have lost its beginning. A progress bar's carriage returns part lines, too.
    return tuple(part for line in found if line.omitted is not None for part in (line.text.splitlines() or [""]))


def _disk_is_full(folder: Path) -> bool:
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False


def raised(worker: Worker, error: str, *, host: str, incarnation: int, at: float) -> Culprit:
    """Return what is told of a worker whose step raised `error` (one line) and which lives; `at` is the node's clock."""
    place = worker.place
    return Culprit(
        node=place.assignment.node,
        incarnation=incarnation,
        host=host,
        rank=place.rank,
        local_rank=place.local_rank,
        pid=worker.pid,
        error=error,
        at=at,
        kind=FaultKind.APPLICATION_ERROR,
        lives=True,
    )


def how(worker: Worker) -> str:
    """Return in words how a worker ended."""
    if worker.stopped:
        return "stopped by the agent"
    code = worker.code if worker.code is not None else 0
    return describe_exit(code)


def is_ending(pid: int) -> bool:
    """Return whether a process is about to end or has ended: the kernel closes its connections before anybody sees its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return bool(int(fields[6]) & _PF_EXITING)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError, ValueError):
        return False


class OomWatch:
    """Counts the processes of our control group that the kernel has killed for want of memory: the one SIGKILL whose sender can
    be known.

    Workers are in the same group as their agent.
    """

    def __init__(self, events: Path | None = None) -> None:
        self._events = _events_file() if events is None else events
        self._known = self._count()

    def killed(self) -> bool:
        """Return whether it killed another process since the last call; False if the kernel has no counter."""
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
