"""Write constraints-hashed.txt: the pins of constraints.txt, each with the SHA-256 of every file of that release.

uv asks the package index for them; it lives in an environment of its own below `.make`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS, HASHED = ROOT / "constraints.txt", ROOT / "constraints-hashed.txt"
TOOLS = ROOT / ".make" / "lock"

HEAD = """\
# The pins of constraints.txt with the hashes of their files; `make lock` writes this file.
#   pip install --require-hashes --no-deps -r constraints-hashed.txt
"""


def main() -> int:
    """Write the file; returns the exit code of the first step that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", default="", help="the package index to use instead of uv's own")
    index = parser.parse_args().index
    if not (TOOLS / "bin" / "uv").exists():
        venv.create(TOOLS, with_pip=True)
        command = [str(TOOLS / "bin" / "pip"), "install", "--quiet", "uv", *(["--index-url", index] if index else [])]
        if code := subprocess.run(command, check=False).returncode:
            return code
    pins = "".join(line for line in PINS.read_text().splitlines(keepends=True) if not line.startswith("#"))
    command = [str(TOOLS / "bin" / "uv"), "pip", "compile", "-", "--universal", "--python-version", "3.10", "--no-deps"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", *(["--index-url", index] if index else [])]
    made = subprocess.run(command, input=pins, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode == 0:
        HASHED.write_text(HEAD + made.stdout)
    return made.returncode


if __name__ == "__main__":
    sys.exit(main())
