"""The process in which a job's pre-check operators live: loads the classes, then asks one after the other as it is told to.

`python -m rallypoint.capabilities.user_hooks.host [--line FD] [--beside SCRIPT] JSON`; JSON is a list of [module, class].
Without a line it only tries: exit code 0, or `Exit.CONFIG` and one line on stderr. It knows the standard library alone.

On the line both sides write JSON, a line each. First we say `{"ready": [{"interval": s, "limit": n}, ...]}` or
`{"error": ...}`. Then `{"index": i, "last": ..., "job": {...}}` is answered by what `pre_checks.Answer.of` reads. Who is at the
other end may be gone at any time: then we end at once, whatever an operator is doing.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.user_class import load_class, make, raised
from rallypoint.capabilities.user_hooks.builtin import BUILT_IN
from rallypoint.wire.exits import Exit
from rallypoint.wire.pre_check import BUILT_IN_MODULE

__all__ = ["FIELD", "Loaded", "job_of", "load"]

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
        cls = BUILT_IN.get(name) if module == BUILT_IN_MODULE else None
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


if __name__ == "__main__":
    sys.exit(main())
