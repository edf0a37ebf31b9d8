"""Output of a worker whose script ends with an exception: without Rallypoint's frames, a repeated traceback as one line.

Loaded by the start-up module as `_rallypoint_tracebacks`.

- Rallypoint's wrappers call `hide` for an exception that passes them, so no traceback contains their frames, whether Python, a
  logger or torch's `@record` prints it. Python 3.10 keeps the frames; there `strip` drops them when Python prints.
- `show` prints an exception that ends the script. An error that was printed in an earlier round becomes one line,
  and its traceback goes to torch's error file. Ranks of the same round print the same error each, as under torchrun. The
  agent names a folder for all its rounds, which has a file for each error that was printed.
"""

import builtins
import json
import os
import re
import sys
import time
import types

__all__ = ["AGAIN", "FOLDER", "hide", "show", "strip"]

#: Variable with the folder of printed errors (wire/env.py); without it, each traceback is printed.
FOLDER = "RALLYPOINT_SHOWN_ERRORS"

#: Prefix of the one line (agent/workers/facts.py).
AGAIN = "rallypoint: the same error as on rank "

#: Files between Python and the script or function: this folder, and the module that calls a function.
_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = (_HERE + os.sep, os.path.join(os.path.dirname(_HERE), "launched.py"))

#: Characters of an error in the one line.
_LINE_CHARS = 300

#: Addresses of objects and numbers of omitted recursion lines, which differ between starts.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|repeated \d+ more")


def hide(error: BaseException) -> None:
    """Drop Rallypoint's frames from the traceback of an exception before it is raised again."""
    error.__traceback__ = _behind(error.__traceback__)


def strip(error: BaseException) -> None:
    """Drop Rallypoint's frames from the tracebacks of an exception, its causes and contexts, and the members of its group."""
    groups = getattr(builtins, "BaseExceptionGroup", ())
    seen, todo = set(), [error]  # type: tuple[set[int], list[BaseException | None]]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        trace = one.__traceback__ = _behind(one.__traceback__)
        while trace is not None:
            following = trace.tb_next = _behind(trace.tb_next)
            trace = following
        todo += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, groups) else ())]


def _behind(trace: "types.TracebackType | None") -> "types.TracebackType | None":
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def show(display, kind: object, error: Exception, trace: "types.TracebackType | None") -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Print an exception that ends the script, with `display` or as one line; an internal error must not lose it."""
    marker = ""
    try:
        strip(error)
        folder = os.environ.get(FOLDER)
        if folder:
            text = _text(error)
            marker = os.path.join(folder, _digest(text))
            if _again(marker, error, text):
                return
    except Exception as failure:  # noqa: BLE001
        sys.stderr.write(f"rallypoint: cannot compare this error with earlier ones: {type(failure).__name__}\n")
    display(kind, error, _behind(trace))
    if marker:
        _note(marker)


def _text(error: Exception) -> str:
    import traceback  # noqa: PLC0415  the script is over

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _digest(text: str) -> str:
    import hashlib  # noqa: PLC0415

    return hashlib.sha256(_VARIES.sub("", text).encode("utf-8", "replace")).hexdigest()[:32]


def _again(marker: str, error: Exception, text: str) -> bool:
    """Print one line if the error was printed in an earlier round; return whether it was."""
    try:
        with open(marker, encoding="ascii") as file:
            printed = file.read().split()
    except FileNotFoundError:
        return False
    if len(printed) != 2 or printed[0] == _round():
        return False
    import traceback  # noqa: PLC0415

    said = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    # A SyntaxError is preceded by its position in the file.
    what = next((line for line in said if line.strip() and not line[0].isspace()), type(error).__name__)
    _record(what, text)
    sys.stderr.write(f"{AGAIN}{printed[1]} in round {printed[0]}: {what[:_LINE_CHARS]}\n")
    return True


def _record(what: str, text: str) -> None:
    """Write torch's error file, unless the script has recorded its own error there."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    told = {"py_callstack": text, "timestamp": str(int(time.time()))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": what, "extraInfo": told}}, file)


def _note(marker: str) -> None:
    """Record that an error was printed in full; ignored if the round has ended, because its folder is gone."""
    folder = os.path.dirname(marker)
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        with open(marker, "x", encoding="ascii") as file:
            file.write(f"{_round()} {os.environ.get('RANK', '?')}")
    except OSError:
        pass


def _round() -> str:
    return os.environ.get("RALLYPOINT_ROUND", "0")
