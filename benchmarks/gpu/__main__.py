"""Prove everything that is CUDA's or NCCL's own on one GPU, within nine minutes; or play it dry, with stand-ins on the CPU.

Each check runs in a process of its own; what has not ended in its time is ended with all that it started, and has failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.machine import Machine, tail
from benchmarks.gpu.result import Result
from benchmarks.processes import descendants
from rallypoint.agent.linux import become_subreaper

__all__ = ["main"]

#: Seconds of a whole run on a GPU.
_BUDGET = 535.0

_ROOT = Path(__file__).parents[2]
_REPORT = _ROOT / ".make" / "gpu-report.json"

_NO_DEVICE = (
    "no CUDA device was found: torch {torch}, built for CUDA {cuda}, has none available. "
    "Run this on a machine with an NVIDIA GPU, with a Python whose torch has CUDA (make gpu GPU_PYTHON=python3), "
    "or play it without one: make gpu DRY=1"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; return 0 when all passed, 1 when one failed, 2 where there is no device."""
    options = _options(argv)
    if options.single:
        return _run_one(options)
    versions = _versions(dry=options.dry)
    if not options.dry and not versions["device"]:
        print(_NO_DEVICE.format(**versions), file=sys.stderr)
        return 2
    if options.dry:
        print("DRY RUN: there is no GPU in this. Every check runs its own code with stand-ins on the CPU.", flush=True)
    become_subreaper()
    # Ended by a signal, this ends what it has started, as it does after each check.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [check for check in CHECKS if not options.only or check.name in options.only]
    began = time.monotonic()
    results = []
    for check in chosen:
        left = check.dry_limit if options.dry else min(check.limit, _BUDGET - (time.monotonic() - began))
        left = left if options.limit is None else min(left, options.limit)
        print(f"{check.name} ...", flush=True)
        results.append(_bounded(check, left, dry=options.dry))
        _tell(results[-1])
    _deliver(results, options.report, versions, dry=options.dry)
    return 0 if all(result.passed for result in results) else 1


def _tell(result: Result) -> None:
    print(f"  {'passed' if result.passed else 'FAILED'} in {result.seconds:.1f} s: {result.sentence}", flush=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="no GPU: stand-ins on the CPU, which are named")
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=[check.name for check in CHECKS], help="this check alone"
    )
    parser.add_argument(
        "--report", type=Path, default=_REPORT, metavar="FILE", help="JSON report (default .make/gpu-report.json)"
    )
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end each check after so long (each has its own limit)")
    parser.add_argument("--single", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _run_one(options: argparse.Namespace) -> int:
    """Run one check in this process, and leave its result in the folder."""
    name, folder = options.single[0], Path(options.single[1])
    check = next(check for check in CHECKS if check.name == name)
    result = check.run(Machine(dry=options.dry, folder=folder))
    (folder / "result.json").write_text(json.dumps(result.to_json()))
    return 0


def _bounded(check: Check, limit: float, *, dry: bool) -> Result:
    """Run one check in a process of its own, and end all of it after `limit` seconds."""
    folder = Path(tempfile.mkdtemp(prefix="rallypoint-gpu-"))
    log, began = folder / "check.log", time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu", "--single", check.name, str(folder), *(["--dry"] if dry else [])]
    paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, cwd=_ROOT, stdout=output, stderr=output, start_new_session=True
        )
    ended = True
    try:
        process.wait(max(1.0, limit))
    except subprocess.TimeoutExpired:
        ended = False
    finally:
        _end_all()
    seconds = round(time.monotonic() - began, 1)
    try:
        found = Result.from_json(json.loads((folder / "result.json").read_text()))
        return dataclasses.replace(found, seconds=seconds)
    except (OSError, ValueError, TypeError):
        why = f"did not end within {limit:.0f} s" if not ended else f"ended with {process.returncode}"
        return Result(name=check.name, passed=False, sentence=f"the check {why}: {tail(log, 12)}", seconds=seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_all() -> None:
    """End every process that a check has left: those without a parent are ours, since this is a subreaper."""
    while left := descendants(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in left:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # of one that is not reparented yet
                continue
        time.sleep(0.02)


def _versions(*, dry: bool) -> dict[str, str]:
    """Return versions, and the name of the device, "" where there is none."""
    found = {"python": platform.python_version(), "torch": importlib.metadata.version("torch")}
    if dry:
        return {**found, "cuda": "", "device": "none (dry run)"}
    import torch  # noqa: PLC0415  takes seconds, and a dry run has no use for it

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return {**found, "cuda": torch.version.cuda or "no version", "device": device}


def _deliver(results: Sequence[Result], report: Path, versions: Mapping[str, str], *, dry: bool) -> None:
    """Print the table, and write the same as JSON."""
    print(f"\n{'check':22} {'result':7} {'seconds':>8} {'ratio':>8}  what was found")
    for result in results:
        ratio = "-" if result.ratio is None else f"{result.ratio:.2f}"
        print(
            f"{result.name:22} {'passed' if result.passed else 'FAILED':7} {result.seconds:8.1f} {ratio:>8}  {result.sentence}"
        )
        for name in result.stand_ins:
            print(f"{'':22} stand-in: {name}")
    failed = [result.name for result in results if not result.passed]
    total = sum(result.seconds for result in results)
    print(f"\n{len(results) - len(failed)} of {len(results)} passed in {total:.0f} s on device: {versions['device']}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    report.parent.mkdir(parents=True, exist_ok=True)
    figures = {"dry": dry, "versions": dict(versions), "results": [result.to_json() for result in results]}
    report.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"report: {report}")


if __name__ == "__main__":
    sys.exit(main())
