"""`elastic`: a training function that lives through faults, its own and those of other ranks.

Theory of operation
===================

The function runs from the state's last commit to its end. It is left in one of three ways, and each ends in a new round of the
same process:

- A step raises. The state goes back to the last commit, the agent is told, and the other ranks leave the world as well.
- A collective raises because a peer is gone: the same, since nobody here can tell the two apart; the agent can.
- The agent says that the world is broken (or is to be another one). The thread of the line ends the connections under the
  collective that the script waits in. A script that waits in none is asked at its next commit.

A process has left when nothing of its old group is open any more; it says so, and waits for its place in the next world. There
all ranks agree on the last commit that all can have, and whoever has it not is sent it. A new process takes part in that from
the moment when it calls the function.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import distributed as dist

from rallypoint.training import orders, reporting
from rallypoint.training.commits import Commits
from rallypoint.training.context import current_job, environment_int, own_slot
from rallypoint.training.errors import StateLostError
from rallypoint.training.healing import ROUND, heal
from rallypoint.training.line import Line, current_line
from rallypoint.training.orders import Orders, StoreBoundaries, World
from rallypoint.training.rounds import Rounds, current_rounds
from rallypoint.training.snapshots.copy_threads import copy_thread_count
from rallypoint.training.state import State
from rallypoint.training.wrappers import is_sharded, refit, why_not
from rallypoint.wire import env
from rallypoint.wire import line as wire

__all__ = ["Session", "WorldLeft", "elastic"]

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Characters of an error that are told.
_TOLD = 500

#: Seconds in which a collective fails whose connections have ended; it takes milliseconds, unless it never does.
_FAILS_WITHIN = 0.5

#: Seconds after which a step's traceback is logged: the cores belong to the recovery until then.
_TOLD_AFTER = 0.5


class WorldLeft(BaseException):
    """The world of this round is over; raised by `State.commit` where nothing else would end the step."""


def elastic(train: Callable[Concatenate[State, P], T]) -> Callable[Concatenate[State, P], T]:
    """Let `train(state, ...)` live through faults: it is called again, with the state as last committed, until it returns.

    Outside a worker of Rallypoint's agent it is called once, as it is. The process group must be made by
    :func:`init_process_group`, before; what is made with it (DDP, FSDP2) lives on.

    Raises:
        StateLostError: when no rank has the state any more; the agent then starts all workers anew.

    """

    @functools.wraps(train)
    def run(state: State, /, *args: P.args, **kwargs: P.kwargs) -> T:
        session = Session.begin(state)
        if session is None:
            return train(state, *args, **kwargs)
        try:
            session.enter()
            while True:
                try:
                    return train(state, *args, **kwargs)
                except (WorldLeft, Exception) as error:  # noqa: BLE001  the script's own may be anything
                    session.leave(error)
                session.go_on()
        finally:
            session.end()

    return run


class _Ear:
    """What the thread of the line notes, for the script's own to see."""

    def __init__(self, rounds: Rounds, round_: int, stuck: Callable[[int], None]) -> None:
        self.rounds, self.round, self._stuck = rounds, round_, stuck
        self.broken = 0
        self.reason = ""
        self.places: queue.SimpleQueue[wire.Assign | None] = queue.SimpleQueue()
        self.orders: queue.SimpleQueue[wire.Order] = queue.SimpleQueue()
        self.ordered = threading.Event()

    def leave(self, word: wire.Leave) -> None:
        if word.round >= self.round:
            self.broken, self.reason = word.round, word.reason
            self.rounds.free()
            self.ordered.set()
            look = threading.Timer(_FAILS_WITHIN, self._stuck, [word.round])
            look.daemon = True
            look.start()

    def assign(self, word: wire.Assign) -> None:
        self.places.put(word)

    def order(self, word: wire.Order) -> None:
        self.orders.put(word)
        self.ordered.set()

    def closed(self) -> None:
        self.places.put(None)


