"""The cncf provider beside ours: in a folder of its own, since it asks for an older client than we do.

`.make/peer` holds that provider and what it needs beyond this environment; a process that has the folder first on its path runs
Airflow of this environment with that provider. It is made once, by pip, and needs a package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["PEER", "peer_environment"]

#: What is installed, and nothing that it depends on: the rest is here already.
PEER = (
    "apache-airflow-providers-cncf-kubernetes==10.25.0",
    "kubernetes==36.0.3",
    "kubernetes-asyncio==36.1.0",
    "aiofiles==25.1.0",
)

_ROOT = Path(__file__).parents[1]
_FOLDER = _ROOT / ".make" / "peer"


def peer_environment() -> dict[str, str] | None:
    """Return the environment of a process that can import the cncf provider, None where it cannot be installed."""
    done = _FOLDER / "done"
    if not done.exists() or done.read_text() != "\n".join(PEER):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--target", str(_FOLDER), *PEER]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            print(f"the peer cannot be installed:\n{made.stderr}", file=sys.stderr)
            return None
        done.write_text("\n".join(PEER))
    path = os.pathsep.join(part for part in (str(_FOLDER), str(_ROOT), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}
