"""How silent a worker is and what it uses, by a kernel that says what the test says; and by the real one."""

from __future__ import annotations

import os

import pytest

from rallypoint.agent.node.health.vitals import Usage, Vitals, usage_of

TRAINS, STARTED = 20, 10


class Kernel:
    """Processes by number; those that are not there are gone."""

    def __init__(self) -> None:
        self.processes = {TRAINS: Usage(state="S", cpu=0.0)}

    def __call__(self, pid: int) -> Usage | None:
        return self.processes.get(pid)

    def uses(self, cpu: float, pid: int = TRAINS, state: str = "R") -> None:
        self.processes[pid] = Usage(state=state, cpu=cpu)


def test_silence_begins_with_the_last_sign_of_life() -> None:
    """And so does what was used meanwhile."""
    kernel = Kernel()
    vitals = Vitals(kernel)
    vitals.look(0, (TRAINS,), 1, 100.0)
    kernel.uses(5.0)
    vitals.look(0, (TRAINS,), 2, 110.0)
    kernel.uses(9.0)

    vital = vitals.look(0, (TRAINS,), 2, 118.0)

    assert (vital.quiet(118.0), vital.used(118.0), vital.state) == (8.0, 0.5, "R")


def test_the_use_of_late_is_taken_over_a_second() -> None:
    """The kernel counts in hundredths: over a shorter time it would say nothing, or a lot."""
    kernel = Kernel()
    vitals = Vitals(kernel)
    vitals.look(0, (TRAINS,), 0, 100.0)
    kernel.uses(0.01)
    assert vitals.look(0, (TRAINS,), 0, 100.1).busy == 0.0
    kernel.uses(0.5)
    assert vitals.look(0, (TRAINS,), 0, 101.0).busy == 0.5
    assert vitals.look(0, (TRAINS,), 0, 103.0).busy == 0.0


@pytest.mark.parametrize(
    ("there", "pid"),
    [
        pytest.param({TRAINS, STARTED}, TRAINS, id="the one that trains"),
        pytest.param({STARTED}, STARTED, id="the shell that started it, when that has ended"),
        pytest.param(set(), 0, id="none"),
    ],
)
def test_the_process_that_trains_counts_while_it_is_there(there: set[int], pid: int) -> None:
    """What started it counts when nothing else is left."""
    kernel = Kernel()
    kernel.processes = dict.fromkeys(there, Usage(state="S", cpu=1.0))

    vital = Vitals(kernel).look(0, (TRAINS, STARTED), 0, 1.0)

    assert (vital.pid, vital.state) == (pid, "S" if there else "")


def test_another_process_is_no_sign_of_life() -> None:
    """It counts its own use from nothing, and the silence goes on."""
    kernel = Kernel()
    kernel.uses(50.0, STARTED)
    vitals = Vitals(kernel)
    vitals.look(0, (0, STARTED), 3, 100.0)

    vital = vitals.look(0, (TRAINS, STARTED), 3, 105.0)

    assert (vital.pid, vital.quiet(105.0), vital.busy) == (TRAINS, 5.0, 0.0)


def test_the_kernel_tells_of_us() -> None:
    """We run, and have used something."""
    mine = usage_of(os.getpid())

    assert mine is not None
    assert mine.state == "R"
    assert mine.cpu > 0
    assert usage_of(2**22 + 1) is None
