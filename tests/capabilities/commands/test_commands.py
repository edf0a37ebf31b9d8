"""What somebody asks of all workers: through the coordinator to the agents, and from the workers back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rallypoint.agent.coordinator.record import RecordFile
from rallypoint.agent.rendezvous import capabilities
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.commands.coordinator import Commands
from rallypoint.capabilities.commands.node import NodeCommands, Tell, Terminate
from rallypoint.capabilities.commands.wire import StatusSection
from rallypoint.wire import codec
from rallypoint.wire.line import Ability, Done, Verb
from rallypoint.wire.messages import AgentState, Continue
from rallypoint.wire.sections import build
from rallypoint.wire.wish import NodeAnswer, RankAnswer, Wish, WishStatus
from tests.agent.fakes import new_state, report

PAUSE = Wish(number=1, verb=Verb.PAUSE, attempt=1)
ABLE = (Ability.PAUSE, Ability.SAVE, Ability.STOP)


# --- The coordinator -------------------------------------------------------------------------------------------------------


def running(*, wish: NodeAnswer | None = None) -> State:
    """Two nodes of one worker each, in round 1."""
    state = new_state(now=0.0, registered=(Commands(),))
    for node in (0, 1):
        state = rendezvous.receive(state, report(node), 1.0)
    assert state.fence.round == 1
    for node in (0, 1):
        told = report(node, AgentState.RUNNING, round=1, fence=state.fence, sequence=1, wish=wish)
        state = rendezvous.receive(state, told, 2.0)
    return state


def wished(state: State, command: Wish | None, now: float) -> State:
    return capabilities.on_request(state, "commands", command, now)


def test_an_agent_is_told_until_it_has_heard() -> None:
    """With every answer; nothing more is said to one that tells the number."""
    state = wished(running(), PAUSE, 3.0)
    assert rendezvous.answer(state, "agent-0") == build(Continue, fence=state.fence, wish=PAUSE)

    heard = report(0, AgentState.RUNNING, round=1, fence=state.fence, sequence=2, wish=NodeAnswer(number=1))
    state = rendezvous.receive(state, heard, 4.0)

    assert rendezvous.answer(state, "agent-0") is None
    assert rendezvous.answer(state, "agent-1") == build(Continue, fence=state.fence, wish=PAUSE)


def test_the_status_has_an_answer_for_every_rank() -> None:
    """Empty for those of whom nothing was heard."""
    state = wished(running(), PAUSE, 3.0)
    done = NodeAnswer(number=1, ranks=(RankAnswer(rank=1, done=True, step=7),))
    state = rendezvous.receive(state, report(1, AgentState.RUNNING, round=1, fence=state.fence, sequence=2, wish=done), 4.0)

    told = StatusSection.of(rendezvous.status(state, 5.0)).wish

    assert told == WishStatus(number=1, verb=Verb.PAUSE, ranks=(RankAnswer(rank=0), RankAnswer(rank=1, done=True, step=7)))
    assert not told.settled


def test_an_answer_to_another_wish_is_none() -> None:
    """What was said to the last one says nothing about this one."""
    old = NodeAnswer(number=1, ranks=(RankAnswer(rank=0, done=True),))
    state = wished(running(wish=old), dataclasses.replace(PAUSE, number=2, verb=Verb.SAVE), 3.0)

    told = StatusSection.of(rendezvous.status(state, 5.0)).wish

    assert told is not None
    assert told.ranks == (RankAnswer(rank=0), RankAnswer(rank=1))


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param(None, id="none"),
        pytest.param(PAUSE, id="known"),
        pytest.param(dataclasses.replace(PAUSE, number=2, attempt=2), id="of-another-attempt"),
        pytest.param(dataclasses.replace(PAUSE, number=0), id="an-older-one"),
    ],
)
def test_what_is_no_news_changes_nothing(wish: Wish | None) -> None:
    """The very same state: nobody is woken."""
    state = wished(running(), PAUSE, 3.0)

    assert wished(state, wish, 4.0) is state


async def test_a_record_is_read_when_it_has_changed(tmp_path: Path) -> None:
    """And what cannot be read leaves what was read last."""
    record = tmp_path / "record.json"
    source = RecordFile(record)
    assert await source.requested("wish") is None

    record.write_text(json.dumps({"wish": codec.to_json(PAUSE), "name": "digits"}))
    assert await source.requested("wish") == codec.to_json(PAUSE)
    record.write_text("{")
    assert await source.requested("wish") == codec.to_json(PAUSE)


# --- The agent -------------------------------------------------------------------------------------------------------------


def known(*abilities: tuple[Ability, ...]) -> NodeCommands:
    """An agent with two workers, ranks 4 and 5, of which the first have said hello."""
    state = NodeCommands(workers=2).started(4)[0]
    for local_rank, able in enumerate(abilities):
        state = state.announced(local_rank, able)[0]
    return state


def test_workers_are_told_once_and_their_answers_kept() -> None:
    """A wish that is heard again is passed by."""
    state, actions = known(ABLE, ABLE).heard(PAUSE)
    assert actions == (Tell(ranks=(0, 1), verb=Verb.PAUSE, number=1),)
    assert state.heard(PAUSE) == (state, ())

    state = state.done(1, Done(verb=Verb.PAUSE, number=1, step=9))

    assert state.told == NodeAnswer(number=1, ranks=(RankAnswer(rank=4), RankAnswer(rank=5, done=True, step=9)))


def test_an_answer_to_another_order_is_passed_by() -> None:
    """It crossed with the new one."""
    state = known(ABLE, ABLE).heard(dataclasses.replace(PAUSE, number=2))[0]

    assert state.done(0, Done(verb=Verb.PAUSE, number=1)) == state


@pytest.mark.parametrize(
    ("abilities", "verb", "words"),
    [
        pytest.param((), Verb.PAUSE, "no step boundaries", id="plain-script"),
        pytest.param(((Ability.PAUSE,),) * 2, Verb.SAVE, "no save callback registered", id="nothing-saves"),
    ],
)
def test_who_cannot_says_so(abilities: tuple[tuple[Ability, ...], ...], verb: Verb, words: str) -> None:
    """At once, and nobody is told: half a world that is paused is none."""
    state, actions = known(*abilities).heard(dataclasses.replace(PAUSE, verb=verb))

    assert actions == ()
    told = state.told
    assert told is not None
    assert all(words in answer.error and answer.settled for answer in told.ranks)


@pytest.mark.parametrize(
    ("abilities", "action"),
    [
        pytest.param((ABLE, ABLE), Tell(ranks=(0, 1), verb=Verb.STOP, number=1), id="all-have-a-line"),
        pytest.param((ABLE,), Terminate(), id="one-has-none"),
        pytest.param(((Ability.PAUSE,),) * 2, Terminate(), id="stop_requested"),
        pytest.param((), Terminate(), id="plain-script"),
    ],
)
def test_everybody_can_stop(abilities: tuple[tuple[Ability, ...], ...], action: object) -> None:
    """Over the line, or by SIGTERM, for which `stop_requested` looks out."""
    assert known(*abilities).heard(dataclasses.replace(PAUSE, verb=Verb.STOP))[1] == (action,)


def test_a_pause_holds_for_the_next_round() -> None:
    """Its workers are told as soon as they say hello, once."""
    state = known(ABLE, ABLE).heard(PAUSE)[0].done(0, Done(verb=Verb.PAUSE, number=1, step=1))

    state, actions = state.started(0)
    assert (actions, state.told) == ((), NodeAnswer(number=1, ranks=(RankAnswer(rank=0), RankAnswer(rank=1))))
    state, actions = state.announced(1, ABLE)

    assert actions == (Tell(ranks=(1,), verb=Verb.PAUSE, number=1),)


def test_a_checkpoint_is_not_written_again() -> None:
    """Who asked for one asked for one."""
    state = known(ABLE, ABLE).heard(dataclasses.replace(PAUSE, verb=Verb.SAVE))[0].started(0)[0]

    assert state.announced(0, ABLE)[1] == ()


def test_workers_that_start_while_the_job_stops_end() -> None:
    """They have nothing to save yet."""
    state = known().heard(dataclasses.replace(PAUSE, verb=Verb.STOP))[0]

    assert state.started(0)[1] == (Terminate(),)
