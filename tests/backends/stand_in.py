# pathlib would double the time to start:
# ruff: noqa: PTH110, PTH123
"""Takes the place of `rallypoint.agent` where a test is about everything around it. Standard library only, quick to start.

    stand_in.py [--deaf] [--brood] [--bare] coordinator|node ...

It appends its process number to `started` in its folder, then waits until `end` there holds an exit code, or for SIGTERM, to
which it answers with 143. `--deaf` writes a line to `terms` for each SIGTERM and goes on; `--brood` starts two more sleepers: a
child, and a grandchild in a session of its own, whose parent has gone; `--bare` one that has cleared its environment, too.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_EVERY = 0.01


def _sleep() -> None:
    while True:
        signal.pause()


def _brood(*, bare: bool) -> None:
    if not bare and os.fork() == 0:
        _sleep()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            if bare:
                os.execve("/bin/sleep", ["sleep", "1000"], {})
            _sleep()
        os._exit(0)
    os.wait()


def _note_term(*_: object) -> None:
    with open("terms", "a", encoding="ascii") as file:
        file.write("TERM\n")


def _main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, _note_term if "--deaf" in arguments else lambda *_: sys.exit(143))
    for flag in {"--brood", "--bare"} & set(arguments):
        _brood(bare=flag == "--bare")
    with open("started", "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    sys.stderr.write("the stand-in waits\n")
    sys.stderr.flush()
    while not os.path.exists("end"):
        time.sleep(_EVERY)
    with open("end", encoding="ascii") as file:
        return int(file.read())


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
