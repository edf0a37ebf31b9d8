"""Signs of life of a script that knows nothing of us, and its stacks for whoever asks why there are none.

Every Python imports `sitecustomize` when it starts. The agent puts this folder at the front of a worker's PYTHONPATH, so that
this one is found, also behind a shell; the one that it hides is run after it, as if it had been found itself.

It imports nothing but what an interpreter has loaded anyway, and of Rallypoint nothing at all: the worker's Python may be
another one than the agent's, and each start pays for it. What it knows of the shared memory is the life record
(wire/progress.py), whose place the environment tells, and the pulse behind it. What tells that is beside it (`pulse.py`,
`watching.py`), and loaded when torch is.

- A process claims the record when it starts, unless another that lives has done so: of a script and its helpers the script is
  first. One that takes an optimizer step claims it in any case: a launcher that starts the script is first, too.
- Who claims it registers faulthandler for a signal (wire/hang.py), with a file of its own, and says so in the record.
- When `torch.optim.optimizer` is imported, a hook is registered that counts the steps of every optimizer in the record: a few
  stores to memory, no system call.
- Other modules of torch are wrapped as they are imported, so that phases and other signs of life are told, too.
- When a worker has run its script, joined its threads and called its exit handlers, it publishes its exit status in the record
  (`_Ending`): only the teardown of the interpreter is left, and the agent ends a process that does not get through it.
- An exception that ends the script is printed without our frames, and in one line where an earlier round has printed it
  (`tracebacks.py`).
- After its first step, or when it ends, it leaves the names of what it has imported from installed packages, where that is
  asked for: the next worker may be forked from a process that has imported them already.

An instance of a simple role has no life record. Of all this it gets the check of its process groups alone (`peers.py`).

A worker that is such a fork calls `begin` itself: its interpreter was started for nobody in particular. What of it needs no
worker it does before, by `anticipate`.
"""

import _thread
import atexit
import builtins
import faulthandler
import os
import sys

__all__ = ["Life", "anticipate", "begin", "exit_code", "publish_exit"]

_STEPS, _CLAIM, _WORD = 0, 8, 8
_SIGNAL, _SIGINT = 45, 2
_STARTED, _TRAINS = 1, 2
#: Where the exit status is in the record, and how it is written there (wire/progress.py).
_EXIT, _PID_SHIFT, _SIGNALLED, _UNKNOWN = 32, 16, 0x100, 0xFFFF
_TORCH, _OPTIMIZER, _GROUPS = "torch", "torch.optim.optimizer", "torch.distributed.distributed_c10d"
_PULSE, _PULSE_BYTES = 64, 128 + 7 * 256 * 4
_NAMES_FILE = "RALLYPOINT_MODULES_FILE"

_life: "Life | None" = None


