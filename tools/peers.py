"""Make `.make/peers` from nothing: the other launchers that the benchmarks run beside ours, in an environment of their own.

torchrun of the torch that constraints.txt pins, dlrover-run and ft_launcher (nvidia-resiliency-ext). They ask for versions that
ours need not have, and a launcher must not be measured with our packages on its path. Runs with the interpreter that is to live
there and needs nothing but its standard library; the second time there is nothing to do.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".make" / "peers"
PYTHON = VENV / "bin" / "python"

#: What is compared with, beside torch; dlrover 0.6.1 imports grpc and kubernetes without asking for them.
PEERS = (
    "dlrover==0.6.1",
    "grpcio==1.85.1",
    "kubernetes==36.0.3",
    "protobuf==7.36.2",
    "nvidia-resiliency-ext==0.4.1",
    "numpy",
)

#: dlrover 0.6.1 starts its master with one argument fewer than torch 2.13 wants (`numa_options`).
_MASTER = Path("dlrover/trainer/torch/elastic_run.py")
_MASTER_CALL, _PATCHED = 'SubprocessHandler(cmd, args, {}, "", "", 0)', 'SubprocessHandler(cmd, args, {}, "", "", 0, None)'


def main() -> int:
    """Bring `.make/peers` up to date; returns the exit code of the first step that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", default="", help="the package index to use instead of pip's own")
    parser.add_argument("--extra-index", default="", help="one more package index, for example one with CPU wheels of torch")
    options = parser.parse_args()
    stamp = VENV / f".installed-{_digest()}"
    if stamp.exists():
        return 0
    print(f"making the peers' environment in {VENV.relative_to(ROOT)} ...", flush=True)
    code = _create() or _install(options)
    if code == 0:
        _patch()
        subprocess.run([PYTHON, "-m", "compileall", "-q", "-j", "0", VENV / "lib"], capture_output=True, check=False)
        stamp.touch()
    return code


def _wanted() -> tuple[str, ...]:
    pinned = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None, "constraints.txt pins no torch"
    return (pinned[0], *PEERS)


def _digest() -> str:
    return hashlib.sha256(" ".join((*_wanted(), _PATCHED, sys.version)).encode()).hexdigest()[:16]


def _create() -> int:
    return subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=False).returncode


def _install(options: argparse.Namespace) -> int:
    # Compiled afterwards, on all cores: pip would do that on one.
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *_wanted()]
    command += ["--index-url", options.index] if options.index else []
    command += ["--extra-index-url", options.extra_index] if options.extra_index else []
    return subprocess.run(command, check=False).returncode


def _patch() -> None:
    """Let dlrover-run start its local master under a torch that is newer than itself; without that there is no peer."""
    found = next((VENV / "lib").glob(f"python*/site-packages/{_MASTER}"))
    text = found.read_text()
    if _PATCHED not in text:
        assert _MASTER_CALL in text, f"{found}: nothing to patch"
        found.write_text(text.replace(_MASTER_CALL, _PATCHED))


if __name__ == "__main__":
    sys.exit(main())
