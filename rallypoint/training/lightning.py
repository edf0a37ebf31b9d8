"""Lightning's `Trainer`, living through faults. Needs lightning; nothing else of Rallypoint imports this.

```python
trainer = Trainer(strategy=lightning.RallypointStrategy(), max_epochs=3, devices=2)
lightning.fit(trainer, model, train_loader)         # instead of trainer.fit(model, train_loader)
```

After a fault `trainer.fit` is entered anew in the same process, with the path of a checkpoint that only the strategy can read:
it is in memory. Lightning restores everything from it but its place within an epoch, which the strategy finds in the data.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from rallypoint.training.context import current_job
from rallypoint.training.groups import init_process_group
from rallypoint.training.metrics import Told
from rallypoint.training.reentry import FixedState, Luggage, packed_randomness, unpack_randomness
from rallypoint.training.rounds import current_rounds
from rallypoint.training.session import elastic
from rallypoint.training.state import State
from rallypoint.wire.hang import STACK_SIGNAL

__all__ = ["RallypointCallback", "RallypointStrategy", "fit", "rest_of"]


def rest_of(loader: Any, epoch: int, batches: int) -> Any:
    """Return a loader that is the same but for its first iteration, which leaves out so many batches."""
    if hasattr(loader, "load_state_dict"):
        return loader  # it has told its own place, and is brought there by Lightning
    sampler: Any = getattr(loader, "batch_sampler", None)
    seek = getattr(sampler, "seek", None)
    if seek is not None:
        seek(epoch * len(sampler) + batches)
        return loader
    # Workers of a loader ask for samples before Lightning tells the sampler its epoch.
    for told in (getattr(loader, "sampler", None), getattr(sampler, "sampler", None), sampler):
        set_epoch = getattr(told, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    if isinstance(loader, DataLoader) and sampler is not None and not isinstance(loader.dataset, IterableDataset):
        shortened = copy.copy(loader)
        vars(shortened)["batch_sampler"] = _Rest(sampler, batches)  # torch lets nobody set it
        return shortened
    return _Rest(loader, batches)


class _Rest:
    """An iterable whose first iteration begins after `left_out` items; in all else it is what it stands for."""

    def __init__(self, whole: Iterable[Any], left_out: int) -> None:
        self._whole, self._left_out = whole, left_out

    def __iter__(self) -> Iterator[Any]:
        left_out, self._left_out = self._left_out, 0
        items = iter(self._whole)
        for _ in range(left_out):
            next(items, None)
        yield from items

    def __len__(self) -> int:
        return len(self._whole)  # type: ignore[arg-type]  # where that has no length, nor has this

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


# ruff: noqa: SLF001  what the trainer has no other way for is private to it


try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import RunningStage
except ImportError as error:
    raise ImportError(f"rallypoint.training.lightning: {error}; pip install lightning") from error


_log = logging.getLogger(__name__)

#: The path that is given to Lightning for what is in memory.
_IN_MEMORY = "rallypoint-in-memory"


class RallypointStrategy(DDPStrategy):
    """DDP whose training :func:`fit` can go on with in memory; it takes the arguments of Lightning's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._found: dict[str, Any] | None = None

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what is in memory, or what is at a path."""
        if checkpoint_path != _IN_MEMORY:
            loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
            return loaded
        assert self._found is not None
        found: dict[str, Any] = self._found["checkpoint"]
        return dict(found)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce as Lightning does; it knows by the group's name alone that gloo has no mean of whole numbers."""
        if reduce_op not in ("mean", "avg") or not isinstance(tensor, torch.Tensor) or not dist.is_initialized():
            return super().reduce(tensor, group, reduce_op)
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        mean = tensor / dist.get_world_size(group)
        return tensor.copy_(mean)

    def process_dataloader(self, dataloader: object) -> object:
        """Let training data begin where the epoch was broken off."""
        dataloader = super().process_dataloader(dataloader)
        if self._found is None or self.lightning_module.trainer.state.stage is not RunningStage.TRAINING:
            return dataloader
        return rest_of(dataloader, self._found["epoch"], self._found["batch"])


class RallypointCallback(Callback):
    """Reports each step, with the epoch, the time that is left, and the numbers that the module logs.

    By itself that is all it does; :func:`fit` adds one for its step boundaries.
    """

    def __init__(self) -> None:
        self._told = Told()
        self._run: _Run | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count steps for the time that is left."""
        self._told.begin(trainer.global_step, _last_step(trainer), now=time.monotonic())
        # At its end the trainer sets every signal back to what Python knows of it; of faulthandler's it does not know.
        trainer._signal_connector._original_handlers.pop(STACK_SIGNAL, None)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """All that belongs to the batch before is done, its validation and checkpoint included: a boundary."""
        if self._run is not None:
            self._run.boundary()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the step."""
        self._told.step(trainer.global_step, now=time.monotonic(), epoch=trainer.current_epoch)
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._told.metrics({name: float(value) for name, value in trainer.callback_metrics.items()})


