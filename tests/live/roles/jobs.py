"""A job with a trainer, two rollouts and a judge, and what its tests look at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.supervision.record import JobRecord
from tests.live.jobs import Job, cli, processes
from tests.waiting import eventually

__all__ = ["SCRIPTS", "Line", "RolesJob"]

#: Where agents keep snapshots.
SHARED = Path("/dev/shm")

SCRIPTS = Path(__file__).parents[1] / "scripts"

_ROLES: dict[str, dict[str, Any]] = {
    "trainer": {"entrypoint": "role_parts:work", "nodes": 1, "nproc_per_node": 2, "process_group": False},
    "rollout": {"launch": "simple", "entrypoint": "role_parts:serve", "total": 2, "driver": False},
    "judge": {"launch": "simple", "entrypoint": "role_parts:Worker"},
}


@dataclass(frozen=True)
class Line:
    """What an instance said."""

    what: str
    at: float
    pid: int
    incarnation: int
    torch: bool
    devices: str | None
    group: str
    job: str


@dataclass
class RolesJob:
    """The job `rl` under a home of its own; its instances write to `folder`."""

    folder: Path
    home: Path
    memory: set[Path] = field(default_factory=set)

    @classmethod
    def write(cls, folder: Path, home: Path, roles: dict[str, Any] | None = None, **fields: Any) -> RolesJob:
        """Write the job's file; `roles` replaces fields of single roles; None takes a field or a role away."""
        named: dict[str, Any] = {name: dict(role) for name, role in _ROLES.items()}
        for name, changed in (roles or {}).items():
            merged = None if changed is None else {**named.get(name, {}), **changed}
            named[name] = None if merged is None else {key: value for key, value in merged.items() if value is not None}
        document = {
            "name": "rl",
            "recovery": {"stop_grace_period": "1s", "node_replacements": 3},
            "fault_tolerance": {"retry_limit": 1, "retry_pause_period": 0, "failure_grace_period": "1s"},
            "health": {"report_interval": "100ms"},
            "roles": {name: role for name, role in named.items() if role is not None},
            **fields,
        }
        (folder / "rl.json").write_text(json.dumps(document))
        return cls(folder=folder, home=home)

    @property
    def place(self) -> Path:
        """The job's own folder."""
        return self.home / "jobs" / "rl"

    @property
    def trainer(self) -> Job:
        """The job that is the trainer."""
        return Job(folder=self.folder, home=self.place, name="rl-trainer")

    @property
    def record(self) -> JobRecord:
        """The record as it is on disk."""
        return JobRecord.from_json((self.place / "record.json").read_bytes())

    def submit(self) -> RolesJob:
        """Submit with a detached supervisor."""
        cli("submit", self.folder / "rl.json")
        return self

    def may_end(self) -> None:
        """Let the trainer and the judge succeed."""
        (self.folder / "enough").touch()

    def lines(self, role: str, rank: int, what: str = "begin") -> list[Line]:
        """Return what an instance has said, in order."""
        path = self.folder / f"{role}-{rank}.lines"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [
            Line(
                what=line["what"],
                at=line["at"],
                pid=line["pid"],
                incarnation=int(line["RALLYPOINT_INCARNATION"]),
                torch=line["torch"],
                devices=line["CUDA_VISIBLE_DEVICES"],
                group=line["RALLYPOINT_GROUP"],
                job=line["RALLYPOINT_JOB"],
            )
            for line in found
            if line["what"] == what
        ]

    def begins(self, role: str, rank: int, life: int = 1) -> Line:
        """Wait until an instance has begun its n-th life, and return what it said then."""

        def begun() -> Line | None:
            lines = self.lines(role, rank)
            return lines[life - 1] if len(lines) >= life else None

        return eventually(begun, every=0.005, why=lambda: f"{role} {rank} should begin life {life}: {self.tell()}")

    def all_begin(self) -> dict[tuple[str, int], int]:
        """Wait until all instances have begun; return their process numbers."""
        ranks = {"trainer": 2, "rollout": 2, "judge": 1}
        found = {(role, rank): self.begins(role, rank).pid for role, size in ranks.items() for rank in range(size)}
        self.memory |= self._shared()
        return found

    def _shared(self) -> set[Path]:
        """Return the folders in shared memory that the job's processes have open."""
        found = set()
        for process in processes(str(self.home)):
            with contextlib.suppress(OSError):
                links = [entry.readlink() for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
                found |= {link.parent for link in links if link.parent.parent == SHARED}
        return found

    def unfinished(self) -> list[str]:
        """Return what is left of the job beside its record and its logs: shared memory, sockets, pipes, temporary files."""
        left = [str(folder) for folder in self.memory if folder.exists()]
        for path in self.place.rglob("*"):
            strange = path.is_socket() or path.is_fifo()
            # A shim opens exit.json.tmp when it starts; one that was killed cannot rename it.
            partial = path.suffix == ".tmp" and path.name != "exit.json.tmp"
            if strange or partial or path.name.startswith((".new-", ".deleted-")):
                left.append(str(path.relative_to(self.place)))
        return left

    def pids(self) -> dict[tuple[str, int], int]:
        """Return the newest process of each instance that has begun."""
        found = {}
        for path in self.folder.glob("*.lines"):
            role, _, rank = path.stem.rpartition("-")
            found[role, int(rank)] = self.lines(role, int(rank))[-1].pid
        return found

    def ends(self) -> JobRecord:
        """Wait until the job is over and holds nothing any more; return its record."""

        def released() -> JobRecord | None:
            record = self.record
            return record if record.released else None

        record = eventually(released, timeout=60.0, why=self.tell)
        assert self.left() == [], "a process outlived its job"
        left = self.unfinished()
        assert left == [], f"memory or files outlived the processes of the job: {left}"
        return record

    def left(self) -> list[str]:
        """Return the command lines of the job's processes, its supervisor apart, once that has ended."""
        eventually(lambda: not [p for p in processes(str(self.home)) if " supervise " in f"{p.command} "], why=self.tell)
        return [process.command for process in processes(str(self.home)) if f"{self.record.uid}/" in process.mark]

    def supervisor(self) -> int:
        """Return the process number of the detached supervisor."""
        found = (p.pid for p in processes(str(self.home)) if " supervise " in f"{p.command} ")
        return eventually(lambda: next(found, None), why=self.tell)

    def host(self, group: str) -> tuple[int, int]:
        """Return the process numbers of the shim and the host of a group of instances."""
        (folder,) = self.place.glob(f"hosts/{group}/host-*")
        return tuple(json.loads((folder / name).read_text())["pid"] for name in ("shim.json", "host.json"))

    def causes(self) -> list[str]:
        """Return why instances, roles or the job were started again, in order."""
        return [event.detail for event in self.record.history if event.kind in ("restarted", "not-restarted")]

    def tell(self) -> str:
        """Return the job's story, for a test that fails."""
        logs = [self.place / "supervisor.log", *self.place.glob("hosts/*/*/agent.log"), *self.place.glob("hosts/**/*.err")]
        return "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in logs if log.exists())


def kill(pid: int) -> None:
    """Kill a process at once."""
    os.kill(pid, signal.SIGKILL)