class Session:
    """One call of an elastic function in one worker."""

    def __init__(self, state: State, line: Line, rounds: Rounds, commits: Commits) -> None:
        self._state, self._line, self._rounds, self._commits = state, line, rounds, commits
        self._number = 0
        self._round = environment_int(os.environ, env.ROUND)
        self._ear = _Ear(rounds, self._round, self._look_stuck)
        self._orders = Orders(self._ear.orders, self)

    @classmethod
    def begin(cls, state: State) -> Session | None:
        """Return a session, None where no agent speaks with this worker or its group is none of ours."""
        rounds, job = current_rounds(), current_job()
        if rounds is None or job is None:
            return None
        line = current_line()
        if line is None:
            return None
        named = os.environ.get(env.SNAPSHOT_DIR)
        folder = Path(named) / "commits" if named else None
        threads = copy_thread_count(environment_int(os.environ, "LOCAL_WORLD_SIZE", default=1))
        session = cls(state, line, rounds, Commits(folder, str(job.local_rank), job.fence.attempt, threads=threads))
        orders.take()
        line.listen(session._ear)
        state.__dict__["_session"] = session
        return session

    # --- What the state asks for -------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Keep the state as it is."""
        self._require_whole_step()
        self._number += 1
        parts, lazy = self._state.parts, self._state.lazy
        self._commits.take(parts, self._number, dist.get_rank(), dist.get_world_size(), lazy=lazy)

    def _require_whole_step(self) -> None:
        """Leave a world whose collectives were aborted: NCCL's then end without an error, and without a result."""
        if "nccl" in self._rounds.backend:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.broken()

    def boundary(self) -> None:
        """Do what was asked for at a step boundary."""
        if not self._ear.ordered.is_set() and not self._orders.open:
            return
        self.broken()
        self._ear.ordered.clear()
        size, store = dist.get_world_size(), self._rounds.store
        world = World(rank=dist.get_rank(), size=size, boundaries=lambda number: StoreBoundaries(store, size, number))
        self._orders.boundary(self._number, world)

    # --- What an agent asks for (orders.Words) -----------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        """Steps done, where the state counts them."""
        return self._step

    def done(self, order: wire.Order, error: str = "") -> None:
        """Tell the agent what became of an order."""
        self._line.say(wire.Done(verb=order.verb, number=order.number, step=self._step, error=error[:_TOLD]))

    def save(self) -> None:
        """Have the script save."""
        self._state.save()

    def broken(self) -> None:
        """Leave a world that is over."""
        if self._is_broken:
            raise WorldLeft(self._ear.reason)

    # --- Rounds ------------------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take part in the world: with its state where it has one, else with ours."""
        if self._rounds.rehearses:
            self._regroup(first=True)
            return
        if self._round > 1 and (number := self._heal(loaded=self._step)) is not None:
            self._number = number
            reporting.report_resumed(self._step or 0)
        else:
            self._number = self._round * ROUND
            self._commits.take(self._state.parts, self._number, dist.get_rank(), dist.get_world_size(), lazy=False)
        self._commits.prepare(self._state.parts)
        self._hello()

    def leave(self, error: BaseException) -> None:
        """Leave the world for `error`; raises it again where this process is of no use any more."""
        if isinstance(error, StateLostError):
            raise error
        told = f"{type(error).__name__}: {error}"[:_TOLD]
        if self._is_broken:
            _log.info("left round %d: %s", self._round, self._ear.reason)
        else:
            _tell_later(error)
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        self._rounds.leave()
        self._say_left(told)

    def go_on(self) -> None:
        """Wait for a place in the next world, and take it."""
        self._regroup(first=False)

    def end(self) -> None:
        """The function has returned, or ends this process: whoever breaks the world now, this worker cannot live on."""
        self._state.__dict__["_session"] = None
        self._commits.close()
        try:
            self._line.say(self._who(()))
        except OSError:
            return
        self._line.close()

    def _regroup(self, *, first: bool) -> None:
        while True:
            if not first:
                self._take(self._wait())
            first = False
            self._rounds.prepare()
            try:
                self._join_world()
            except StateLostError:
                raise
            except Exception as error:  # noqa: BLE001  whatever a lost peer looks like
                if not self._is_broken:
                    _log.warning("cannot join round %d", self._round, exc_info=error)
                self._rounds.leave()
                self._say_left(f"{type(error).__name__}: {error}"[:_TOLD])
                continue
            break
        self._state.regrouped(dist.get_rank(), dist.get_world_size())
        self._hello()
        self._line.say(wire.Regrouped(round=self._round, step=self._step or 0))

    def _join_world(self) -> None:
        if self._is_broken:
            raise ConnectionAbortedError(self._ear.reason)
        self._rounds.rejoin()
        refit(self._state.modules())
        number = self._heal()
        if number is None:
            raise StateLostError("the training state is lost, because no worker of the previous round is alive")
        self._number = number
        reporting.report_resumed(self._step or 0)

    def _heal(self, loaded: int | None = None) -> int | None:
        parts = self._state.parts
        device = torch.device("cpu") if "gloo" in self._rounds.backend else torch.device("cuda")
        sharded = is_sharded(self._state.modules())
        return heal(
            self._commits,
            parts,
            sharded=sharded,
            device=device,
            round_=self._round,
            store=self._rounds.store,
            turn=self._rounds.turn(),
            loaded=loaded,
        )

    def _wait(self) -> wire.Assign:
        word = self._ear.places.get()
        if word is None:
            raise StateLostError("the agent of this worker exited")
        return word

    def _take(self, word: wire.Assign) -> None:
        for name in word.unset:
            os.environ.pop(name, None)
        os.environ.update(word.environment)
        for path, fd in ((word.stdout, 1), (word.stderr, 2)):
            if path:
                _redirect(path, fd)
        reporting.forget()
        self._orders.forget()
        self._round = self._ear.round = word.round

    # --- Words -------------------------------------------------------------------------------------------------------------

    @property
    def _is_broken(self) -> bool:
        return self._ear.broken >= self._round

    @property
    def _step(self) -> int | None:
        step = self._state.parts.get("step")
        return step if isinstance(step, int) else None

    def _say_left(self, error: str) -> None:
        if self._is_broken:
            self._line.say(wire.Freed(round=self._round))
        else:
            self._line.say(wire.Failed(round=self._round, error=error))

    def _look_stuck(self, round_: int) -> None:
        """Tell the agent where this process will never leave a round: it ends it then, and another one takes its place."""
        if self._round == round_ and self._rounds.stuck:
            with contextlib.suppress(OSError):  # the agent is gone
                self._line.say(
                    self._who((), f"a collective of round {round_} did not return although its connections were closed")
                )

    def _hello(self) -> None:
        modules = list(self._state.modules())
        why = why_not(modules, self._rounds)
        abilities = [wire.Ability.PAUSE, wire.Ability.STOP, *([wire.Ability.SAVE] if self._state.saves else [])]
        if not why:
            abilities += [wire.Ability.RETRY, wire.Ability.IN_PLACE]
            abilities += [wire.Ability.RESIZE] if self._state.resizes and not is_sharded(modules) else []
        self._line.say(self._who(tuple(abilities), why))

    def _who(self, abilities: tuple[wire.Ability, ...], why: str = "") -> wire.Hello:
        return wire.Hello(
            rank=environment_int(os.environ, "RANK"),
            local_rank=own_slot(os.environ),
            round=self._round,
            pid=os.getpid(),
            abilities=abilities,
            why=why,
        )


def _tell_later(error: BaseException) -> None:
    """Log what a step raised: with all of its lines, which are read from files, once training goes on again."""
    raised = traceback.TracebackException.from_exception(error, lookup_lines=False)

    def tell() -> None:
        traceback_text = "".join(raised.format()).rstrip()
        _log.warning(
            "a training step raised an error, and the worker restored the last commit; the error was:\n%s", traceback_text
        )

    threading.Timer(_TOLD_AFTER, tell).start()


def _redirect(path: str, fd: int) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(opened, fd)
    finally:
        os.close(opened)
