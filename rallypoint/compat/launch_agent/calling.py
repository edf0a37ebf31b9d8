"""`launch_agent`: workers of this node, run to their end from inside a program.

The agent is a process of its own (`host.py`); this side lays down what it needs, waits for its end or for a signal, and turns
what it left into a return value or an exception.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.errors import ConfigError, LostContactError
from rallypoint.agent.node.agent import Ending
from rallypoint.agent.run import log_folder
from rallypoint.compat.launch_agent.config import LaunchConfig, child_failed, rendezvous_timed_out, signalled
from rallypoint.compat.launch_agent.events import NAMES
from rallypoint.compat.launch_agent.host import ENDING, ORDERS, Left, Orders
from rallypoint.compat.launch_agent.settle import (
    Entrypoint,
    Settled,
    lay_down,
    read_entrypoint,
    read_signals,
    require_valid,
    settle,
)
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit, describe_exit
from rallypoint.wire.function import return_file
from rallypoint.wire.incident import Culprit
from rallypoint.wire.python import run_code
from rallypoint.wire.status import Outcome

__all__ = ["Outlet", "counters", "end_softly", "launch_agent", "read_outlet", "require_events"]


#: Seconds between two looks at whether the ending is to be cut short.
_SLICE = 0.1


def require_events(events: Any) -> None:
    """Raise `ValueError` for an object that is not None and has not all ten names."""
    missing = [name for name in NAMES if events is not None and not hasattr(events, name)]
    if missing:
        raise ValueError(
            f"ice_events: {type(events).__name__} has no attribute {missing[0]}; expected None or an object with "
            f"{', '.join(NAMES)}"
        )


def end_softly(events: Any, workers: int, *, within: float, cut_short: Callable[[], bool] = lambda: False) -> bool:
    """Have `workers` pause at a step boundary, save, and leave their loops; return whether a checkpoint was saved.

    It takes at most `within` seconds; what has not happened by then is left to SIGTERM and its grace. Workers that have not
    reached a boundary when the time is up find the order to stop there, and are not asked to save any more.
    """
    until = time.monotonic() + within
    left = lambda: until - time.monotonic()  # noqa: E731  two words for one clock
    events.resume.clear()
    events.pause.set()
    paused = _patiently(lambda seconds: _all_paused(events, workers, seconds), left, cut_short)
    events.stop_all_tasks.set()
    if paused:
        events.finished_save_checkpoint.clear()
        events.trigger_save_checkpoint.set()
    else:
        log.warning(
            "some of the %d workers did not reach the end of a training step before the timeout, so no checkpoint is saved",
            workers,
        )
    events.resume.set()  # before the pause is cleared: a worker that comes late must not take it for cancelled
    events.pause.clear()
    saved = paused and _patiently(lambda seconds: bool(events.finished_save_checkpoint.wait(seconds)), left, cut_short)
    if paused and not saved:
        log.warning("the workers did not save the requested checkpoint before the timeout; they are stopped without it")
    return saved


def _all_paused(events: Any, workers: int, seconds: float) -> bool:
    counting = getattr(events, "wait_paused", None)
    return bool(counting(workers, seconds) if callable(counting) else events.paused.wait(seconds))


def _patiently(waited: Callable[[float], bool], left: Callable[[], float], cut_short: Callable[[], bool]) -> bool:
    while left() > 0 and not cut_short():
        if waited(min(_SLICE, left())):
            return True
    return False


_DESTINATIONS = ("null", "console", "file")


@dataclass(frozen=True, kw_only=True)
class Outlet:
    """Where counters go: "null", "console" (stderr), or a "file" to which a JSON line each is added."""

    destination: str = "null"
    path: Path | None = None

    def put(self, numbers: Mapping[str, float], *, run_id: str, at: float) -> None:
        """Tell numbers by name; `at` is seconds since the epoch. Raises `OSError` for a file that cannot be written."""
        if self.destination == "console":
            for name, value in numbers.items():
                sys.stderr.write(f"[{at:.3f}][torchelastic]: {name}={value:g}\n")
        elif self.path is not None:
            lines = [json.dumps({"at": at, "run_id": run_id, "name": name, "value": value}) for name, value in numbers.items()]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))


def read_outlet(metrics_cfg: Mapping[str, str]) -> Outlet:
    """Return what `metrics_cfg` says; raises `ValueError`."""
    unknown = sorted(set(metrics_cfg) - {"destination", "path"})
    if unknown:
        raise ValueError(f"metrics_cfg: key {unknown[0]!r} is not allowed; expected the keys destination and path")
    destination, path = metrics_cfg.get("destination", "null"), metrics_cfg.get("path", "")
    if destination not in _DESTINATIONS:
        raise ValueError(
            f"metrics_cfg['destination']: {destination!r} is not allowed; expected one of {', '.join(_DESTINATIONS)}"
        )
    if destination == "file" and not path:
        raise ValueError("metrics_cfg['path']: is missing; destination 'file' requires a path")
    if destination != "file" and path:
        raise ValueError(
            f"metrics_cfg['path']: {path!r} is not allowed with destination {destination!r}; expected no path, or "
            "destination 'file'"
        )
    return Outlet(destination=destination, path=Path(path) if path else None)


def counters(role: str, *, succeeded: bool, rounds: int, seconds: float) -> dict[str, float]:
    """Return the counters of one run: exactly one of the four ends is 1, as in torch's agent."""
    retried = rounds > 1
    base = f"workers.{role}"
    return {
        f"{base}.run_total": 1,
        f"{base}.run_success_with_retries": int(succeeded and retried),
        f"{base}.run_success_no_retries": int(succeeded and not retried),
        f"{base}.run_failed_with_retries": int(not succeeded and retried),
        f"{base}.run_failed_no_retries": int(not succeeded and not retried),
        f"{base}.rounds": rounds,
        f"{base}.duration.ms": round(seconds * 1000),
    }


