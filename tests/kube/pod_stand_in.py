"""Takes the place of the agent in a pod where a test is about everything around it. Standard library only, quick to start.

    pod_stand_in.py FOLDER -c CODE rallypoint.agent coordinator|node --attempt A ...

It waits until FOLDER has a file with its name and an exit code in it (`node-A-N-K`, `coordinator-A-T`), or for SIGTERM, which
it answers with 143. Meanwhile it says what is written to the file of its name with `.say`.
"""

from __future__ import annotations

import itertools
import pathlib
import signal
import sys
import time

_EVERY = 0.02


def _name(arguments: list[str]) -> str:
    told = dict(itertools.pairwise(arguments))
    if "coordinator" in arguments:
        return f"coordinator-{told['--attempt']}-{told['--term']}"
    return f"node-{told['--attempt']}-{told['--node']}-{told['--incarnation']}"


def _main(folder: pathlib.Path, arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = folder / _name(arguments)
    print("the stand-in waits", flush=True)
    said = 0
    words = end.with_suffix(".say")
    while not end.exists():
        text = words.read_bytes()[said:] if words.exists() else b""
        said += len(text)
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        time.sleep(_EVERY)
    return int(end.read_text())


if __name__ == "__main__":
    sys.exit(_main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
