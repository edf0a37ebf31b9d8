"""The process in which a job's failover extension lives: loads the class, then answers one failure after the other.

`python -m rallypoint.agent.node.extension [--line FD] [--beside SCRIPT] MODULE::CLASS`. Without a line it only tries: exit
code 0, or `Exit.CONFIG` and one line on stderr. It knows the standard library alone, so that it starts fast; what the user's
module imports is the user's choice.

On the line both sides write JSON, a line each. First we say `{"ready": true}` or `{"error": ...}`; then a failure is answered
by `{"failover": ..., "note": ...}`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.user_class import load_class, make, raised
from rallypoint.wire import codec
from rallypoint.wire.exits import Exit
from rallypoint.wire.failover import Failover, Failure
from rallypoint.wire.python import find_in_current_folder

__all__ = ["FIELD", "load", "read_answer", "say"]

#: Where a job names it.
FIELD = "fault_tolerance.dynamic_failover_extension"

#: The method that is asked: ours, and DLRover's.
_METHODS = ("decide", "get_user_failover_strategy")

#: Our answers, and DLRover's names for them.
_ANSWERS = {
    **{answer.name: answer for answer in Failover},
    "NORMAL_FAILOVER": Failover.NORMAL,
    "NODE_FAILOVER": Failover.NODE,
    "GLOBAL_FAILOVER": Failover.GLOBAL,
    "ABORTION_FAILOVER": Failover.ABORT,
}

Decide = Callable[[Failure], object]


def load(name: str) -> Decide:
    """Return the method that decides, of a new instance of the class `module::Class`; raises `ConfigError`."""
    module_name, _, class_name = name.partition("::")
    where = f"{FIELD}: {name}"
    instance = make(load_class(module_name, class_name, where), where)
    method = next((m for m in (getattr(instance, method, None) for method in _METHODS) if callable(m)), None)
    if method is None:
        raise ConfigError(f"{where}: class {class_name} has none of the methods {', '.join(_METHODS)}; define one")
    found: Decide = method
    return found


def read_answer(value: object) -> Failover:
    """Return an extension's answer; an enum of its own is taken by the names of its members. Raises `ValueError`."""
    name = getattr(value, "name", value)
    answer = _ANSWERS.get(name.upper()) if isinstance(name, str) else None
    if answer is None:
        raise ValueError(f"failover decision {value!r} is not allowed; expected one of {', '.join(a.name for a in Failover)}")
    return answer


def say(decide: Decide, failure: Failure, name: str) -> dict[str, str]:
    """Return the answer to a failure as it goes over the line; whatever goes wrong is NORMAL, with a note."""
    try:
        said = decide(failure)
    except (Exception, SystemExit) as error:  # noqa: BLE001 the user's code may raise anything
        return _normal(f"extension {name} raised {raised(error)}")
    try:
        return {"failover": read_answer(said).value, "note": ""}
    except ValueError as error:
        return _normal(f"extension {name}: {error}")


def _normal(trouble: str) -> dict[str, str]:
    return {"failover": Failover.NORMAL.value, "note": f"{trouble}; using NORMAL"}


def main(argv: Sequence[str] | None = None) -> int:
    """Load the class; answer what is asked over the line until it is closed."""
    parser = argparse.ArgumentParser(description="Run the failover extension of a job.")
    parser.add_argument("--line", type=int, default=None, metavar="FD", help="open socket (default: only load the class)")
    parser.add_argument(
        "--beside", type=Path, default=None, metavar="SCRIPT", help="also import modules from the script's folder"
    )
    parser.add_argument("extension", metavar="MODULE::CLASS")
    args = parser.parse_args(argv)
    places = [Path.cwd(), *([] if args.beside is None else [args.beside.absolute().parent])]
    sys.path[:0] = [str(place) for place in places if str(place) not in sys.path]
    line = None if args.line is None else socket.socket(fileno=args.line)
    try:
        decide = load(args.extension)
    except ConfigError as error:
        if line is None:
            sys.stderr.write(f"{error}\n")
        else:
            _write(line, {"error": str(error)})
        return Exit.CONFIG
    if line is not None:
        with line, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone
            _serve(line, decide, args.extension)
    return Exit.OK


def _serve(line: socket.socket, decide: Decide, name: str) -> None:
    _write(line, {"ready": True})
    with line.makefile("rb") as questions:
        for question in questions:
            _write(line, say(decide, codec.loads(Failure, question), name))


def _write(line: socket.socket, message: dict[str, Any]) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    find_in_current_folder()
    sys.exit(main())
