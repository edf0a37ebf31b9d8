"""Processes that call each other as instances of roles, without any backend: the environment is what a backend would give."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.wire import env

__all__ = ["SECRET", "Instance", "RoleJob"]

ROOT = Path(__file__).parents[2]
SECRET = "5" * 64


@dataclass
class Instance:
    """One started process."""

    process: subprocess.Popen[str]
    log: Path

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL and reap it."""
        self.process.kill()
        self.process.wait()

    def finish(self, timeout: float = 60.0) -> str:
        """Wait for its success, and return its output."""
        code = self.process.wait(timeout)
        text = self.log.read_text()
        assert code == 0, f"exit code {code}:\n{text}"
        return text


@dataclass
class RoleJob:
    """A job with roles whose instances a test starts, kills and starts again."""

    folder: Path
    roles: dict[str, tuple[str, int]]
    extra: Mapping[str, str] = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)

    def environment(self, role: str, rank: int = 0, incarnation: int = 0, **more: str) -> dict[str, str]:
        """Return the environment of one life of an instance."""
        secret = self.folder / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(SECRET)
        launch, total = self.roles[role]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_") or name == env.HOME}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join((str(self.folder), str(ROOT))),
            env.JOB_NAME: "rl",
            env.ROLE: role,
            env.ROLE_RANK: str(rank),
            env.ROLE_SIZE: str(total),
            env.ATTEMPT: "1",
            env.RESET: "0",
            env.INCARNATION: str(incarnation),
            env.ROLES: json.dumps({name: {"launch": kind, "total": n} for name, (kind, n) in self.roles.items()}),
            env.ROLES_URL: f"file://{self.folder}/directory",
            env.ROLES_SECRET_FILE: str(secret),
            env.CONFIG: json.dumps({"lr": 0.5}),
            **({env.ROUND: "1", "RANK": str(rank), "WORLD_SIZE": str(total)} if launch == "elastic" else {}),
            **self.extra,
            **more,
        }

    def start(self, script: str, role: str, rank: int = 0, incarnation: int = 0, **more: str) -> Instance:
        """Start one life of an instance with a script."""
        number = len(self.instances)
        path, log = self.folder / f"script{number}.py", self.folder / f"log{number}.txt"
        path.write_text(textwrap.dedent(script))
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", str(path)],
                env=self.environment(role, rank, incarnation, **more),
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.instances.append(Instance(process, log))
        return self.instances[-1]

    def close(self) -> None:
        """End all processes."""
        for one in self.instances:
            with contextlib.suppress(ProcessLookupError):
                one.process.kill()
            one.process.wait()


@contextlib.contextmanager
def role_job(folder: Path, **roles: tuple[str, int]) -> Iterator[RoleJob]:
    """Yield a job, and end its processes."""
    job = RoleJob(folder, roles)
    try:
        yield job
    finally:
        job.close()
