"""What this process is doing and how long that takes, for the agent that reads it in shared memory (wire/pulse.py).

Loaded by the start-up module when torch is imported, under the name `_rallypoint_pulse`; of Rallypoint it imports nothing. What
torch calls is wrapped (`watching.py`), and the wrappers call what is here: `beat`, `step`, `enter` and `leave`, `waits`.

Everything is a handful of stores to memory, in plain functions with module-level names, because some of it happens in each
step. Until `attach` gives it the shared memory, and after a fork, it writes to memory of its own: who reads the pulse wants to
know of the process that trains, never of its helpers. Only the thread that trains tells a phase.

- The start-up lasts until the third step: the first ones compile, tune and warm up.
- A step is counted from the one before it, unless a checkpoint, an evaluation or a compilation lies between them.
- An evaluation begins with `Module.eval`, and ends with the next batch or step after that module trains again. A module that is
  put into evaluation for good (a teacher, a frozen part) is told apart by that it does not train at the next step.
- Of an evaluation the longest silence counts, of each other phase how long it took.
"""

import threading
import time
import weakref

__all__ = [
    "CHECKPOINT",
    "COMPILE",
    "DATA",
    "EVALUATION",
    "FIRST_BATCH",
    "NAMES",
    "START_UP",
    "STEP",
    "attach",
    "batch",
    "beat",
    "between_two",
    "called",
    "detach",
    "enter",
    "evaluates",
    "leave",
    "raised",
    "replayed",
    "returned",
    "step",
    "waits",
]

clock = time.monotonic_ns
_ident = threading.get_ident

# Words of the pulse, its phases, and its counts: as in wire/pulse.py.
_AT, _PHASE, _SINCE, _STEP_AT, _WAITED, _CALLED, _LEFT, _OPERATION, _OUT_TIME, _OUT_STEPS = range(10)
START_UP, STEP, DATA, FIRST_BATCH, CHECKPOINT, EVALUATION, COMPILE = range(7)
_BUCKETS, _HEAD, _SIZE = 256, 128, 128 + 7 * 256 * 4

#: The names of the phases that a script may tell itself.
NAMES = {"data": DATA, "checkpoint": CHECKPOINT, "evaluation": EVALUATION, "compile": COMPILE}

#: Steps until the start-up is over.
_SETTLED = 3
#: So often a module may be found not to train at the next step until its `eval` says nothing any more.
_TEACHER = 2
#: Replays of graphs without a step of an optimizer after which a replay is a step itself.
_GRAPHED = 8

_own = memoryview(bytearray(_SIZE))
words = _own[:_HEAD].cast("Q")
counts = _own[_HEAD:].cast("I")

_thread = threading.main_thread().ident
_phase, _began = START_UP, clock()
_steps, _last, _clean = 0, 0, False
_waited, _mark, _depth, _replays = 0, 0, 0, 0
_collectives = 0
#: This process has called something between two ranks: the numbers of gloo's collectives then differ from rank to rank.
point_to_point = False
_evaluated: object = type(None)  # returns None, as a reference to a module that is gone
_since, _silence = 0, 0
_teachers: dict = {}  # type: ignore[type-arg]


class _Told:
    """Stands for the module of an evaluation that a script tells itself."""

    training = False


def attach(memory: memoryview) -> None:
    """Tell everything to `memory` from now on."""
    global words, counts, _thread  # noqa: PLW0603  a name of this module is what costs least to reach
    before = words
    words, counts = memory[:_HEAD].cast("Q"), memory[_HEAD:_SIZE].cast("I")
    words[_SINCE] = before[_SINCE] or _began
    for word in (_AT, _PHASE, _STEP_AT):
        words[word] = before[word]
    words[_AT] = words[_AT] or clock()
    _thread = _ident()


def detach() -> None:
    """Tell nobody anything any more: this process is a fork of the one that trains."""
    global words, counts, _thread  # noqa: PLW0603
    own = memoryview(bytearray(_SIZE))
    words, counts = own[:_HEAD].cast("Q"), own[_HEAD:].cast("I")
    _thread = _ident()
    _again()


def _again() -> None:
    global _phase, _began, _steps, _clean
    _phase, _began, _steps, _clean = START_UP, clock(), 0, False


def beat() -> None:
    """Tell that training goes on."""
    words[_AT] = clock()


def step() -> None:
    """Tell that an optimizer has taken a step."""
    global _last, _replays, _mark  # noqa: PLW0603
    now = clock()
    words[_AT] = words[_STEP_AT] = now
    words[_WAITED] = _waited
    if _clean:
        units = now - _last >> 10
        if units > 8:
            octave = units.bit_length() - 4
            place = octave << 3 | units >> octave & 7
            counts[_BUCKETS + place if place < _BUCKETS else 2 * _BUCKETS - 1] += 1
        else:
            counts[_BUCKETS] += 1
    else:
        _settles(now)
    _last, _mark = now, _waited
    _replays = 0


