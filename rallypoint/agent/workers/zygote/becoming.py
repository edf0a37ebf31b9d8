"""A fork becomes the worker: its environment, folder and streams, then the program as `__main__`, then the end of any Python.

What a script can see is what it would see if Python had been started for it: a fresh `__main__`, `sys.argv` and `sys.path[0]`,
its own random numbers, tracebacks that begin in its own file, exit codes.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import random
import runpy
import signal
import socket
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

from rallypoint.agent.workers.zygote.messages import Order
from rallypoint.agent.workers.zygote.program import Program, What, parse

__all__ = ["anticipate", "become", "prepare", "prepare_forks"]

#: Descriptors of our own are moved out of the way of those that a command names.
_HIGH = 500

#: From here on an integer is none of C's.
_LONG = 1 << 63

#: The start-up module, by its file, where it was loaded before there was an order.
_loaded: dict[str, Any] = {}


def prepare_forks(startup: str) -> None:
    """Prepare for workers that are forks of this process, before it imports what they will need; `startup` is a file."""
    _load(startup).prepare_forks()


def anticipate(startup: str) -> None:
    """Do all that a worker begins with and that needs no order: nobody waits for it now. `startup` is as in `Order`."""
    importlib.invalidate_caches()
    _reseed()
    if startup:
        _loaded[startup] = _load(startup)
        _loaded[startup].anticipate()


def prepare(order: Order, fds: Sequence[int], line: socket.socket) -> None:
    """Take over environment, folder and streams; raises `OSError` when that cannot be."""
    _take_over(order.env)
    if order.cwd:
        os.chdir(order.cwd)
    _place(line, [*order.streams, *order.keep], fds)


def _take_over(env: Mapping[str, str]) -> None:
    """Change what is another than ours: a worker's is long, and hardly anything of it is new."""
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _place(line: socket.socket, wanted: Sequence[int], fds: Sequence[int]) -> None:
    if len(wanted) != len(fds):
        raise OSError(9, f"standby worker received {len(fds)} file descriptors; expected {len(wanted)}")
    if not wanted:
        return
    # First everything of ours out of the way: one that came may have the number that another of them must get.
    if line.fileno() in wanted:
        moved = fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(line.detach())
        line.__init__(fileno=moved)  # type: ignore[misc]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, wanted, strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)


def _reseed() -> None:
    """Let every process have random numbers of its own, until the script says otherwise."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def become(order: Order) -> int:
    """Run the program, join its threads, call its exit handlers, publish its exit code, and return it.

    What is left to the caller is the teardown of the interpreter.
    """
    program = parse(order.argv)
    if program is None:
        raise SystemExit(f"a forked worker cannot run the command {list(order.argv)}; this command needs a new process")
    startup = _refresh(order, program)
    error = _failure(program)
    code = _code(error)
    del error  # with the frames that it holds, as Python drops them before it waits for threads
    _finish()
    if startup is not None:
        startup.publish_exit(code)
    if code < 0:
        _end_by(-code)
    return code


def _failure(program: Program) -> BaseException | None:
    """Run the program and return what it raised; it is shown when nothing is being handled any more, as Python does."""
    try:
        _run(program)
    except BaseException as error:  # noqa: BLE001  it is shown and returned as Python does
        return error
    return None


def _code(error: BaseException | None) -> int:
    """Return the exit code of a program that raised `error`, minus a signal, and write what Python writes about it."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        _show(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if abs(code) < _LONG else 0xFF  # what does not fit into a C long is -1
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{code}\n")
    return 1


def _refresh(order: Order, program: Program) -> Any:
    """Make the process look as if it had just been started; return its start-up module, None where it has none."""
    sys.orig_argv[:] = list(order.argv)
    flag = {What.MODULE: "-m", What.CODE: "-c"}.get(program.what)
    sys.argv = [flag or program.name, *program.args]
    if not order.startup:
        return None
    startup = _loaded.get(order.startup) or _load(order.startup)
    startup.begin()
    return startup


def _load(path: str) -> Any:
    """Run the start-up module of workers, which an interpreter of its own would have found on its path, and return it."""
    spec = importlib.util.spec_from_file_location("rallypoint_startup", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(program: Program) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    if sys.version_info < (3, 14):
        main.__dict__["__annotations__"] = {}  # noqa: RUF063  as `python` makes it
    sys.modules["__main__"] = main
    if program.what is What.MODULE:
        if not program.ours:
            _insert(os.getcwd())  # noqa: PTH109
        runpy._run_module_as_main(program.name)  # type: ignore[attr-defined]  # noqa: SLF001  what `python -m` itself calls
    elif program.what is What.CODE:
        _insert("")
        exec(compile(program.name, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102
    elif _is_importable(program.name):
        sys.path.insert(0, _absolute(program.name))
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001
    else:
        _insert(os.path.dirname(os.path.realpath(program.name)))  # noqa: PTH120
        _run_file(_absolute(program.name), main)


def _absolute(path: str) -> str:
    """Return a path as Python gives it to `__file__`: absolute, and otherwise as it was written."""
    return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118


def _insert(place: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, place)


def _is_importable(path: str) -> bool:
    """Return whether Python would run a `__main__` inside: of a folder or an archive."""
    return pkgutil.get_importer(path) is not None


def _run_file(path: str, main: types.ModuleType) -> None:
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {reason}\n")
        raise SystemExit(2) from None
    loader: Any = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102


def _show(error: BaseException) -> None:
    """Print the traceback as Python would, without the frames that the script did not make."""
    trace = error.__traceback__ = _own(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException as broken:  # noqa: BLE001  the hook is the script's
        broken.__traceback__ = _own(broken.__traceback__)
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(broken), broken, broken.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _own(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without its first frames, which are ours."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _finish() -> None:
    """Wait for threads and call exit handlers, as Python does when the main module is through."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    except BaseException as error:  # noqa: BLE001  an interrupt ends the waiting, and not the end
        sys.__excepthook__(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()  # noqa: SLF001


def _end_by(number: int) -> None:
    """End by a signal, after everything that an end does: the parent must see how this process ended."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
