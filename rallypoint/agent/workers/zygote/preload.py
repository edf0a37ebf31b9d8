"""Importing what workers will import, once for all of them, without getting in the way of those that train already.

Imports run in a thread of low priority: a thread's priority is its own on Linux, and the forks come from the main thread, so no
worker inherits it (who lowered the whole process could not raise it again without privileges). The thread is gone before the
first fork.

A module that looks at the rank when it is imported would hold the zygote's answer in every worker. So it is noted which
variables are asked for meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ALWAYS", "PLACE_VARIABLES", "Loaded", "devices_counted_outside", "installed", "load", "without"]

#: What every training imports. DDP's constructor imports torch._dynamo, which takes as long as torch itself.
ALWAYS = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.profiler",
)

#: Variables that differ from worker to worker or from round to round.
PLACE_VARIABLES = frozenset(
    {
        "LOCAL_RANK",
        "RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_MAX_RESTARTS",
        "RALLYPOINT_LOCAL_RANK",
        "RALLYPOINT_TERM",
        "RALLYPOINT_ROUND",
        "RALLYPOINT_KEPT",
        "RALLYPOINT_PROGRESS_FILE",
        "RALLYPOINT_LIFE_OFFSET",
        "RALLYPOINT_STACK_FILE",
        "RALLYPOINT_RESULT_FILE",
        "RALLYPOINT_LINE",
    }
)

#: Where it is "1", `torch.cuda.is_available` asks NVIDIA's management library, which a fork survives, and not CUDA.
_COUNTED_OUTSIDE = "PYTORCH_NVML_BASED_CUDA_CHECK"

_NICE = 10

#: Seconds that a thread which has ended may still be seen.
_GONE_WITHIN = 5.0


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What became of a list of modules.

    Attributes:
        count: so many were imported that were not there before.
        failed: the others, each with its error in one line.
        asked: top-level packages that asked for their place in the world, and for which of its variables.
    """

    count: int
    failed: Mapping[str, str] = field(default_factory=dict, hash=False)
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@contextlib.contextmanager
def devices_counted_outside() -> Iterator[None]:
    """Let modules ask whether there is a GPU when they are imported, as many do, and CUDA work in forks all the same."""
    before = os.environ.get(_COUNTED_OUTSIDE)
    os.environ[_COUNTED_OUTSIDE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_COUNTED_OUTSIDE]
        else:
            os.environ[_COUNTED_OUTSIDE] = before


def load(names: Sequence[str]) -> Loaded:
    """Import modules in their order; one that fails is told and costs nothing else."""
    before = len(sys.modules)
    failed: dict[str, str] = {}
    asked: dict[str, tuple[str, ...]] = {}

    def work() -> None:
        with contextlib.suppress(OSError):  # not allowed: then at full priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        with _uncollected(), _watched() as seen:
            for name in names:
                seen.clear()
                error = _import(name)
                if error:
                    failed[name] = error
                found = tuple(sorted(seen & PLACE_VARIABLES))
                if found:
                    top = name.partition(".")[0]
                    asked[top] = tuple(sorted({*asked.get(top, ()), *found}))

    thread = threading.Thread(target=work, name="preload")
    thread.start()
    thread.join()
    _wait_for_end(thread.native_id)
    return Loaded(count=len(sys.modules) - before, failed=failed, asked=asked)


def _wait_for_end(task: int | None) -> None:
    """Wait until the kernel has forgotten a thread that Python has: it takes a moment more, and tells nobody."""
    path, deadline = Path(f"/proc/self/task/{task}"), time.monotonic() + _GONE_WITHIN
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.001)


def _import(name: str) -> str:
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  an import runs anybody's code, and may even call sys.exit
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Leave the garbage collector alone: a seventh of the time of `import torch` goes to looking for what is not there.

    The zygote collects once when it has imported everything. A collector that a module has switched on or off stays so.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _watched() -> Iterator[set[str]]:
    """Collect the names of the environment variables that Python code asks for."""
    seen: set[str] = set()
    kind = type(os.environ)

    class Watching(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, name: str) -> str:
            seen.add(name)
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Watching
    try:
        yield seen
    finally:
        os.environ.__class__ = kind


def installed(names: Iterable[str]) -> list[str]:
    """Return the names whose top-level package is of the standard library or installed: those do not change meanwhile."""
    library = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  as Python tells it
    found = []
    for name in names:
        try:
            spec = importlib.util.find_spec(name.partition(".")[0])
        except (ImportError, ValueError):
            continue
        origin = getattr(spec, "origin", None)
        if isinstance(origin, str) and (origin.startswith(library) or "site-packages" in origin or "dist-packages" in origin):
            found.append(name)
    return found


def without(names: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Return the names outside the given top-level packages."""
    refused = frozenset(packages)
    return [name for name in names if name.partition(".")[0] not in refused]
