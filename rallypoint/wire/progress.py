"""The shared-memory file in which workers report and agents read, without a system call per step on either side.

One file per node and round, one slot per local rank. A slot is guarded by a sequence number that is odd while it is written
(a seqlock): a reader that meets an odd or a changed number reads again, and a worker that dies in mid-write leaves the last
value unreadable, never a wrong one.

```
header  8s magic  I version  I slots
slot    Q sequence | q step  Q liveness  d at  q resumed_from  I names_len  I checkpoint_len | names  checkpoint  values
life    Q steps  q pid  q stacks  q level  Q exit, one for each slot behind the last slot, each with its pulse (`pulse.py`)
```

Numbers are little-endian; -1 stands for "never reported"; names are those of the metrics, a JSON list of at most 1,024 bytes,
and their values as many doubles; the checkpoint is a path of at most 1,024 bytes in UTF-8. Names seldom change: while they stay
the same, a step with its metrics is a handful of stores (`stepper`).

A life record is written by the worker's own Python before the script knows of anything (training/startup), each field by one
store and without a seqlock: `steps` of all optimizers; `pid` of the process that trains, or that started first; `stacks`, the
number of its file for faulthandler; `level`, 1 when it has started, 2 when it has trained; `exit`, 0 until only the teardown of
the worker's own Python is left, then its process number times 65,536, plus its exit code, 256 plus its signal, or 65,535 where
that is unknown.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.wire import sanitize
from rallypoint.wire.codec import WireError
from rallypoint.wire.private import PRIVATE_FILE
from rallypoint.wire.pulse import COUNTS_OFFSET, PULSE_BYTES, Phase, Pulse, counts_of, pulse_of

__all__ = ["MAX_STEP", "METRICS_BYTES", "Life", "ProgressFile", "ProgressSlot", "life_offset"]

METRICS_BYTES = 1024
#: The highest step: doubles, and with them browsers, count no further without gaps.
MAX_STEP = 2**53 - 1
#: No JSON list of names in so many bytes is longer.
_VALUES = METRICS_BYTES // 4
_PATH_BYTES = 1024
_MAGIC = b"RALLYPT\0"
_VERSION = 5
_HEADER = struct.Struct("<8sII")
_SEQUENCE = struct.Struct("<Q")
_FIXED = struct.Struct("<qQdqII")
#: The first three of them as the processor has them: what every step tells.
_STEP = struct.Struct("qQd")
_LIFE = struct.Struct("<QqqqQ")
#: The parts of the word `exit`.
_PID_SHIFT, _SIGNALLED, _UNKNOWN = 16, 0x100, 0xFFFF
#: A record has lines of the processor's cache to itself: no rank slows another down.
_PULSE = 64
_LIFE_BYTES = _PULSE + PULSE_BYTES
_TEXTS = METRICS_BYTES + _PATH_BYTES
_DOUBLE = 8
_SLOT = _SEQUENCE.size + _FIXED.size + _TEXTS + _VALUES * _DOUBLE
#: How often a torn read is tried again before the slot counts as unreadable (its writer died in mid-write).
_READ_TRIES = 64


@dataclass(frozen=True, kw_only=True)
class ProgressSlot:
    """What one worker reported last. `at`: seconds since the epoch on the node's clock; 0 when nothing was reported."""

    step: int | None = None
    resumed_from: int | None = None
    liveness: int = 0
    at: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class ExitStatus:
    """The status with which process `pid` is about to end; only the teardown of its interpreter is left.

    `code` is an exit code, minus a signal, or None where it is not known.
    """

    pid: int
    code: int | None


@dataclass(frozen=True, kw_only=True)
class Life:
    """What a worker's Python tells by itself; all zero where none has started, or none that knows of us.

    `stacks` is the number of the file in which faulthandler writes, in the process `pid`; `trains`: it has taken a step.
    `exit_status` is None until a process has published one.
    """

    steps: int = 0
    pid: int = 0
    stacks: int = 0
    trains: bool = False
    exit_status: ExitStatus | None = None


