"""Run torchrun's command lines one after another in one process, which imports torch once: `torchrun_lines.py FILE`.

FILE is JSON, a list of [variables, number of agents, words]; after each line its exit code is printed, 0 or 1.
"""

from __future__ import annotations

import json
import os
import subprocess
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


def main(order: Path) -> None:
    """Run the lines of a file."""
    for variables, agents, words in json.loads(order.read_text()):
        os.environ.update(variables)
        others = [subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words]) for _ in range(agents - 1)]
        codes = [launch(words), *(other.wait() for other in others)]
        for name in (*variables, "OMP_NUM_THREADS"):  # torchrun sets the last one
            os.environ.pop(name, None)
        print("code", max(codes), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
