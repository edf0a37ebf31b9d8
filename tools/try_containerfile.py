"""Run the lines of the Containerfile in a clean environment of this machine, as far as they are about Python.

    python tools/try_containerfile.py [NAME=VALUE ...]      # values for ARGs; TORCH= leaves torch out

Each stage is a fresh virtual environment. Its pip commands run as they are written, with the image's folders in a temporary
one; what makes users and folders in an image is told and skipped. The last command must end with 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.containerfile import Instruction, expand, problems, read  # noqa: E402  found from the clone alone


def main(arguments: list[str]) -> int:
    """Try every line; returns the exit code of the first that failed, or 0."""
    given = dict(word.split("=", 1) for word in arguments)
    steps = read((ROOT / "Containerfile").read_text(encoding="utf-8"))
    wrong = problems(steps, ROOT)
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="containerfile-") as folder:
        return _play(steps, given, Path(folder))


def _play(steps: list[Instruction], given: dict[str, str], folder: Path) -> int:
    variables = dict(given)
    stages = 0
    for step in steps:
        if step.word == "FROM":
            stages += 1
            venv.create(folder / f"stage-{stages}", with_pip=True)
        elif step.word == "ARG":
            name, _, value = step.rest.partition("=")
            variables.setdefault(name, value)
        elif step.word in {"RUN", "CMD"}:
            code = _do(step, variables, folder, folder / f"stage-{stages}")
            if code:
                return code
    return 0


def _do(step: Instruction, variables: dict[str, str], folder: Path, stage: Path) -> int:
    if step.word == "RUN" and " pip " not in step.rest:
        print(f"line {step.line}: skipped: {step.rest}", flush=True)
        return 0
    command = expand(step.rest, variables).replace("/wheels", f"{folder}/wheels").replace(" /src", f" {ROOT}")
    argv = json.loads(command) if step.word == "CMD" else ["sh", "-e", "-c", command]
    began = time.monotonic()
    environment = {**os.environ, "PATH": f"{stage}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    code = subprocess.run(argv, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False).returncode
    print(
        f"line {step.line}: {'ok' if code == 0 else f'exit code {code}'} after {time.monotonic() - began:.0f} s: {command}",
        flush=True,
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