class ProgressFile:
    """The mapped file. `create` is for the agent, `open` for the worker; both may read and write any slot."""

    def __init__(self, mapped: mmap.mmap, slots: int) -> None:
        self._map, self.slots = mapped, slots

    @classmethod
    def create(cls, path: Path, slots: int) -> ProgressFile:
        """Make a fresh, empty file for `slots` workers; raises `OSError`, also when the disk is full."""
        size = _HEADER.size + slots * (_SLOT + _LIFE_BYTES)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb+") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
        mapped[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, slots)
        created = cls(mapped, slots)
        for index in range(slots):
            created.write(index, ProgressSlot())
        return created

    @classmethod
    def open(cls, path: Path) -> ProgressFile:
        """Map an existing file; raises `WireError` when it is not one of ours, `OSError` when it is not there."""
        with path.open("rb+") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        magic, version, slots = _HEADER.unpack_from(mapped, 0)
        if magic != _MAGIC or version != _VERSION:
            raise WireError(str(path), (magic, version), f"a progress file of Rallypoint in format version {_VERSION}")
        return cls(mapped, slots)

    def write(self, index: int, slot: ProgressSlot) -> None:
        """Replace slot `index`; raises `WireError` when metrics or path do not fit."""
        names = json.dumps(list(slot.metrics), separators=(",", ":")).encode() if slot.metrics else b""
        checkpoint = _path_bytes(slot.checkpoint)
        for name, number in (("step", slot.step), ("resumed_from", slot.resumed_from)):
            if number is not None and not 0 <= number <= MAX_STEP:
                raise WireError(name, number, f"a whole number from 0 to {MAX_STEP}")
        if len(names) > METRICS_BYTES:
            raise WireError("metrics", f"{len(names)} bytes", f"at most {METRICS_BYTES} bytes for all metric names as JSON")
        if len(checkpoint) > _PATH_BYTES:
            raise WireError("checkpoint", f"{len(checkpoint)} bytes", f"a path of at most {_PATH_BYTES} bytes")
        base = self._base(index)
        (sequence,) = _SEQUENCE.unpack_from(self._map, base)
        writing = sequence | 1  # a predecessor may have died in mid-write and left it odd
        _SEQUENCE.pack_into(self._map, base, writing)
        body = base + _SEQUENCE.size
        numbers = (_or_minus(slot.step), slot.liveness, slot.at, _or_minus(slot.resumed_from))
        _FIXED.pack_into(self._map, body, *numbers, len(names), len(checkpoint))
        text = body + _FIXED.size
        self._map[text : text + len(names)] = names
        path = text + METRICS_BYTES
        self._map[path : path + len(checkpoint)] = checkpoint
        struct.pack_into(f"<{len(slot.metrics)}d", self._map, text + _TEXTS, *slot.metrics.values())
        _SEQUENCE.pack_into(self._map, base, writing + 1)

    def read(self, index: int) -> ProgressSlot | None:
        """Return slot `index`, or None when its writer died in mid-write."""
        base = self._base(index)
        for _ in range(_READ_TRIES):
            (before,) = _SEQUENCE.unpack_from(self._map, base)
            raw = bytes(self._map[base + _SEQUENCE.size : base + _SLOT])
            (after,) = _SEQUENCE.unpack_from(self._map, base)
            if before == after and before % 2 == 0:
                return _slot(raw)
        return None

    def stepper(self, index: int, turn: list[None]) -> Callable[[int, Mapping[str, float]], bool]:
        """Return a function `(step, metrics)` that reports both in slot `index`, ten times as fast as `write`.

        It counts `liveness` and tells the time. Whoever writes takes the only element out of `turn`: a lock at a quarter of a
        lock's price. It writes nothing and returns False where a metric is no float or was not among those of the slot when
        this was called, where another thread writes, and where somebody else has written since or died in mid-write.
        """
        base = self._base(index)
        words, doubles = memoryview(self._map).cast("q"), memoryview(self._map).cast("d")
        sequence = base // 8
        values = sequence + (_SEQUENCE.size + _FIXED.size + _TEXTS) // 8
        known = self.read(index)
        places = {} if known is None else {name: values + number for number, name in enumerate(known.metrics)}
        # A slot that nobody can read takes a whole `write` to be right again.
        written, liveness = (-1, 0) if known is None else (words[sequence], known.liveness)
        # All that is looked up at each step is looked up here.
        mapped, place, pack, clock = self._map, base + _SEQUENCE.size, _STEP.pack_into, time.time
        take, give = turn.pop, turn.append

        def advance(step: int, metrics: Mapping[str, float]) -> bool:
            nonlocal written, liveness
            try:
                take()
            except IndexError:
                return False
            try:
                if words[sequence] != written:
                    return False
                if metrics:
                    for name, value in metrics.items():
                        if name not in places or type(value) is not float:
                            return False
                    words[sequence] = written + 1
                    for name, value in metrics.items():
                        doubles[places[name]] = value
                else:
                    words[sequence] = written + 1
                liveness += 1
                pack(mapped, place, step, liveness, clock())
                written += 2
                words[sequence] = written
                return True
            finally:
                give(None)

        return advance

    def life(self, index: int) -> Life:
        """Return the life record of slot `index`."""
        steps, pid, stacks, level, end = _LIFE.unpack_from(self._map, life_offset(self.slots, index))
        return Life(steps=steps, pid=pid, stacks=stacks, trains=level > 1, exit_status=_exit_status(end))

    def pulse(self, index: int) -> Pulse:
        """Return the words of the pulse of slot `index`."""
        begin = life_offset(self.slots, index) + _PULSE
        return pulse_of(self._map[begin : begin + COUNTS_OFFSET])

    def counts(self, index: int) -> dict[Phase, tuple[int, ...]]:
        """Return how long the phases of slot `index` took so far, as counts by `pulse.bucket`."""
        begin = life_offset(self.slots, index) + _PULSE
        return counts_of(self._map[begin : begin + PULSE_BYTES])

    def begin_again(self, index: int, *, lives: bool) -> None:
        """Prepare slot `index` for another round: what a worker that `lives` has shown of life stays."""
        old = self.read(index) if lives else None
        self.write(index, ProgressSlot() if old is None else ProgressSlot(liveness=old.liveness, checkpoint=old.checkpoint))
        begin = life_offset(self.slots, index)
        if not lives:
            self._map[begin : begin + _LIFE_BYTES] = bytes(_LIFE_BYTES)
        else:  # how long things took is of the world that is over
            begin += _PULSE + COUNTS_OFFSET
            self._map[begin : begin + PULSE_BYTES - COUNTS_OFFSET] = bytes(PULSE_BYTES - COUNTS_OFFSET)

    def close(self) -> None:
        """Unmap the file; the file itself stays."""
        self._map.close()

    def _base(self, index: int) -> int:
        if not 0 <= index < self.slots:
            raise WireError("local_rank", index, f"0 to {self.slots - 1}")
        return _HEADER.size + index * _SLOT