log = logging.getLogger("rallypoint.launch")

#: The agent's process finds modules where we find them: it must not depend on how this program was started.
_HOST = (
    "import json, pathlib; sys.path[:] = json.loads(sys.argv[2]); "
    "from rallypoint.compat.launch_agent.host import main; sys.exit(main(pathlib.Path(sys.argv[1])))"
)

#: Seconds beyond its workers' grace that the agent's process has to end after a signal.
_BEYOND_GRACE = 30.0


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """The agent's process has ended."""

    code: int


_News = _Ended | signal.Signals


def launch_agent(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str | None, args: Sequence[Any], ice_events: Any = None
) -> dict[int, Any]:
    """Run this node's workers and return what each returned, by global rank; a command's ranks have None.

    `entrypoint` is a function, called with `args` in each worker, or a program, whose arguments they are. `ice_events` are the
    `Events` that the function was given, too: a signal then lets it pause, save and stop before the workers are ended.

    Signals are handled while it runs where it is called in the main thread, and not touched where it is called in another.

    Raises:
        ChildFailedError: torch's, or ours where torch is not installed, when workers failed and the restarts are spent;
            `failures` tells how, by global rank.
        SignalException: torch's or ours, after a signal; the workers are gone by then, and other nodes may go on.
        RendezvousTimeoutError: torch's or ours, when too few nodes came in time.
        ValueError: for a config, entrypoint or argument that cannot be used.
        ConfigError: when it cannot work here: a port in use, a folder that cannot be written.
        LostContactError: when the coordinator cannot be reached any more.

    """
    require_valid(config)
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ValueError(f"args: {args!r} is not allowed; expected a list")  # noqa: TRY004  as for every other argument
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        log.warning("the LaunchConfig has no run_id; this run uses the random run_id %s", config.run_id)
    outlet = read_outlet(config.metrics_cfg)
    require_events(ice_events)
    folder = Path(tempfile.mkdtemp(prefix="rallypoint-"))  # 0700
    try:
        target = read_entrypoint(entrypoint, args, folder)
        settled = settle(config, target, os.environ, has_etcd=importlib.util.find_spec("etcd") is not None)
        if callable(entrypoint):
            lay_down(folder, entrypoint, args, target.name)
        for note in settled.notes:
            log.warning("%s", note)
        began = time.monotonic()
        ending, logs = _run(config, settled, folder, ice_events)
        numbers = counters(
            config.role, succeeded=ending.code == Exit.OK, rounds=ending.node.round, seconds=time.monotonic() - began
        )
        outlet.put(numbers, run_id=config.run_id, at=time.time())
        if ending.code != Exit.OK:
            raise _failure(target.name, ending, logs)
        return _returned(ending, folder, target, config.nproc_per_node)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(config: LaunchConfig, settled: Settled, folder: Path, events: Any) -> tuple[Ending, Path]:
    """Have the agent's process run to its end; raises the `SignalException` of a signal, after which nothing is left."""
    options = settled.options
    logs = log_folder(options)
    if not options.log_dir:
        log.info("worker logs: dir=%s", logs)
    level = logging.getLogger("rallypoint").getEffectiveLevel()
    orders = Orders(options=options, etcd=settled.etcd, logs=logs, level=level)
    (folder / ORDERS).write_bytes(pickle.dumps(orders))
    news: queue.SimpleQueue[_News] = queue.SimpleQueue()
    with _signals(read_signals(config.signals_to_handle), news):
        process = _start(folder)
        try:
            threading.Thread(target=_watch, args=(process, news), daemon=True, name="launch-agent").start()
            told = news.get()
            if isinstance(told, signal.Signals):
                _end(process, told, events, options.plan.workers.stop_grace, options.plan.nproc_per_node, news)
                raise signalled(told)
        finally:
            _put_away(process)
    return _read(folder, told.code), logs