class Life:
    """The life record of this worker, and this process's part in it."""

    def __init__(self, path: str, offset: int, stacks: str) -> None:
        self._path, self._offset, self._stacks = path, offset, stacks
        self._stack_fd = -1
        self._mine = False
        self._pulse: object = None
        self._memory: object = None
        self.fresh = True

    def claim(self, level: int) -> None:
        """Say that this is the process that trains, and that it may be asked for its stacks."""
        fd = os.open(self._path, os.O_RDWR)
        try:
            claimed = os.pread(fd, 3 * _WORD, self._offset + _CLAIM)
            pid, _, known = (int.from_bytes(claimed[i : i + _WORD], "little", signed=True) for i in (0, 8, 16))
            if pid not in (0, os.getpid()) and level <= known and _lives(pid):
                return
            told = (os.getpid(), self._listen(), level)
            os.pwrite(fd, b"".join(n.to_bytes(_WORD, "little", signed=True) for n in told), self._offset + _CLAIM)
            self._mine = True
        finally:
            os.close(fd)

    def _listen(self) -> int:
        if self._stack_fd < 0:
            self._stack_fd = os.open(self._stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            faulthandler.register(_SIGNAL, file=self._stack_fd, all_threads=True)
        return self._stack_fd

    def count(self, optimizer: object) -> None:
        """Count the steps of every optimizer of this process from now on."""
        import itertools  # noqa: PLC0415  whoever has torch has paid for more
        import mmap  # noqa: PLC0415

        fd = os.open(self._path, os.O_RDWR)
        try:
            mapped = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        place = self._offset + _STEPS
        steps = memoryview(mapped)[place : place + _WORD].cast("Q")
        one_more = itertools.count(steps[0] + 1).__next__
        self._pulse = pulse = _beside("pulse")
        self._memory = memoryview(mapped)[self._offset + _PULSE : self._offset + _PULSE + _PULSE_BYTES]
        if self._mine:
            pulse.attach(self._memory)
        step = pulse.step

        def stepped(_optimizer: object, _args: object, _kwargs: object) -> None:
            nonlocal step
            steps[0] = one_more()
            try:
                step()
            except Exception as error:  # noqa: BLE001  the script must not notice
                step = _nothing
                sys.stderr.write(f"rallypoint: this worker does not report step times: {error!r}\n")
            if self.fresh:
                self._trains()

        # A process that was forked may be the one that trains.
        os.register_at_fork(after_in_child=self._forked)
        optimizer.register_optimizer_step_post_hook(stepped)  # type: ignore[attr-defined]

    def _trains(self) -> None:
        self.fresh = False
        _leave_names()
        attached = self._mine
        try:
            self.claim(_TRAINS)
        except OSError:
            pass  # the round is over, and nobody looks any more
        if self._mine and not attached:
            self._pulse.attach(self._memory)  # type: ignore[attr-defined]
        if self._mine:
            _quietly(_beside("recorder").listen, self._stacks)

    def publish_exit(self, status: "int | None") -> None:
        """Write the exit status of this process: a code, minus a signal, or None where it is not known."""
        code = _UNKNOWN
        if status is not None:
            code = status & 0xFF if status >= 0 else _SIGNALLED - status
        word = (os.getpid() << _PID_SHIFT | code).to_bytes(_WORD, "little")
        try:
            fd = os.open(self._path, os.O_WRONLY)
        except OSError:
            return  # the round is over, and the file is gone
        try:
            os.pwrite(fd, word, self._offset + _EXIT)  # one word, so that a reader sees all of it or nothing
        finally:
            os.close(fd)

    def _forked(self) -> None:
        self.fresh, self._mine = True, False
        self._pulse.detach()  # type: ignore[attr-defined]


class _Ending:
    """Derives the exit status of a program that Python itself runs, and publishes it.

    Our exit handler is registered before all others, so it is called last: threads are joined and exit handlers are through by
    then. Python does not say there how the script ended, so it is derived:

    - The frame of the main module stands at its return: 0.
    - Python has printed an exception that passed that frame: 1, or minus SIGINT for KeyboardInterrupt.
    - Else it was SystemExit. `sys.exit`, `exit` and `quit` note its code; where the main module raises it itself, the code is
      unknown.
    """

    def __init__(self, life: Life) -> None:
        self._life, self._pid, self._thread = life, os.getpid(), _thread.get_ident()
        self._frame: object = None
        self._noted: tuple = ()  # type: ignore[type-arg]

    def watch(self) -> None:
        """Watch this process, where it is a worker: a worker leads its session, and its helpers do not."""
        if os.getsid(0) != self._pid:
            return
        atexit.register(self._left)
        if sys.getprofile() is None:
            sys.setprofile(self._called)
        sys.exit = self._noting(sys.exit)  # type: ignore[assignment]
        quitter = type(getattr(builtins, "exit", None))
        if quitter.__name__ == "Quitter":
            quitter.__call__ = self._noting_method(quitter.__call__)  # type: ignore[method-assign, assignment]

    def _called(self, frame: object, _event: str, _arg: object) -> None:
        """Keep the frame of the main module, and stop: a profile function costs each call."""
        main = sys.modules.get("__main__")
        if frame.f_globals is getattr(main, "__dict__", None) and frame.f_code.co_name == "<module>":  # type: ignore[attr-defined]
            self._frame = frame
            sys.setprofile(None)

    def _noting(self, leave: object) -> object:
        def exit(status: object = None, /) -> None:  # noqa: A001
            self._note(status)
            try:
                leave(status)  # type: ignore[operator]
            except BaseException as error:
                _beside("tracebacks").hide(error)
                raise

        exit.__doc__ = leave.__doc__
        return exit

    def _noting_method(self, leave: object) -> object:
        def __call__(quitter: object, code: object = None) -> None:  # noqa: N807
            self._note(code)
            try:
                leave(quitter, code)  # type: ignore[operator]
            except BaseException as error:
                _beside("tracebacks").hide(error)
                raise

        return __call__

    def _note(self, status: object) -> None:
        if _thread.get_ident() == self._thread:  # elsewhere it ends a thread
            self._noted = (status,)

    def _left(self) -> None:
        frame, self._frame = self._frame, None  # it would keep the globals of the script from being cleared
        if os.getpid() == self._pid:  # a fork of the script has inherited this handler
            _quietly(self._life.publish_exit, self._status(frame))

    def _status(self, frame: object) -> "int | None":
        shown = getattr(sys, "last_traceback", None)
        while shown is not None and shown.tb_frame is not frame:
            shown = shown.tb_next
        if shown is not None or (frame is None and hasattr(sys, "last_type")):
            return -_SIGINT if issubclass(sys.last_type or Exception, KeyboardInterrupt) else 1
        if frame is None:
            return None
        import opcode  # noqa: PLC0415  the script is over

        last = opcode.opname[frame.f_code.co_code[frame.f_lasti]]  # type: ignore[attr-defined]
        if last.startswith("RETURN"):
            return 0
        return exit_code(*self._noted) if self._noted and last != "RAISE_VARARGS" else None


def exit_code(status: object) -> int:
    """Return the exit code that Python makes of the argument of SystemExit; an integer that is none of C's is -1 to it."""
    if status is None:
        return 0
    if not isinstance(status, int):
        return 1
    return status & 0xFF if abs(status) < 1 << 63 else 0xFF


class _Waiting:
    """Waits on `sys.meta_path` for the modules of torch that are hooked or wrapped."""

    def __init__(self, told: dict) -> None:  # type: ignore[type-arg]
        self._told = told

    def watch(self) -> None:
        """Wrap what torch tells phases by, now where it is imported already."""
        self._told.update(_wrap())

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in self._told:
            return None
        told = self._told.pop(name)
        if name == _TORCH:
            _quietly(self.watch)
            return None
        for finder in sys.meta_path:
            try:
                spec = None if finder is self else finder.find_spec(name, path, target)  # type: ignore[arg-type, comparison-overlap]
            except BaseException as error:
                _beside("tracebacks").hide(error)
                raise
            if spec is not None:
                _after(spec.loader, told)
                return spec
        return None


def _wrap() -> dict:  # type: ignore[type-arg]
    """Wrap what is imported already, once; return what wraps the others, by the name of the module."""
    watching, later = _watching(), {}  # type: ignore[no-untyped-call]
    for name in watching.MODULES:
        told = _by_name(watching.watch, name)
        if name in sys.modules:
            _quietly(told, sys.modules[name])
        else:
            later[name] = told
    return later


def _watching():  # type: ignore[no-untyped-def]  # noqa: ANN202
    _beside("pulse"), _beside("tracebacks"), _beside("peers")
    return _beside("watching")


def _when_imported(name: str, told: object) -> None:
    """Call `told` with a module, now if it is imported already."""
    if name in sys.modules:
        told(sys.modules[name])  # type: ignore[operator]
    else:
        sys.meta_path.insert(0, _Waiting({name: told}))  # type: ignore[arg-type]


def _check_peers(module: object) -> None:
    """Let this process refuse a process group with a process of another user (`peers.py`)."""
    try:
        _watching().watch(_GROUPS, module)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  as for signs of life
        sys.stderr.write(f"rallypoint: this process does not check which users its process groups connect to: {error!r}\n")


def _prepare_groups(module: object) -> None:
    """Prepare the functions of process groups for workers that are forks of this process."""
    try:
        _watching().prepare(module)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  as above
        sys.stderr.write(f"rallypoint: the forks of this process do not check all of their process groups: {error!r}\n")


def _watch_errors() -> None:
    """Take the place of Python's own exception hook in a worker, which leads its session, unless there is another one."""
    display, pid = sys.__excepthook__, os.getpid()
    if sys.excepthook is not display or os.getsid(0) != pid:
        return

    def excepthook(kind: object, error: object, trace: object, /) -> None:
        # An interrupt has no code to run: an `eval` of text, as in namedtuple, would make Python forget that it ends by SIGINT.
        if isinstance(error, Exception) and os.getpid() == pid:
            _beside("tracebacks").show(display, kind, error, trace)
        else:  # or a helper, by a fork
            display(kind, error, trace)  # type: ignore[arg-type]

    excepthook.__doc__ = display.__doc__
    sys.excepthook = sys.__excepthook__ = excepthook


def _nothing() -> None:
    pass


def _by_name(watch: object, name: str) -> object:
    return lambda module: watch(name, module)  # type: ignore[operator]


def _beside(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Load a file of this folder, which is on no path."""
    known = sys.modules.get("_rallypoint_" + name)
    if known is not None:
        return known
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415  whoever has torch has paid for more

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = spec_from_file_location("_rallypoint_" + name, path)
    module = module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules["_rallypoint_" + name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _after(loader: object, told: object) -> None:
    """Let a loader call `told` with the module that it has run."""
    run = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: object) -> None:
        del loader.exec_module  # type: ignore[attr-defined]
        try:
            run(module)
        except BaseException as error:
            _beside("tracebacks").hide(error)
            raise
        _quietly(told, module)

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _quietly(work: object, *args: object) -> None:
    """Call `work`; what goes wrong in it costs its signs of life and nothing else: the script must not notice."""
    try:
        work(*args)  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001
        _tell(error)


def _tell(error: Exception) -> None:
    sys.stderr.write(f"rallypoint: this worker sends no heartbeats: {error!r}\n")


def _begin(*, watch_end: bool) -> None:
    global _life  # noqa: PLW0603  a process has one
    path = os.environ.get("RALLYPOINT_PROGRESS_FILE")
    offset = os.environ.get("RALLYPOINT_LIFE_OFFSET")
    stacks = os.environ.get("RALLYPOINT_STACK_FILE")
    if path and offset and stacks and os.path.exists(path):
        _life = life = Life(path, int(offset), stacks)
        life.claim(_STARTED)
        waiting = _Waiting({_OPTIMIZER: life.count, _TORCH: None})
        sys.meta_path.insert(0, waiting)  # type: ignore[arg-type]
        optimizer = sys.modules.get(_OPTIMIZER)
        if optimizer is not None:
            waiting.watch()
            life.count(optimizer)
        if watch_end:
            _Ending(life).watch()
        _watch_errors()
    elif "RANK" in os.environ:  # an instance of a simple role; a zygote, whose forks are wrapped later, has no rank
        _when_imported(_GROUPS, _check_peers)
    if os.environ.get(_NAMES_FILE):
        atexit.register(_leave_names)


def publish_exit(status: int) -> None:
    """Publish with which status this process, a fork, is about to end; only the teardown of the interpreter is left."""
    if _life is not None:
        _quietly(_life.publish_exit, status)


def prepare_forks() -> None:
    """Prepare for forks that are wrapped later, in a zygote before it imports torch.

    By then other modules have taken over the functions of torch's process groups.
    """
    _quietly(_when_imported, _GROUPS, _prepare_groups)


def anticipate() -> None:
    """Do what needs no worker yet, in a process that will be one: torch is wrapped, and nobody is told of anything."""
    if _OPTIMIZER in sys.modules:
        _quietly(_wrap)


def begin(*, watch_end: bool = False) -> None:
    """Begin in a process that is a worker or its helper; a fork, which knows how its program ends, does not `watch_end`."""
    try:
        _begin(watch_end=watch_end)
    except Exception as error:  # noqa: BLE001
        _tell(error)


def _leave_names() -> None:
    """Save the names of imported modules of installed packages, in order, unless another worker has done so.

    A failure must not end the script.
    """
    path = os.environ.get(_NAMES_FILE)
    # A helper of the script, which never had torch, is not what the next worker will be like.
    if not path or _OPTIMIZER not in sys.modules or os.path.exists(path):
        return
    try:
        beside = path + "." + str(os.getpid())
        with open(beside, "w", encoding="utf-8") as file:
            file.write("\n".join(_installed()) + "\n")
        os.replace(beside, path)
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"rallypoint: cannot save the names of imported modules: {error!r}\n")


def _installed() -> list:  # type: ignore[type-arg]
    """Return the names of the modules that came from the standard library or an installed package: they do not change.

    Rallypoint counts as installed wherever it lies, since the agent runs it.
    """
    library = os.path.dirname(os.__file__) + os.sep
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if not isinstance(origin, str) or name in ("__main__", "__mp_main__", "sitecustomize", "usercustomize"):
            continue
        if name.startswith("_rallypoint_"):  # what stands beside this file is on no path
            continue
        if origin.startswith((library, ours)) or "site-packages" in origin or "dist-packages" in origin:
            names.append(name)
    return names


def _chain() -> None:
    """Import the `sitecustomize` that this one hides in its place, and leave no trace on `sys.path`."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


if __name__ == "sitecustomize":
    begin(watch_end=True)
    _chain()