def life_offset(slots: int, index: int) -> int:
    """Return where the life record of slot `index` begins in a file of so many slots."""
    return _HEADER.size + slots * _SLOT + index * _LIFE_BYTES


def _exit_status(word: int) -> ExitStatus | None:
    pid, code = word >> _PID_SHIFT, word & _UNKNOWN
    if pid == 0:
        return None
    known = code if code < _SIGNALLED else _SIGNALLED - code
    return ExitStatus(pid=pid, code=None if code == _UNKNOWN else known)


def _or_minus(number: int | None) -> int:
    return -1 if number is None else number


def _path_bytes(checkpoint: str) -> bytes:
    """Return a path as the system stores it, which may be no UTF-8; raises `WireError` for one that no file can have."""
    try:
        return checkpoint.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise WireError("checkpoint", checkpoint, "a path that Python's os.fsencode can encode") from error


def _slot(raw: bytes) -> ProgressSlot:
    step, liveness, at, resumed_from, names_len, checkpoint_len = _FIXED.unpack_from(raw)
    names = raw[_FIXED.size : _FIXED.size + names_len]
    text = _FIXED.size + METRICS_BYTES
    return ProgressSlot(
        step=None if step < 0 else step,
        resumed_from=None if resumed_from < 0 else resumed_from,
        liveness=liveness,
        at=at,
        metrics=_metrics(sanitize.parse(names), raw) if names else {},
        checkpoint=raw[text : text + checkpoint_len].decode(errors="surrogateescape"),
    )


def _metrics(names: object, raw: bytes) -> dict[str, float]:
    """Return metrics by name; raises `WireError` for what none of ours writes: a slot is the user's memory, too."""
    if not isinstance(names, list) or len(names) > _VALUES or not all(isinstance(name, str) for name in names):
        raise WireError("metrics", type(names).__name__, f"a list of at most {_VALUES} names")
    return dict(zip(names, struct.unpack_from(f"<{len(names)}d", raw, _FIXED.size + _TEXTS), strict=True))