def _start(folder: Path) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C at a terminal reaches this process, which decides what the agent is told.
    command = run_code(_HOST, str(folder), json.dumps(sys.path))
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _watch(process: subprocess.Popen[bytes], news: queue.SimpleQueue[_News]) -> None:
    news.put(_Ended(code=process.wait()))


def _put_away(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind, whatever happened here."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


@contextmanager
def _signals(handled: Sequence[signal.Signals], news: queue.SimpleQueue[_News]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may, and what it does with signals is the program's business
        return

    def note(number: int, _frame: object) -> None:
        news.put(signal.Signals(number))

    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _end(
    process: subprocess.Popen[bytes],
    told: signal.Signals,
    events: Any,
    grace: float,
    workers: int,
    news: queue.SimpleQueue[_News],
) -> None:
    """Let the workers save where they can, then end the agent; a second signal cuts both short."""
    log.warning("launch_agent received the signal %s; stopping all workers of the run", told.name)
    # Set when there is nothing to wait for any more: it has ended, or somebody is in a hurry.
    enough, sent = threading.Event(), threading.Event()

    def softly() -> None:
        if events is not None:
            until = time.monotonic() + grace
            end_softly(events, workers, within=grace, cut_short=enough.is_set)
            enough.wait(max(0.0, until - time.monotonic()))  # they leave their loops, and the run ends by itself
        process.send_signal(signal.SIGTERM)
        sent.set()

    threading.Thread(target=softly, daemon=True, name="launch-agent-ending").start()
    deadline = time.monotonic() + (2 if events is not None else 1) * grace + _BEYOND_GRACE
    while True:
        try:
            heard = news.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            log.warning("the agent process did not stop before the timeout; sending SIGKILL to this process")
            process.kill()
            return
        enough.set()
        if isinstance(heard, _Ended):
            return
        if sent.is_set():
            process.send_signal(signal.SIGTERM)  # a second one makes the agent kill its workers


# --- What is left ----------------------------------------------------------------------------------------------------------


def _read(folder: Path, code: int) -> Ending:
    try:
        left: Left = pickle.loads((folder / ENDING).read_bytes())  # noqa: S301  by the process that we started
    except FileNotFoundError:
        raise RallypointError(
            f"the agent process ended without a result ({describe_exit(code)}); the agent's log on stderr shows the cause"
        ) from None
    if left.ending is None:
        raise ConfigError(left.error)
    return left.ending


def _failure(name: str, ending: Ending, logs: Path) -> Exception:
    verdict, node = ending.node.verdict, ending.node
    if ending.code == Exit.LOST_CONTACT:
        return LostContactError(node.reason)
    if verdict is None or verdict.outcome is Outcome.SUCCEEDED:
        return RallypointError(node.reason or f"the agent exited with code {ending.code}")
    if verdict.reason == "RendezvousTimeout":
        return rendezvous_timed_out(verdict.message)
    culprits = node.failures or (() if verdict.culprit is None else (verdict.culprit,))
    if not culprits:
        return RallypointError(verdict.message)
    log.error("%s", verdict.message)
    folder = logs / f"round-{node.round}"
    return child_failed(name, {culprit.rank: (culprit, _error_file(folder, culprit)) for culprit in culprits})


def _error_file(folder: Path, culprit: Culprit) -> Path:
    """Return where a rank recorded its error; a file that nobody can read is none."""
    path = folder / f"rank-{culprit.rank}.error.json"
    try:
        json.loads(path.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return folder / "none"
    return path


def _returned(ending: Ending, folder: Path, target: Entrypoint, workers: int) -> dict[int, Any]:
    assignment = ending.node.assignment
    if assignment is None:
        return {}  # the others were enough
    ranks = range(assignment.first_rank, assignment.first_rank + workers)
    if str(folder) not in target.args:
        return dict.fromkeys(ranks)
    return {rank: _load(folder / return_file(assignment.fence.round, rank), rank) for rank in ranks}


def _load(path: Path, rank: int) -> Any:
    try:
        return pickle.loads(path.read_bytes())  # noqa: S301  by a worker of ours, in a folder that nobody else may enter
    except FileNotFoundError:
        return None  # it left by sys.exit(0)
    except Exception as error:
        raise RallypointError(f"rank {rank}: cannot unpickle the return value: {type(error).__name__}: {error}") from error
