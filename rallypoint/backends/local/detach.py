"""A supervisor that outlives the command that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rallypoint.backends.contract import BackendError, JobNotFoundError
from rallypoint.backends.local import durable
from rallypoint.backends.local.files import telling
from rallypoint.backends.local.store import Store
from rallypoint.wire.env import HOME, JOB_MARK
from rallypoint.wire.python import run_module

__all__ = ["launch", "spawn_supervisor"]

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
    store = Store(home=home)
    store.require_own_home()
    log = store.job(name).supervisor_log
    if not log.parent.is_dir():
        raise JobNotFoundError(f"job {name!r} not found")
    # Said in so many words, since the environment may name another backend.
    return launch(log, ("supervise", name, "--backend", "local"), variables={HOME: str(home)})


def launch(log: Path, words: Sequence[str], *, variables: Mapping[str, str] | None = None, told: str = "") -> int:
    """Start `rallypoint` with `words` in a session of its own, what it says in the file `log`; return its process number.

    Its environment is ours with `variables` in it, and its standard input holds what it is `told`. Blocks; raises
    `BackendError`.
    """
    # Its mark would make it a process of the job that we happen to run in, to be killed with it.
    environment = {key: value for key, value in os.environ.items() if key != JOB_MARK}
    with telling(log):
        descriptor = durable.open_regular(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            command = run_module("rallypoint.cli.main", *words)
            with _saying(told) as stdin:
                launched = subprocess.run(
                    (sys.executable, "-I", "-S", "-c", _LAUNCH, *command),
                    env={**environment, **(variables or {})},
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=descriptor,
                    start_new_session=True,
                    check=False,
                )
        finally:
            os.close(descriptor)
    if launched.returncode != 0:
        raise BackendError(f"cannot start a supervisor process; the reason is at the end of the log file {log}")
    return int(launched.stdout)


@contextlib.contextmanager
def _saying(text: str) -> Iterator[int]:
    """Give a standard input that holds `text`: memory without a name, so that it is on no disk and waits for no reader."""
    if not text:
        yield subprocess.DEVNULL
        return
    descriptor = os.memfd_create("told", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as memory:
            memory.write(text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