def fit(trainer: Trainer, model: LightningModule, *args: Any, **kwargs: Any) -> None:
    """Do what `trainer.fit(model, ...)` does, and live through faults. Joins the process group where there is none yet.

    A `ckpt_path` is where a first start goes on from. With another strategy than :class:`RallypointStrategy` training is as
    without Rallypoint, and the log says so.

    Raises:
        StateLostError: when no rank has the state any more; the agent then starts all workers anew.

    """
    callback = _callback_of(trainer)
    strategy = trainer.strategy
    if isinstance(strategy, RallypointStrategy) and not dist.is_initialized() and current_job() is not None:
        init_process_group(strategy.process_group_backend)
    why = _why_not(trainer)
    if why:
        if current_job() is not None:
            _log.warning(
                "in-place recovery is off for this worker: %s. After a fault, the worker starts again as a new process", why
            )
        trainer.fit(model, *args, **kwargs)
        return
    run = callback._run = _Run(trainer, model, args, kwargs)
    try:
        elastic(run.fit)(run.state)
    finally:
        callback._run = None


def _callback_of(trainer: Trainer) -> RallypointCallback:
    for callback in trainer.callbacks:
        if isinstance(callback, RallypointCallback):
            return callback
    callback = RallypointCallback()
    trainer.callbacks.insert(0, callback)
    return callback


def _why_not(trainer: Trainer) -> str:
    if not isinstance(trainer.strategy, RallypointStrategy):
        return "the trainer's strategy is not rallypoint.training.lightning.RallypointStrategy"
    if current_rounds() is None:
        return "the process group was not created by Rallypoint; call rallypoint.training.init_process_group()"
    return ""


def _last_step(trainer: Trainer) -> int:
    if trainer.max_steps > 0:
        last: int = trainer.max_steps
        return last
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if not epochs or epochs < 0 or math.isinf(batches):
        return 0
    return int(epochs * math.ceil(batches / trainer.accumulate_grad_batches))


class _Run:
    """One call of `fit`: the trainer, and what is to be known of it between two worlds."""

    def __init__(self, trainer: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._trainer, self._model, self._args, self._kwargs = trainer, model, args, kwargs
        self.state = FixedState(loop=(luggage := Luggage(self._pack)), step=0)
        self._luggage = luggage
        self._running = False
        self._modes: list[bool] = []

    def fit(self, _: State) -> None:
        """Enter the trainer's loop, where the state says."""
        trainer, found = self._trainer, self._luggage.take()
        trainer.strategy._found = None
        if found is not None:
            self._tidy()
        if found is None or not found["running"]:
            if found is not None:
                self._model.load_state_dict(found["model"])
            trainer.fit(self._model, *self._args, **self._kwargs)
            return
        trainer.strategy._found = found
        trainer.fit(self._model, *self._args, **{**self._kwargs, "ckpt_path": _IN_MEMORY})

    def _tidy(self) -> None:
        """Forget what was begun and is not going to be finished; all that counts of it is in the luggage."""
        trainer, old = self._trainer, self._trainer.fit_loop
        _forget_hooks(trainer.strategy.model)
        with contextlib.suppress(Exception):  # where a validation was broken off, nobody has put the training's loaders away
            old.teardown()
        trainer.fit_loop = type(old)(trainer, min_epochs=old.min_epochs, max_epochs=old.max_epochs)
        inner = old.epoch_loop
        trainer.fit_loop.epoch_loop = type(inner)(trainer, min_steps=inner.min_steps, max_steps=inner.max_steps)
        for module, mode in zip(self._model.modules(), self._modes):  # noqa: B905  none are known before the first boundary
            module.training = mode  # a validation that was broken off has left all of them in that of evaluation

    def boundary(self) -> None:
        """Keep the state; what the loop did to itself in order to go on is undone first."""
        trainer, self._running = self._trainer, True
        found, trainer.strategy._found = trainer.strategy._found, None
        if found is not None:
            trainer.fit_loop.epoch_loop._batches_that_stepped = found["stepped"]
            unpack_randomness(found["random"])
        if self._done % trainer.accumulate_grad_batches:
            return  # gradients are part of no commit
        self._modes = [module.training for module in self._model.modules()]
        self.state.step = trainer.global_step
        self.state.commit()

    @property
    def _done(self) -> int:
        """Batches of this epoch that are done."""
        done: int = self._trainer.fit_loop.epoch_loop.batch_progress.current.completed
        return done

    def _pack(self) -> dict[str, Any]:
        trainer = self._trainer
        if not self._running:
            return {"running": False, "model": self._model.state_dict()}
        return {
            "running": True,
            "checkpoint": trainer._checkpoint_connector.dump_checkpoint(weights_only=False),
            "epoch": trainer.fit_loop.epoch_progress.current.processed,
            "batch": self._done,
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "random": packed_randomness(),
        }


def _forget_hooks(model: Any) -> None:
    """Let a wrapper that was left keep no hold of the parameters: all ranks wrap together, those too that are new."""
    forget = getattr(getattr(model, "reducer", None), "_remove_autograd_hooks", None)
    if forget is not None:
        forget()
