"""What an agent makes of the pulses of its workers."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.node.health.pulses import Pulses, moved
from rallypoint.wire.progress import Life, ProgressFile, ProgressSlot, life_offset
from rallypoint.wire.pulse import BUCKETS, COUNTS_OFFSET, Phase, Pulse, bucket, pulse_of

SECOND = 1_000_000_000


class Clock:
    """Nanoseconds, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


def test_how_old_the_last_beat_is() -> None:
    """By the clock that all processes of a node share; before the first one nothing is told."""
    clock = Clock()
    pulses = Pulses(clock=clock, files=lambda _: 7)

    assert pulses.look(0, Pulse(), Life()).phase is None
    seen = pulses.look(0, Pulse(at=clock.now - SECOND // 4, phase=Phase.STEP), Life(pid=9))
    assert (seen.phase, seen.quiet, seen.beat, seen.moved) == (Phase.STEP, 0.25, 999750, 0)
    clock.passes(1.0)
    assert pulses.look(0, Pulse(at=clock.now - 5 * SECOND // 4, phase=Phase.STEP), Life(pid=9)).moved == 7


@pytest.mark.parametrize(
    ("told", "quiet"),
    [
        pytest.param(4999.75, 0.25, id="the worker tells the time"),
        pytest.param(4990.0, 0.0, id="before the last look: it was reported since then"),
        pytest.param(5001.0, 0.0, id="in the future"),
        pytest.param(math.nan, 0.0, id="no time"),
    ],
)
def test_a_report_is_a_sign_of_life_beside_old_beats(told: float, quiet: float) -> None:
    """As of a script without an optimizer; reports that were there at the first look are of an unknown age."""
    clock = Clock()
    pulses = Pulses(clock=clock, files=lambda _: 7, wall=lambda: 5000.0)
    pulse = Pulse(at=clock.now - 60 * SECOND)

    assert pulses.look(0, pulse, Life(), ProgressSlot(liveness=3, at=4999.0)).quiet == 60.0
    clock.passes(1.0)
    assert pulses.look(0, pulse, Life(), ProgressSlot(liveness=4, at=told)).quiet == quiet
    clock.passes(1.0)
    assert pulses.look(0, pulse, Life(), ProgressSlot(liveness=4, at=told)).quiet == quiet + 1.0
    assert pulses.look(0, Pulse(at=clock.now), Life(), ProgressSlot(liveness=4, at=told)).quiet == 0.0


def walk(pulses: Pulses, clock: Clock, *, steps: int, waited: float = 0.0, out: float = 0.0) -> Any:
    """Look once in a second while a worker takes steps; return the last measurement."""
    done, wait, left_out, seen = 0, 0.0, 0, None
    for _ in range(20):
        clock.passes(1.0)
        done += steps
        wait += waited * steps
        left_out += 1 if out else 0
        pulse = Pulse(
            at=clock.now,
            phase=Phase.STEP,
            step_at=clock.now,
            waited=int(wait * SECOND),
            out_time=int(left_out * out * SECOND),
            out_steps=left_out,
        )
        seen = pulses.look(0, pulse, Life(pid=9, steps=done))
    return None if seen is None else seen.pace


def test_a_ranks_own_part_of_a_step_is_what_it_did_not_wait() -> None:
    """Ten steps in a second, of each of which it waited 40 ms."""
    pace = walk(Pulses(clock=(clock := Clock())), clock, steps=10, waited=0.04)

    assert (pace.step, pace.own) == pytest.approx((0.1, 0.06))
    assert pace.window == 9
    assert pace.steps == 20


def test_what_lies_between_steps_is_left_out() -> None:
    """Each second holds an evaluation of half of it, before one of the six steps."""
    pace = walk(Pulses(clock=(clock := Clock())), clock, steps=6, out=0.5)

    assert (pace.step, pace.own) == pytest.approx((0.1, 0.1))


def test_what_was_learned_is_of_all_workers(tmp_path: Path) -> None:
    """The percentile of all, the count of the one that has seen most; it is looked at now and then."""
    clock = Clock()
    memory = ProgressFile.create(tmp_path / "progress", 2)
    pulses = Pulses(clock=clock)

    def count(rank: int, seconds: float, times: int) -> None:
        words = memoryview(memory._map).cast("I")
        begin = (life_offset(2, rank) + 64 + COUNTS_OFFSET) // 4
        words[begin + BUCKETS + bucket(int(seconds * SECOND))] = times
        words.release()

    count(0, 0.1, 50)
    count(1, 0.2, 60)
    [told] = pulses.learned(memory, range(2))
    assert (told.phase, told.count) == (Phase.STEP, 60)
    assert told.p99 == told.longest == pytest.approx(0.2, rel=0.13)

    count(1, 0.2, 90)
    assert pulses.learned(memory, range(2)) == (told,)
    clock.passes(1.0)
    assert pulses.learned(memory, range(2))[0].count == 90
    memory.begin_again(1, lives=True)
    clock.passes(1.0)
    [told] = pulses.learned(memory, range(2))
    assert told.count == 50
    assert told.longest == pytest.approx(0.1, rel=0.13)
    memory.close()
    assert pulses.learned(None, range(2)) == (told,)


def test_a_word_of_another_version_is_a_start() -> None:
    """A number of a phase that is not known here."""
    assert pulse_of((99).to_bytes(8, "little") * 10).phase is Phase.START_UP


def test_bytes_to_and_from_files_are_counted(tmp_path: Path) -> None:
    """By the kernel; of a process that is not there nobody knows."""
    before = moved(os.getpid())
    (tmp_path / "model").write_bytes(b"x" * 100_000)

    assert moved(os.getpid()) - before >= 100_000
    assert moved(0) == 0
