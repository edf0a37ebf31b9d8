"""Run torchrun's command lines one after another in one process, which imports torch once: `torchrun_lines.py FILE`.

FILE is JSON, a list of [variables, number of agents, words]; after each line its exit code is printed, 0 or 1.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from pathlib import Path

from torch.distributed import run


def launch(words: list[str]) -> int:
    """Return the exit code that torchrun would have."""
    try:
        run.main(words)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, torchrun would have ended with it
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def launch_and_exit(words: list[str]) -> None:
    """Be one more agent."""
    sys.exit(launch(words))


for variables, agents, words in json.loads(Path(sys.argv[1]).read_text()):
    os.environ.update(variables)
    others = [multiprocessing.Process(target=launch_and_exit, args=(words,)) for _ in range(agents - 1)]
    for other in others:
        other.start()
    codes = [launch(words)]
    for other in others:
        other.join()
        codes.append(other.exitcode or 0)
    for name in variables:
        del os.environ[name]
    with contextlib.suppress(KeyError):
        del os.environ["OMP_NUM_THREADS"]  # torchrun leaves it there
    print("code", max(codes), flush=True)
