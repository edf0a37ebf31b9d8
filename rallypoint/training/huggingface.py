"""HuggingFace's `Trainer`, living through faults. Needs transformers and accelerate; nothing else of Rallypoint imports this.

```python
training.init_process_group()                       # before TrainingArguments, which would make a group of their own
trainer = Trainer(model=model, args=TrainingArguments(...), train_dataset=data)
huggingface.train(trainer)                          # instead of trainer.train()
```

After a fault `trainer.train` is entered anew in the same process, and told to go on from a checkpoint. What it then asks for
(weights, optimizer, scheduler) it is given out of memory; the position in the data is its own arithmetic on the step.
"""

# ruff: noqa: SLF001  what the trainer has no other way for is private to it
from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import numbers
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from rallypoint.training.context import current_job
from rallypoint.training.metrics import Told
from rallypoint.training.reentry import FixedState, Luggage, packed_randomness, unpack_randomness
from rallypoint.training.rounds import current_rounds
from rallypoint.training.session import elastic
from rallypoint.training.state import State

try:
    from accelerate.state import AcceleratorState, PartialState
    from transformers import Trainer, TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(f"rallypoint.training.huggingface: {error}; pip install transformers accelerate") from error

__all__ = ["RallypointCallback", "train"]

_log = logging.getLogger(__name__)

#: What a trainer asks for when it goes on from a checkpoint. They are not public, and have been there since transformers 4.
_LOADERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state")

#: What it adds up between two lines of its log.
_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


class RallypointCallback(TrainerCallback):
    """Reports each step, with the epoch, the time that is left, and the numbers that the trainer logs.

    By itself (`Trainer(callbacks=[RallypointCallback()])`) that is all it does; :func:`train` adds one for its boundaries.
    """

    def __init__(self) -> None:
        self._told = Told()
        self._run: _Run | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to count steps for the time that is left."""
        self._told.begin(state.global_step, state.max_steps, now=time.monotonic())
        if self._run is not None:
            self._run.entered()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All that belongs to the step before is done, its log, evaluation and checkpoint included: a boundary."""
        if self._run is not None:
            self._run.boundary()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the step."""
        self._told.step(state.global_step, now=time.monotonic(), epoch=state.epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Report what the trainer logs."""
        self._told.metrics({k: float(v) for k, v in (logs or {}).items() if isinstance(v, numbers.Real)})


def train(trainer: Trainer, *, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
    """Do what `trainer.train(...)` does, and live through faults; returns what that returns.

    `resume_from_checkpoint` is where a first start goes on from. Who can do no better than to be started anew (FSDP, DeepSpeed,
    a group that is not Rallypoint's) trains as without Rallypoint, and the log says why.

    Raises:
        StateLostError: when no rank has the state any more; the agent then starts all workers anew.

    """
    callback = _callback_of(trainer)
    why = _why_not(trainer)
    if why:
        if current_job() is not None:
            _log.warning(
                "in-place recovery is off for this worker: %s. After a fault, the worker starts again as a new process", why
            )
        return trainer.train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
    run = _Run(trainer, {"resume_from_checkpoint": resume_from_checkpoint, **kwargs})
    callback._run = run
    try:
        return elastic(run.train)(run.state)
    finally:
        callback._run = None


def _callback_of(trainer: Trainer) -> RallypointCallback:
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, RallypointCallback):
            return callback
    callback = RallypointCallback()
    trainer.add_callback(callback)
    return callback


def _why_not(trainer: Trainer) -> str:
    if current_rounds() is None:
        return (
            "the process group was not created by Rallypoint; call rallypoint.training.init_process_group() before "
            "TrainingArguments"
        )
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "the trainer shards the model (FSDP, DeepSpeed) and cannot be re-entered with shards in memory"
    if trainer.model_init is not None:
        return "the trainer creates a new model at each start (model_init)"
    missing = [name for name in _LOADERS if not hasattr(trainer, name)]
    if missing:
        return f"this version of transformers has no Trainer.{missing[0]}"
    return ""


