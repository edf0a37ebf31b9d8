"""The process in which a job's pre-check operators live: loads the classes, then asks one after the other as it is told to.

`python -m rallypoint.capabilities.user_hooks.host [--line FD] [--beside SCRIPT] JSON`; JSON is a list of [module, class].
Without a line it only tries: exit code 0, or `Exit.CONFIG` and one line on stderr. It knows the standard library alone.

On the line both sides write JSON, a line each. First we say `{"ready": [{"interval": s, "limit": n}, ...]}` or
`{"error": ...}`. Then `{"index": i, "last": ..., "job": {...}}` is answered by what `pre_checks.Answer.of` reads. Who is at the
other end may be gone at any time: then we end at once, whatever an operator is doing.

An operator needs `check(job_args=...)` alone. What it returns is true or false, or has `result` (0 is fine), `result_msg` and
`abnormal_nodes`. `failed_actions(result_msg=..., abnormal_nodes=...)` says what is to be done then. Our own operators are here,
too. DLRover's names for them work: what they look at is ours, so nothing of it is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.user_class import load_class, make, raised
from rallypoint.wire.exits import Exit
from rallypoint.wire.pre_check import BUILT_IN_MODULE
from rallypoint.wire.python import find_in_current_folder

__all__ = [
    "FIELD",
    "ConnectionPreCheckOperator",
    "Loaded",
    "NoPreCheckOperator",
    "SchedulingPreCheckOperator",
    "job_of",
    "load",
]

#: Where a job names them.
FIELD = "health.pre_check_ops"

#: Seconds between two questions where an operator does not say it, as in DLRover.
_INTERVAL = 5.0

#: Characters of what an operator says that are told on.
_LONGEST = 2000

#: What DLRover calls the actions, and what they are here. Nothing runs yet that could be restarted.
_ACTIONS = {
    "no_action": "no_action",
    "none": "no_action",
    "any_action": "no_action",
    "log": "event",
    "event": "event",
    "job_abortion": "job_abortion",
    "job_abort": "job_abortion",
    "abort_job": "job_abortion",
    "relaunch_worker": "relaunch_worker",
    "master_relaunch_worker": "relaunch_worker",
    "restart_worker": "no_action",
}


class Loaded:
    """An operator, made of the class that a job names."""

    def __init__(self, module: str, name: str) -> None:
        """Load it; raises `ConfigError`."""
        self.name = f"{module}.{name}"
        where = f"{FIELD}: {self.name}"
        cls = _BUILT_IN.get(name) if module == BUILT_IN_MODULE else None
        cls = cls or load_class(module, name, where)
        self._operator = make(cls, where)
        if not callable(getattr(self._operator, "check", None)):
            raise ConfigError(f"{where}: class {name} has no method check()")
        self.interval = self._number("get_retry_interval_secs", _INTERVAL)
        self.limit = None if not hasattr(cls, "get_retry_times") else max(1, int(self._number("get_retry_times", 1)))

    def answer(self, job: Mapping[str, Any], *, last: bool) -> dict[str, Any]:
        """Ask it, and where it is not content also what it wants to be done; whatever goes wrong is an answer, too."""
        try:
            fine, message, abnormal = _result(_call(self._operator.check, job_args=job_of(job)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 the user's code may raise anything
            return _said(message=f"check raised {raised(error)}", trouble=True)
        if fine:
            return _said(fine=True, message=message)
        nodes = [_node(one) for one in abnormal]
        wish = "failed_actions" if last or self.limit is None else "recover_actions"
        try:
            asked = getattr(self._operator, wish, None)
            wanted = () if asked is None else _call(asked, result_msg=message, abnormal_nodes=list(abnormal))
            actions = [_action(one) for one in wanted or ()]
        except (Exception, SystemExit) as error:  # noqa: BLE001 as above
            return _said(message=f"{message}; {wish} raised {raised(error)}", nodes=nodes, trouble=True)
        return _said(message=message, nodes=nodes, actions=actions)

    def _number(self, method: str, usual: float) -> float:
        asked = getattr(self._operator, method, None)
        if asked is None:
            return usual
        try:
            number = float(asked())
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{FIELD}: {self.name}: {method}() raised {raised(error)}") from error
        if not 0 <= number < float("inf"):
            raise ConfigError(f"{FIELD}: {self.name}: {method}() returned {number:g}; expected 0 or more")
        return number


def load(names: Iterable[tuple[str, str]]) -> list[Loaded]:
    """Return the operators of a job, in their order; raises `ConfigError` for the first that cannot be loaded."""
    return [Loaded(module, name) for module, name in names]


def job_of(facts: Mapping[str, Any]) -> SimpleNamespace:
    """Return what an operator is given as `job_args`; `nodes` have an `id`, a `host` and a `status`."""
    nodes = [
        SimpleNamespace(**node, rank_index=node["id"], name=f"node-{node['id']}", type="worker") for node in facts["nodes"]
    ]
    return SimpleNamespace(**{**facts, "nodes": nodes}, distribution_strategy="AllreduceStrategy")


def _call(method: Callable[..., Any], **words: Any) -> Any:
    """Call a method with those of the words that it takes: what the class does not need it does not have to name."""
    parameters = inspect.signature(method).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return method(**words)
    return method(**{name: value for name, value in words.items() if name in {one.name for one in parameters}})


def _result(said: Any) -> tuple[bool, str, Sequence[Any]]:
    if isinstance(said, bool):
        return said, "", ()
    result = getattr(said, "result", None)
    if not isinstance(result, int):
        raise TypeError(
            f"the method check() of the pre-check operator returned {said!r}; expected True, False, or an object with result, "
            "result_msg and abnormal_nodes"
        )
    return result == 0, str(getattr(said, "result_msg", "") or ""), tuple(getattr(said, "abnormal_nodes", None) or ())


def _node(node: Any) -> int:
    words = (getattr(node, name, None) for name in ("rank_index", "node_rank", "id", "node_id"))
    return int(next((word for word in words if word is not None), node))


def _action(action: Any) -> dict[str, Any]:
    word = action if isinstance(action, str) else getattr(action, "action_type", None)
    kind = _ACTIONS.get(str(getattr(word, "value", word)))
    if kind is None:
        raise ValueError(f"pre-check action {action!r} is not allowed; expected one of {', '.join(_ACTIONS)}")
    message = next((str(text) for name in ("msg", "event_msg", "reason") if (text := getattr(action, name, ""))), "")
    node = getattr(action, "node_id", -1)
    return {"kind": kind, "node": int(-1 if node is None else node), "message": message}


def _said(*, message: str = "", **words: Any) -> dict[str, Any]:
    return {"fine": False, "message": message[:_LONGEST], "nodes": [], "actions": [], "trouble": False, **words}


def main(argv: Sequence[str] | None = None) -> int:
    """Load the classes; answer what is asked over the line until it is closed."""
    parser = argparse.ArgumentParser(description="Run the pre-check operators of a job.")
    parser.add_argument("--line", type=int, default=None, metavar="FD", help="open socket (default: only load the classes)")
    parser.add_argument(
        "--beside", type=Path, default=None, metavar="SCRIPT", help="also import modules from the script's folder"
    )
    parser.add_argument("operators", metavar="JSON", help="list of [module, class]")
    args = parser.parse_args(argv)
    places = [Path.cwd(), *([] if args.beside is None else [args.beside.absolute().parent])]
    sys.path[:0] = [str(place) for place in places if str(place) not in sys.path]
    line = None if args.line is None else socket.socket(fileno=args.line)
    try:
        operators = load((str(module), str(name)) for module, name in json.loads(args.operators))
    except ConfigError as error:
        if line is None:
            sys.stderr.write(f"{error}\n")
        else:
            _write(line, {"error": str(error)})
        return Exit.CONFIG
    if line is not None:
        with line, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asks is gone
            _serve(line, operators)
    return Exit.OK


def _serve(line: socket.socket, operators: Sequence[Loaded]) -> None:
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        with line.makefile("rb") as heard:
            for question in heard:
                questions.put(question)
        os._exit(Exit.OK)  # nobody is there any more, whatever an operator is doing

    threading.Thread(target=listen, daemon=True).start()
    _write(line, {"ready": [{"interval": one.interval, "limit": one.limit} for one in operators]})
    while True:
        asked = json.loads(questions.get())
        _write(line, operators[asked["index"]].answer(asked["job"], last=asked["last"]))


def _write(line: socket.socket, message: dict[str, Any]) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")


@dataclass(frozen=True, kw_only=True)
class _PreCheckResult:
    """What an operator found: 0 is nothing."""

    result: int = 0
    result_msg: str = ""
    abnormal_nodes: tuple[Any, ...] = ()


class NoPreCheckOperator:
    """Finds nothing."""

    def check(self, job_args: Any) -> _PreCheckResult:
        """Return that all is well."""
        return _PreCheckResult()


class SchedulingPreCheckOperator:
    """Waits until the nodes are there that must be: MIN of them, or with `pending_fail_strategy` 2 MAX.

    When they are not after `pending_timeout` the job ends. With the strategies -1 and 0, or no time-out, nobody is judged.
    """

    @classmethod
    def get_retry_interval_secs(cls) -> float:
        """Return how many seconds are between two looks."""
        return 1.0

    def check(self, job_args: Any) -> _PreCheckResult:
        """Compare the nodes that have come with those that must."""
        strategy, timeout = job_args.pending_fail_strategy, job_args.pending_timeout
        if strategy in (-1, 0) or timeout <= 0:
            return _PreCheckResult(result_msg="skipped, because the job ignores pending nodes")
        needed = job_args.max_nodes if strategy == 2 else job_args.min_nodes
        here = sum(node.status == "Running" for node in job_args.nodes)
        if here >= needed:
            return _PreCheckResult(result_msg=f"{here} of {needed} nodes have joined")
        word = "PRE_CHECK_PENDING_TIMEOUT" if job_args.waited > timeout else "PRE_CHECK_PENDING_WAIT"
        return _PreCheckResult(
            result=1, result_msg=f"{word}: {here} of {needed} nodes have joined after {job_args.waited:.0f} s"
        )

    def failed_actions(self, result_msg: str, abnormal_nodes: Any) -> list[str]:
        """Return that the job ends, once the time is over."""
        return ["job_abortion" if result_msg.startswith("PRE_CHECK_PENDING_TIMEOUT") else "no_action"]


class ConnectionPreCheckOperator:
    """Finds nodes that came and cannot be heard any more, and waits until MIN nodes are connected and none is missing."""

    @classmethod
    def get_retry_interval_secs(cls) -> float:
        """Return how many seconds are between two looks."""
        return 1.0

    def check(self, job_args: Any) -> _PreCheckResult:
        """Look for nodes without a connection; MIN nodes with one must be there."""
        lost = tuple(node for node in job_args.nodes if node.status != "Running")
        here = len(job_args.nodes) - len(lost)
        if not lost and here >= job_args.min_nodes:
            return _PreCheckResult(result_msg=f"{here} nodes are connected")
        told = (
            ", ".join(f"node {node.id} on {node.host}" for node in lost) or f"{here} of {job_args.min_nodes} nodes have joined"
        )
        return _PreCheckResult(result=1, result_msg=f"CONNECTION_CHECK_FAILED: {told}", abnormal_nodes=lost)

    def failed_actions(self, result_msg: str, abnormal_nodes: Any) -> list[str]:
        """Return nothing: a node whose end is seen is replaced by the supervisor, and the next look counts the replacement."""
        return ["no_action"]


#: By the names that they have in DLRover.
_BUILT_IN = {cls.__name__: cls for cls in (NoPreCheckOperator, SchedulingPreCheckOperator, ConnectionPreCheckOperator)}


if __name__ == "__main__":
    find_in_current_folder()
    sys.exit(main())
