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
- After its first step, or when it ends, it leaves the names of what it has imported from installed packages, where that is
  asked for: the next worker may be forked from a process that has imported them already.

A worker that is such a fork calls `begin` itself: its interpreter was started for nobody in particular. What of it needs no
worker it does before, by `anticipate`.
"""

import atexit
import faulthandler
import os
import sys

__all__ = ["Life", "anticipate", "begin"]

_STEPS, _CLAIM, _WORD = 0, 8, 8
_SIGNAL = 45
_STARTED, _TRAINS = 1, 2
_TORCH, _OPTIMIZER = "torch", "torch.optim.optimizer"
_PULSE, _PULSE_BYTES = 64, 128 + 7 * 256 * 4
_NAMES_FILE = "RALLYPOINT_MODULES_FILE"


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
                sys.stderr.write(f"rallypoint: this worker does not tell how long its steps take: {error!r}\n")
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

    def _forked(self) -> None:
        self.fresh, self._mine = True, False
        self._pulse.detach()  # type: ignore[attr-defined]


class _Waiting:
    """Waits on `sys.meta_path` for the modules of torch that are hooked or wrapped."""

    def __init__(self, life: Life) -> None:
        self._told: dict = {_OPTIMIZER: life.count, _TORCH: None}  # type: ignore[type-arg]

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
            spec = None if finder is self else finder.find_spec(name, path, target)  # type: ignore[arg-type, comparison-overlap]
            if spec is not None:
                _after(spec.loader, told)
                return spec
        return None


def _wrap() -> dict:  # type: ignore[type-arg]
    """Wrap what is imported already, once; return what wraps the others, by the name of the module."""
    _beside("pulse")
    watching, later = _beside("watching"), {}
    for name in watching.MODULES:
        told = _by_name(watching.watch, name)
        if name in sys.modules:
            _quietly(told, sys.modules[name])
        else:
            later[name] = told
    return later


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
        run(module)
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
        sys.stderr.write(f"rallypoint: this worker shows no signs of life: {error!r}\n")


def _begin() -> None:
    path = os.environ.get("RALLYPOINT_PROGRESS_FILE")
    offset = os.environ.get("RALLYPOINT_LIFE_OFFSET")
    stacks = os.environ.get("RALLYPOINT_STACK_FILE")
    if path and offset and stacks and os.path.exists(path):
        life = Life(path, int(offset), stacks)
        life.claim(_STARTED)
        waiting = _Waiting(life)
        sys.meta_path.insert(0, waiting)  # type: ignore[arg-type]
        optimizer = sys.modules.get(_OPTIMIZER)
        if optimizer is not None:
            waiting.watch()
            life.count(optimizer)
    if os.environ.get(_NAMES_FILE):
        atexit.register(_leave_names)


def anticipate() -> None:
    """Do what needs no worker yet, in a process that will be one: torch is wrapped, and nobody is told of anything."""
    if _OPTIMIZER in sys.modules:
        _quietly(_wrap)


def begin() -> None:
    """Begin anew in a process that was forked to become a worker."""
    _quietly(_begin)


def _leave_names() -> None:
    """Write down what was imported from installed packages, in order; nobody has done so yet. It must not harm the script."""
    path = os.environ.get(_NAMES_FILE)
    # A helper of the script, which never had torch, is not what the next worker will be like.
    if not path or _OPTIMIZER not in sys.modules or os.path.exists(path):
        return
    try:
        beside = path + "." + str(os.getpid())
        with open(beside, "w", encoding="utf-8") as file:
            file.write("\n".join(_installed()) + "\n")
        os.replace(beside, path)
    except Exception:  # noqa: BLE001, S110
        pass  # the round is over, and nobody learns from it any more


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
    begin()
    _chain()
