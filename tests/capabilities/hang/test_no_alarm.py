"""What is no hang is not called one: thousands of phases of all lengths, agents that are stopped, clocks that jump."""

from __future__ import annotations

import random

import pytest

from rallypoint.agent.rendezvous import capabilities
from rallypoint.capabilities.hang.published_durations import silence_limit
from rallypoint.capabilities.hang.state import HangStep
from rallypoint.wire.hang import HangState
from rallypoint.wire.pulse import Phase
from tests.capabilities.hang.jobs import own
from tests.capabilities.hang.world import PACE, World

#: How long a step takes as a rule, in seconds; one in fifty takes five times as long.
STEP = 0.25

#: Phases between steps: how long each takes at the most, in seconds.
LONGEST = {Phase.EVALUATION: 10.0, Phase.CHECKPOINT: 15.0, Phase.DATA: 4.0, Phase.FIRST_BATCH: 6.0, Phase.COMPILE: 30.0}

#: Seconds that a bound has to spare: a report of each agent.
SPARE = 2 * PACE


def starts(world: World, chance: random.Random) -> None:
    """Imports and downloads: now and then a rank is busy or writes a line, and nothing else is known."""
    world.phase = Phase.START_UP
    for _ in range(8):
        world.written += chance.randrange(2)
        world.busy = chance.choice((0.0, 0.9))
        world.passes(chance.uniform(1.0, 40.0))
    world.busy = 0.0
    world.lives()


def trains(world: World, chance: random.Random, steps: int) -> None:
    world.phase = Phase.STEP
    for _ in range(steps):
        seconds = STEP * chance.lognormvariate(0.0, 0.2) * (5.0 if chance.random() < 0.02 else 1.0)
        world.passes(seconds)
        world.steps += 1
        world.lives()
        world.took(Phase.STEP, seconds)


def does(world: World, phase: Phase, chance: random.Random) -> None:
    """Do something else than a step for as long as is allowed: nine tenths of what is known to be no hang, at the most."""
    world.phase = phase
    world.lives()
    began, part = world.now, chance.uniform(0.1, 0.9)
    world.passes(PACE + 0.1)  # now both agents have told the phase
    most = (
        min(
            silence_limit(HangStep(own=own(world.state), view=capabilities.view(world.state), settings=world.settings)).seconds,
            world.settings.hang_downtime,
        )
        - SPARE
    )
    seconds = max(PACE + 0.1, part * min(most, LONGEST[phase]))
    world.passes(began + seconds - world.now)
    world.took(phase, seconds)
    world.lives()


def disturbs(world: World, chance: random.Random) -> None:
    """Stop an agent for a while, or let the coordinator's clock jump ahead (its machine slept)."""
    if chance.random() < 0.5:
        world.stopped[chance.randrange(2)] = world.now + chance.uniform(2.0, 300.0)
    else:
        world.jumped += chance.choice((3.0, 60.0, 7200.0))


@pytest.mark.parametrize(
    ("seed", "most"),
    [
        pytest.param(0, 2000, id="two thousand changes", marks=pytest.mark.extended),
        *(pytest.param(seed, 200, id=f"two hundred changes, {seed}") for seed in range(1, 6)),
    ],
)
def test_many_changes_of_phase_and_no_alarm(seed: int, most: int) -> None:
    """A long first step, compilation, evaluations, slow checkpoints, stalls, stopped agents, jumps of the clock."""
    chance, world, changes = random.Random(seed), World(), 0
    starts(world, chance)
    does(world, Phase.COMPILE, chance)
    while changes < most:
        trains(world, chance, chance.randrange(1, 8))
        if chance.random() < 0.03:
            disturbs(world, chance)
        does(world, chance.choice(tuple(LONGEST)), chance)
        changes += 2

    assert world.alarms == []
    assert world.state.incidents == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_hang_after_all_that_is_found_in_time(seed: int) -> None:
    """What was learned is of use: the same world, when it stops in a step, is looked into at once."""
    chance, world = random.Random(seed), World()
    starts(world, chance)
    for _ in range(20):
        trains(world, chance, 10)
        does(world, Phase.DATA, chance)
    trains(world, chance, 100)
    began = world.now
    world.passes(60.0)

    assert world.alarms
    assert world.alarms[0][0] - began - world.jumped <= max(5.0, 3 * 5.0 * STEP * 1.6)


def test_a_stopped_agent_expires_nothing_by_itself() -> None:
    """Nobody knows what its workers do: silence that nobody reports does not count."""
    chance, world = random.Random(0), World()
    starts(world, chance)
    trains(world, chance, 200)
    world.stopped = {0: world.now + 3000.0, 1: world.now + 3000.0}
    world.passes(2900.0)

    assert (world.alarms, own(world.state).hang) == ([], None)


def test_a_clock_that_jumps_is_at_most_a_doubt() -> None:
    """A day passes for the coordinator alone."""
    chance, world = random.Random(0), World()
    starts(world, chance)
    trains(world, chance, 200)
    world.jumped += 86400.0
    world.passes(PACE)

    assert world.alarms == []
    assert own(world.state).hang is None or own(world.state).hang.state is HangState.DOUBT
