"""What a training loop goes on from: registered once, committed at each step boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from rallypoint.training.reporting import report_progress

__all__ = ["State"]


class _Session(Protocol):
    """What a state needs of the session that keeps its commits."""

    def commit(self) -> None:
        """Keep the state as it is now."""

    def boundary(self) -> None:
        """Do what all ranks do after this step."""


class State:
    """The state of training, by names of its parts; each is an attribute, too.

    A part is an object with `state_dict` and `load_state_dict` (model, optimizer, scheduler, sampler), a tensor, or anything
    that pickles (counters). A part named `step` is the number of finished steps, and reported as such::

        state = training.State(model=model, optimizer=optimizer, sampler=sampler, step=0)

        @training.elastic
        def train(state):
            while state.step < 1000:
                ...                      # one step
                state.step += 1
                state.commit()

    The random states of torch, `random` and numpy are a part of every commit.

    """

    #: Whether training goes on as it was in a world of another size, where no rank has a part that no other has.
    resizes = True

    def __init__(self, **parts: Any) -> None:
        if not parts:
            raise ValueError("State(): no parts are given; expected at least one, such as model=model")
        for name in parts:
            if hasattr(type(self), name):
                raise ValueError(f"State: {name!r} is not allowed as the name of a part, because it is a method")
        self.__dict__["parts"] = parts
        self.__dict__["_session"] = None
        self.__dict__["_told"] = []
        self.__dict__["_saves"] = []
        self.__dict__["_lazy"] = True

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("parts", {})
        if name not in parts:
            raise AttributeError(f"State: has no part {name!r}; expected {', '.join(map(repr, parts))}")
        return parts[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.parts:
            raise AttributeError(f"State: has no part {name!r}; declare all parts in the constructor")
        self.parts[name] = value

    def commit(self) -> None:
        """Note that a step is finished: whatever goes wrong from here on, training goes on from here. Every rank calls it.

        Copies the state into memory: what only its optimizers change while the next step runs, the rest before this returns.
        Outside a Rallypoint worker it only checks `step`.
        """
        session: _Session | None = self._session
        if session is not None:
            session.commit()
        step = self.parts.get("step")
        if isinstance(step, int):
            report_progress(step)
        if session is not None:
            session.boundary()

    def copy_at_once(self) -> None:
        """Have `commit` copy all before it returns.

        For a script that changes weights by itself between a commit and the optimizer's next step, and in a way that torch does
        not count, as through `weight.data`.
        """
        self.__dict__["_lazy"] = False

    def on_regroup(self, told: Callable[[], None]) -> None:
        """Call `told` whenever the world has formed anew and the state is restored, before training goes on."""
        self._told.append(told)

    def on_save(self, save: Callable[[], object]) -> None:
        """Call `save` on every rank, after the same step, when somebody asks the job to save or to stop.

        Without one the job can be paused and stopped, and not be asked to save.
        """
        self._saves.append(save)

    def modules(self) -> Iterator[nn.Module]:
        """Yield the parts that are modules, and the modules in them."""
        for part in self.parts.values():
            if isinstance(part, nn.Module):
                yield from part.modules()

    def regrouped(self, rank: int, size: int) -> None:
        """Tell the parts their place in the world that has formed, then whoever asked to be told."""
        for part in self.parts.values():
            reshare = getattr(part, "reshare", None)
            if reshare is not None:
                reshare(rank, size)
        for told in self._told:
            told()

    def save(self) -> None:
        """Have the script save now; called by :func:`elastic` on every rank at one boundary."""
        for save in self._saves:
            save()

    @property
    def lazy(self) -> bool:
        """Whether `commit` may copy a part of the state after it has returned."""
        return bool(self._lazy)

    @property
    def saves(self) -> bool:
        """Whether the script has named anything that saves."""
        return bool(self._saves)

    if TYPE_CHECKING:
        parts: MutableMapping[str, Any]
        _session: _Session | None
        _told: list[Callable[[], None]]
        _saves: list[Callable[[], object]]
        _lazy: bool