class _Run:
    """One call of `train`: the trainer, and what is to be known of it between two worlds."""

    def __init__(self, trainer: Any, arguments: dict[str, Any]) -> None:
        self._trainer, self._arguments = trainer, arguments
        self._luggage = Luggage(self._pack)
        self.state = FixedState(loop=self._luggage, step=0)
        self.state.on_regroup(self._take_place)
        self.state.on_save(self._save)
        self._found: dict[str, Any] | None = None
        self._running = self._fresh = False
        self._log: tuple[int, str] = (-1, "")

    def train(self, _: State) -> Any:
        """Enter the trainer's loop, where the state says."""
        trainer, self._found = self._trainer, self._luggage.take()
        if self._found is not None:
            self._tidy()
            trainer.model.load_state_dict(self._found["model"])
        if self._found is None or not self._found["running"]:
            self._found = None
            return trainer.train(**self._arguments)
        with tempfile.TemporaryDirectory(prefix="rallypoint-") as folder, self._loading():
            told = {**json.loads(self._found["trainer"]), "log_history": json.loads(self._found["log"])}
            Path(folder, TRAINER_STATE_NAME).write_text(json.dumps(told), encoding="utf-8")
            return trainer.train(**{**self._arguments, "resume_from_checkpoint": folder})

    # --- What the callback tells -------------------------------------------------------------------------------------------

    def entered(self) -> None:
        """The loop is about to begin: what it adds up goes on from where it was."""
        self._running = self._fresh = True
        if self._found is not None:
            for name, value in self._found["sums"].items():
                setattr(self._trainer, name, value)

    def boundary(self) -> None:
        """Keep the state; the random states are taken up here, since the loop has read its first batch by now."""
        if self._fresh and self._found is not None:
            unpack_randomness(self._found["random"])
        self._fresh, self._found = False, None
        self.state.step = self._trainer.state.global_step
        self.state.commit()

    # --- Packing -----------------------------------------------------------------------------------------------------------

    def _pack(self) -> dict[str, Any]:
        trainer = self._trainer
        packed: dict[str, Any] = {"running": self._running, "model": trainer.model.state_dict()}
        if not self._running:
            return packed
        packed["optimizer"] = trainer.optimizer.state_dict()
        packed["scheduler"] = trainer.lr_scheduler.state_dict()
        packed["scaler"] = None if trainer.accelerator.scaler is None else trainer.accelerator.scaler.state_dict()
        packed["sums"] = {name: _copied(getattr(trainer, name)) for name in _SUMS if hasattr(trainer, name)}
        packed["callbacks"] = [(type(callback).__name__, callback.state()) for callback in self._exportable()]
        packed["trainer"] = json.dumps(
            {f.name: getattr(trainer.state, f.name) for f in dataclasses.fields(trainer.state) if f.name != "log_history"}
        )
        packed["log"] = self._history()
        packed["random"] = packed_randomness()
        return packed

    def _history(self) -> str:
        """Return the log as text: it only ever grows, and much slower than there are steps."""
        history = self._trainer.state.log_history
        if self._log[0] != len(history):
            self._log = (len(history), json.dumps(history))
        return self._log[1]

    def _exportable(self) -> list[Any]:
        return [each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState)]

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        """Answer out of memory what the trainer asks its checkpoint for."""
        loaders: dict[str, Any] = dict.fromkeys(_LOADERS, _nothing)
        loaders["_load_optimizer_and_scheduler"] = self._load_optimizer
        vars(self._trainer).update(loaders)
        try:
            yield
        finally:
            for name in loaders:
                vars(self._trainer).pop(name, None)

    def _load_optimizer(self, *_: Any) -> None:
        found, trainer = self._found, self._trainer
        assert found is not None
        trainer.optimizer.load_state_dict(found["optimizer"])
        trainer.lr_scheduler.load_state_dict(found["scheduler"])
        if found["scaler"] is not None and trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(found["scaler"])
        for callback, (_, state) in zip(self._exportable(), found["callbacks"], strict=True):
            vars(callback).update(state["attributes"])

    # --- Between two worlds ------------------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Forget what the loop that was left has wrapped and begun: all ranks wrap together, those too that are new."""
        trainer = self._trainer
        wrapped = trainer.model_wrapped
        forget_hooks = getattr(getattr(wrapped, "reducer", None), "_remove_autograd_hooks", None)
        if forget_hooks is not None:
            forget_hooks()
        trainer.model = trainer.model_wrapped = trainer.accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
        trainer.accelerator.gradient_state.dataloader_references = [None]

    def _take_place(self) -> None:
        """Accelerate has read the rank once, and keeps it."""
        for shared in (PartialState._shared_state, AcceleratorState._shared_state):
            if "process_index" in shared:
                shared["process_index"] = dist.get_rank()

    def _save(self) -> None:
        self._trainer._save_checkpoint(self._trainer.model, trial=None)


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is left to load: it is there."""


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
