"""A supervisor that outlives the command that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rallypoint.backends.contract import BackendError, JobNotFoundError
from rallypoint.backends.local.files import telling
from rallypoint.backends.local.store import Store
from rallypoint.wire.env import HOME, JOB_MARK

__all__ = ["spawn_supervisor"]

#: Starts a program that is nobody's child here, so that a caller who lives on need not reap it, and prints its process number.
_LAUNCH = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=((os.POSIX_SPAWN_DUP2, 2, 1),), setsid=True)
print(pid)
"""


def spawn_supervisor(home: Path, name: str) -> int:
    """Start `rallypoint supervise NAME` in a session of its own, its words in `supervisor.log`; return its process number.

    A second one does no harm: it waits until the first is gone. Blocks; raises `JobNotFoundError` and `BackendError`.
    """
    log = Store(home=home).job(name).supervisor_log
    # Its mark would make it a process of the job that we happen to run in, to be killed with it.
    environment = {key: value for key, value in os.environ.items() if key != JOB_MARK}
    with telling(log):
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileNotFoundError as error:
            raise JobNotFoundError(f"there is no job {name}") from error
        try:
            command = (sys.executable, "-m", "rallypoint.cli.main", "supervise", name)
            launched = subprocess.run(
                (sys.executable, "-I", "-S", "-c", _LAUNCH, *command),
                env={**environment, HOME: str(home)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(descriptor)
    if launched.returncode != 0:
        raise BackendError(f"{log}: no supervisor could be started; the last lines there say why")
    return int(launched.stdout)
