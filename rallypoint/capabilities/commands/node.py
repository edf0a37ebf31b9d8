"""Worker commands on a node: forward them to the workers, and report the answers.

A worker with a line does what it announced that it can. One without is a plain script, which knows no step boundary that we
could stop it at: it can be asked to end, by SIGTERM, and nothing else. SIGSTOP would be no pause: its peers would wait in a
collective until that times out, and nobody would know where the script stands.

A command outlives a round where it says how the workers should be (paused, ended): a worker that starts anew is told again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.commands.wire import ReplySection, ReportSection
from rallypoint.wire import line
from rallypoint.wire.line import Ability, Done, Verb
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.messages import Assignment, Continue, WorkerReport
from rallypoint.wire.wish import NodeAnswer, RankAnswer, Wish

__all__ = ["Forwarder", "NodeCommands", "Tell", "Terminate", "create"]

log = logging.getLogger("rallypoint.node")

#: Ability that a worker must have announced to receive the command.
_NEEDS: Mapping[Verb, Ability] = {
    Verb.PAUSE: Ability.PAUSE,
    Verb.RESUME: Ability.PAUSE,
    Verb.SAVE: Ability.SAVE,
    Verb.STOP: Ability.STOP,
}

#: What is true of a worker only as long as it lives.
_LASTING = (Verb.PAUSE, Verb.STOP)

_PLAIN = "the script has no step boundaries (training.State or stop_requested)"

_UNABLE = {Verb.SAVE: "no save callback registered (State.on_save)"}


class Forwarder(NodeCapability):
    """The node's half of the capability."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._state = NodeCommands(workers=context.plan.nproc_per_node)
        self._after_start: tuple[Action, ...] = ()

    def urgent(self) -> NodeAnswer | None:
        """Return the answers."""
        return self._state.told

    def report(self, workers: Sequence[WorkerReport]) -> ReportSection:
        """Return the answers."""
        return ReportSection(wish=self._state.told)

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Forward a new command."""
        wish = ReplySection.of(reply).wish if isinstance(reply, Continue) else None
        if wish is not None:
            self._take(self._state.heard(wish))

    async def before_workers(self, assignment: Assignment) -> None:
        """Note the ranks of the round."""
        self._state, self._after_start = self._state.started(assignment.first_rank)

    def after_workers(self) -> None:
        """Stop workers that started although the job stops."""
        self._take((self._state, self._after_start))

    def on_message(self, local_rank: int, message: line.FromWorker) -> None:
        """Note what a worker supports, or that it executed a command."""
        if isinstance(message, line.Hello):
            self._take(self._state.announced(local_rank, message.abilities))
        elif isinstance(message, line.Done):
            mask = mask_of_plan(self._context.plan)
            self._take((self._state.done(local_rank, dataclasses.replace(message, error=mask(message.error))), ()))

    def _take(self, step: tuple[NodeCommands, tuple[Action, ...]]) -> None:
        self._state, actions = step
        for action in actions:
            if isinstance(action, Tell):
                for local_rank in action.ranks:
                    self._context.send(local_rank, line.Order(verb=action.verb, number=action.number))
            else:
                log.warning("the coordinator requested a stop; sending SIGTERM to all workers of this node")
                # For the job, the workers succeed: their agent is done when the last worker has ended.
                self._context.stop_workers()
        self._context.changed()


def create(context: NodeContext) -> Forwarder:
    """Return the node's half."""
    return Forwarder(context)


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Send the verb of command `number` to workers with a connection, by local rank."""

    ranks: tuple[int, ...]
    verb: Verb
    number: int


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """Stop all workers, as at the end of a round: some have no connection for the command."""


Action = Tell | Terminate


@dataclass(frozen=True, kw_only=True)
class NodeCommands:
    """What an agent knows of wishes.

    Attributes:
        workers: how many it has; `first_rank` is the rank of the first, -1 while they have none.
        abilities: of the workers that have connected in this round, by local rank.
        wish: the last that was heard; `answers` by local rank.
    """

    workers: int
    first_rank: int = -1
    abilities: Mapping[int, tuple[Ability, ...]] = field(default_factory=dict)
    wish: Wish | None = None
    answers: Mapping[int, RankAnswer] = field(default_factory=dict)

    @property
    def told(self) -> NodeAnswer | None:
        """The answer for the coordinator."""
        if self.wish is None:
            return None
        if self.first_rank < 0:
            return NodeAnswer(number=self.wish.number)
        ranks = range(self.workers)
        nothing = (RankAnswer(rank=self.first_rank + rank) for rank in ranks)
        return NodeAnswer(
            number=self.wish.number, ranks=tuple(self.answers.get(r, n) for r, n in zip(ranks, nothing, strict=True))
        )

    def heard(self, wish: Wish) -> tuple[NodeCommands, tuple[Action, ...]]:
        """Take a wish; one that is known is passed by."""
        if self.wish is not None and wish.number <= self.wish.number:
            return self, ()
        return _ask(dataclasses.replace(self, wish=wish, answers={}), range(self.workers))

    def started(self, first_rank: int) -> tuple[NodeCommands, tuple[Action, ...]]:
        """Store a new round, whose workers have not connected yet; commands follow when they have.

        Workers that start while the job is to stop have nothing to save, and end at once.
        """
        fresh = dataclasses.replace(self, first_rank=first_rank, abilities={})
        if self.wish is None or self.wish.verb not in _LASTING:
            return fresh, ()
        return dataclasses.replace(fresh, answers={}), (Terminate(),) if self.wish.verb is Verb.STOP else ()

    def announced(self, local_rank: int, abilities: tuple[Ability, ...]) -> tuple[NodeCommands, tuple[Action, ...]]:
        """Store the abilities of a worker; a late worker receives the current command."""
        known = dataclasses.replace(self, abilities={**self.abilities, local_rank: abilities})
        answer = self.answers.get(local_rank)
        late = answer is None or answer.error == _PLAIN
        if self.wish is None or self.wish.verb not in _LASTING or not late:
            return known, ()
        return _ask(known, (local_rank,))

    def done(self, local_rank: int, word: Done) -> NodeCommands:
        """Note what a worker did."""
        if self.wish is None or word.number != self.wish.number:
            return self
        answer = RankAnswer(rank=self.first_rank + local_rank, done=not word.error, step=word.step, error=word.error)
        return dataclasses.replace(self, answers={**self.answers, local_rank: answer})


def _ask(known: NodeCommands, ranks: range | tuple[int, ...]) -> tuple[NodeCommands, tuple[Action, ...]]:
    wish = known.wish
    assert wish is not None
    if known.first_rank < 0:
        return known, ()  # there is no worker yet; it receives the command when it connects
    able = tuple(rank for rank in ranks if _can(known, rank, wish.verb))
    refused = {rank: _refused(known, rank, wish.verb) for rank in ranks if rank not in able}
    tell: tuple[Action, ...] = (Tell(ranks=able, verb=wish.verb, number=wish.number),) if able else ()
    if wish.verb is Verb.STOP:
        # Those with a line save and end by themselves; the others hear SIGTERM, for which `stop_requested` looks out.
        return known, tell if not refused else (Terminate(),)
    return dataclasses.replace(known, answers={**known.answers, **refused}), tell


def _can(known: NodeCommands, local_rank: int, verb: Verb) -> bool:
    abilities = known.abilities.get(local_rank)
    return abilities is not None and _NEEDS[verb] in abilities


def _refused(known: NodeCommands, local_rank: int, verb: Verb) -> RankAnswer:
    why = _PLAIN if local_rank not in known.abilities else _UNABLE.get(verb, _PLAIN)
    return RankAnswer(rank=known.first_rank + local_rank, error=why)