def _settles(now: int) -> None:
    """Take a step that is not counted: it follows something else than a step."""
    global _steps, _clean  # noqa: PLW0603
    if _last:
        words[_OUT_TIME] += max(0, now - _last - (_waited - _mark))
    words[_OUT_STEPS] += 1
    if _phase == EVALUATION:
        _left(now)
    elif _phase == START_UP:
        _steps += 1
        if _steps < _SETTLED:
            return
        _count(START_UP, now - _began)
        _to(STEP, now)
    _clean = True


def replayed() -> None:
    """Tell that a graph was replayed: where whole steps are graphs, no optimizer is called any more."""
    global _replays  # noqa: PLW0603
    replays = _replays + 1
    if replays > _GRAPHED and _phase in (START_UP, STEP):
        step()
    else:
        beat()
    _replays = replays


def _to(phase: int, now: int) -> None:
    global _phase  # noqa: PLW0603
    _phase = phase
    words[_SINCE] = now
    words[_PHASE] = phase


def _count(phase: int, nanoseconds: int) -> None:
    units = max(nanoseconds >> 10, 8)
    octave = units.bit_length() - 4
    place = octave << 3 | units >> octave & 7
    counts[phase * _BUCKETS + min(place, _BUCKETS - 1)] += 1


def enter(phase: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Begin a phase; give what is returned to `leave`. Of the start-up it is a part."""
    global _silence, _evaluated  # noqa: PLW0603
    if _ident() != _thread:
        return None
    now = clock()
    before = _phase
    if before == EVALUATION:
        _silence = max(_silence, now - words[_AT])
        if phase != CHECKPOINT and _trains():
            _left(now)
            before = STEP
    words[_AT] = now
    if phase == EVALUATION:  # a script tells it: it lasts until `leave`, whatever trains
        _evaluated = _Told
    if before != START_UP:
        _to(phase, now)
    return before, now


def leave(token, phase: int) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """End a phase: it is again what it was before."""
    global _clean  # noqa: PLW0603
    if token is None:
        return
    before, began = token
    now = clock()
    words[_AT] = now
    _count(phase, now - began)
    if phase not in (DATA, FIRST_BATCH):
        _clean = False
    if before != START_UP and _phase == phase:
        _to(before, now)


def batch(phase: int, run, *args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN201
    """Return the next batch; the same as `enter` and `leave`, in fewer stores, because it happens in each step."""
    if _phase != STEP or _ident() != _thread:
        token = enter(phase)
        try:
            return run(*args)
        finally:
            leave(token, phase)
    words[_AT] = began = clock()
    words[_PHASE] = phase
    try:
        return run(*args)
    finally:
        words[_AT] = now = clock()
        words[_PHASE] = STEP
        units = now - began >> 10
        if units > 8:
            octave = units.bit_length() - 4
            place = octave << 3 | units >> octave & 7
            counts[phase * _BUCKETS + (place if place < _BUCKETS else _BUCKETS - 1)] += 1
        else:
            counts[phase * _BUCKETS] += 1


def evaluates(module: object) -> None:
    """Tell that a module was put into evaluation."""
    global _evaluated, _since, _silence, _clean
    if _phase != STEP or _ident() != _thread or _teachers.get(id(module), 0) > _TEACHER:
        return
    now = clock()
    _evaluated, _since, _silence, _clean = weakref.ref(module), now, 0, False
    words[_AT] = now
    _to(EVALUATION, now)


def _trains() -> bool:
    module = _evaluated()  # type: ignore[operator]
    return module is None or module.training


def _left(now: int) -> None:
    """End an evaluation, or find that there was none: the module is there for being asked only."""
    if _trains():
        _count(EVALUATION, max(_silence, now - words[_AT]))
    else:
        module = id(_evaluated())  # type: ignore[operator]
        _teachers[module] = _teachers.get(module, 0) + 1
    _to(STEP, now)


def waits(began: int, now: int) -> None:
    """Count time in which this rank may have waited for others; it is told with the next step."""
    global _waited  # noqa: PLW0603
    _waited += now - began


def called(operation: int) -> int:
    """Tell that a collective is called; give what is returned to `returned`. 0: this one is a part of another."""
    global _depth, _collectives  # noqa: PLW0603
    if _depth or _ident() != _thread:
        return 0
    _depth = 1
    _collectives += 1
    words[_OPERATION] = operation
    words[_CALLED] = _collectives
    return clock()


def between_two() -> None:
    """Note that this process sends to another rank, or receives from one."""
    global point_to_point  # noqa: PLW0603
    point_to_point = True


def returned(began: int) -> None:
    """Tell that a collective has returned, or only begun where the script waits for it itself."""
    if began == 0:
        return
    raised(began)
    now = clock()
    waits(began, now)
    words[_AT] = now


def raised(began: int) -> None:
    """Tell that a collective is over by an error: that is no sign of life."""
    global _depth  # noqa: PLW0603
    if began:
        _depth = 0
        words[_LEFT] = _collectives
