"""Reinforcement learning with three roles: balance a pole on a cart, learned with PPO, without any download.

    rallypoint submit dags_examples/rl_cartpole.yaml --watch

| Role | Processes | What it does |
|---|---|---|
| trainer | 2 ranks, elastic | takes batches from the queue `samples` and updates the network; ranks average their gradients |
| rollout | 2, simple | plays 16 carts with the newest network and puts batches into the queue; needs no torch |
| evaluator | 1, simple | plays 20 episodes of at most 500 steps; their mean must reach 475 twice in a row |

Kill any of these processes: only that one is started again, and training continues.

The equations of the cart are those of Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult
learning control problems", 1983.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rallypoint.training.roles import (
    CallTimeoutError,
    DataQueue,
    PeerState,
    QueueEmptyError,
    Restarted,
    RoleGroup,
    current,
    peers,
    rpc,
)

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Weights: TypeAlias = dict[str, Array]

#: Steps of an episode at most, and the mean that ends the training when it is measured twice in a row.
LONGEST, GOAL = 500, 475.0

#: Steps and carts of one batch.
STEPS, CARTS = 128, 16

_GRAVITY, _CART, _POLE, _HALF_LENGTH, _FORCE, _SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_MOST_X, _MOST_ANGLE = 2.4, 12 * np.pi / 180


class Carts:
    """Some carts that are played at the same time; an episode that ends begins anew."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.state = self._begin(count)
        self.lengths = np.zeros(count, dtype=np.int64)

    def _begin(self, count: int) -> Array:
        return self._random.uniform(-0.05, 0.05, (count, 4))

    def step(self, actions: Array) -> tuple[Array, Array]:
        """Push each cart to the left (0) or right (1); return which poles fell, and which episodes ended by their length."""
        x, speed, angle, turn = self.state.T
        mass, force = _CART + _POLE, np.where(actions == 1, _FORCE, -_FORCE)
        sine, cosine = np.sin(angle), np.cos(angle)
        pushed = (force + _POLE * _HALF_LENGTH * turn**2 * sine) / mass
        spin = (_GRAVITY * sine - cosine * pushed) / (_HALF_LENGTH * (4 / 3 - _POLE * cosine**2 / mass))
        pull = pushed - _POLE * _HALF_LENGTH * spin * cosine / mass
        moved = (x + _SECONDS * speed, speed + _SECONDS * pull, angle + _SECONDS * turn, turn + _SECONDS * spin)
        self.state = np.stack(moved, axis=1)
        self.lengths += 1
        fell = (np.abs(self.state[:, 0]) > _MOST_X) | (np.abs(self.state[:, 2]) > _MOST_ANGLE)
        return fell, ~fell & (self.lengths >= LONGEST)

    def restart(self, ended: Array) -> None:
        """Begin some episodes anew."""
        self.state[ended] = self._begin(int(ended.sum()))
        self.lengths[ended] = 0


# ---------------------------------------------------------------------------------------------------------------- trainer

_newest: dict[str, Any] = {"version": -1, "weights": None, "score": 0.0}


@rpc(concurrent=True)
def newest_weights(known: int) -> tuple[int, Weights | None]:
    """Return version and weights of the network; no weights if the caller has the newest version."""
    version, weights = _newest["version"], _newest["weights"]
    return version, (None if version == known else weights)


@rpc
def scored(score: float) -> None:
    """Take the score of the evaluator."""
    _newest["score"] = score


def train() -> None:
    """Run one rank of the trainer."""
    import torch  # noqa: PLC0415  rollouts and evaluator need no torch
    from torch import distributed as dist  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    from rallypoint import training  # noqa: PLC0415

    note("started")
    samples = DataQueue("samples", "trainer", maxsize=4)
    training.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = DistributedDataParallel(make_network())
    optimizer = torch.optim.Adam(model.parameters(), lr=current().config.get("lr", 5e-4))
    state = training.State(model=model, optimizer=optimizer, step=0)

    @training.elastic
    def learn(state: training.State) -> None:
        publish(model.module, state.step)
        ended = torch.zeros(1)
        while not ended.item():
            update(model, optimizer, next_batch(samples))
            state.step += 1
            state.commit()
            publish(model.module, state.step)
            ended[0] = _newest["score"] >= GOAL
            dist.all_reduce(ended, dist.ReduceOp.MAX)

    learn(state)
    note("ended", step=state.step)
    training.report_result({"updates": state.step, "score": _newest["score"]})


def publish(network: torch.nn.Module, step: int) -> None:
    """Let the other roles have a copy of the weights."""
    weights = {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}
    _newest.update(version=step, weights=weights)


def next_batch(samples: DataQueue) -> dict[str, Array]:
    """Return a batch of any rollout; rank 0 holds the queue, and may be restarted meanwhile."""
    while True:
        try:
            found: dict[str, Array] = samples.get(timeout=1)
        except (QueueEmptyError, Restarted, CallTimeoutError):
            continue
        return found


def make_network() -> torch.nn.Module:
    """Return the network: two hidden layers, two actions and a value."""
    from torch import nn  # noqa: PLC0415

    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Array]) -> None:
    """Make one update of PPO (Schulman and others, 2017) with a batch: four passes in pieces of 512."""
    import torch  # noqa: PLC0415

    states = torch.from_numpy(batch["states"])
    actions, before = torch.from_numpy(batch["actions"]).flatten(), torch.from_numpy(batch["chances"]).flatten()
    with torch.no_grad():
        values = model.module(states)[..., 2]  # type: ignore[operator]
        gains = advantages(values, torch.from_numpy(batch["fell"]), torch.from_numpy(batch["cut"]))
        returns = (gains + values[:-1]).flatten()
        gains = gains.flatten()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    inputs = states[:-1].reshape(-1, 4)
    for _ in range(4):
        for rows in torch.randperm(len(inputs)).split(512):
            out = model(inputs[rows])
            chances = torch.log_softmax(out[:, :2], dim=1)
            ratio = (chances.gather(1, actions[rows, None])[:, 0] - before[rows]).exp()
            gained = torch.minimum(ratio * gains[rows], ratio.clamp(0.8, 1.2) * gains[rows]).mean()
            missed = (out[:, 2] - returns[rows]).square().mean()
            spread = -(chances.exp() * chances).sum(dim=1).mean()
            optimizer.zero_grad()
            (0.5 * missed - gained - 0.01 * spread).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def advantages(values: torch.Tensor, fell: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    """Return generalized advantages of a reward of 0.01 per step; an episode that was cut by its length is unfinished."""
    import torch  # noqa: PLC0415

    found, last = torch.zeros_like(values[:-1]), torch.zeros(values.shape[1])
    for at in range(len(found) - 1, -1, -1):
        ahead = values[at + 1] * (~fell[at] & ~cut[at]) + values[at] * cut[at]
        last = 0.01 + 0.99 * ahead - values[at] + 0.99 * 0.95 * last * (~fell[at] & ~cut[at])
        found[at] = last
    return found


# ------------------------------------------------------------------------------------------------- rollout and evaluator


class Policy:
    """The newest network of the trainer, in numpy."""

    def __init__(self) -> None:
        self._trainer = RoleGroup("trainer", timeout=60)
        self.version = -1
        self._weights: Weights = {}

    def refresh(self) -> None:
        """Fetch the weights if there are newer ones; wait for the first ones, and for a trainer that is restarted."""
        while True:
            try:
                version, weights = self._trainer.call_rank0("newest_weights", self.version)
            except Restarted:
                note("trainer restarted")
                continue
            if version >= 0:
                break
            time.sleep(0.05)
        self.version = version
        self._weights = self._weights if weights is None else weights

    def scores(self, states: Array) -> Array:
        """Return the scores of both actions."""
        w = self._weights
        hidden = np.tanh(states @ w["0.weight"].T + w["0.bias"])
        hidden = np.tanh(hidden @ w["2.weight"].T + w["2.bias"])
        found: Array = (hidden @ w["4.weight"].T + w["4.bias"])[:, :2]
        return found

    def report(self, score: float) -> None:
        """Send the score to the trainer."""
        self._trainer.with_timeout(5).call_rank0("scored", score)


def play() -> None:
    """Run one rollout until the job ends this process."""
    note("started")
    place = current()
    samples, policy = DataQueue("samples", "trainer", maxsize=4), Policy()
    carts = Carts(CARTS, seed=1000 * place.rank + place.incarnation)
    chance = np.random.default_rng(place.rank)
    while True:
        policy.refresh()
        batch = play_batch(policy, carts, chance)
        try:
            samples.put(batch)
        except (Restarted, CallTimeoutError):
            note("queue lost")


def play_batch(policy: Policy, carts: Carts, chance: np.random.Generator) -> dict[str, Array]:
    """Return the states, actions and their log probabilities of some steps of all carts."""
    states = np.empty((STEPS + 1, CARTS, 4), dtype=np.float32)
    actions, chances = np.empty((STEPS, CARTS), dtype=np.int64), np.empty((STEPS, CARTS), dtype=np.float32)
    fell, cut = np.empty((STEPS, CARTS), dtype=np.bool_), np.empty((STEPS, CARTS), dtype=np.bool_)
    for at in range(STEPS):
        states[at] = carts.state
        scores = policy.scores(states[at])
        right = 1 / (1 + np.exp(scores[:, 0] - scores[:, 1]))
        actions[at] = chance.random(CARTS) < right
        chances[at] = np.log(np.where(actions[at] == 1, right, 1 - right))
        fell[at], cut[at] = carts.step(actions[at])
        carts.restart(fell[at] | cut[at])
    states[STEPS] = carts.state
    return {"states": states, "actions": actions, "chances": chances, "fell": fell, "cut": cut}


def evaluate() -> None:
    """Measure the network until it is good enough."""
    note("started")
    policy, score = Policy(), 0.0
    while True:
        if all(peer.state is PeerState.ENDED for peer in peers("trainer")):
            return  # the trainer ends only with a good score
        policy.refresh()
        before, score = score, mean_length(policy)
        note("score", score=score, step=policy.version)
        print(f"update {policy.version}: mean length {score:.1f} of {LONGEST}", flush=True)
        try:
            policy.report(min(before, score))
        except (Restarted, CallTimeoutError):
            continue
        if min(before, score) >= GOAL:
            return
        time.sleep(0.5)


def mean_length(policy: Policy) -> float:
    """Return the mean length of 20 episodes with the better action of each state."""
    carts = Carts(20, seed=policy.version)
    lengths = np.zeros(20)
    while not lengths.all():
        fell, cut = carts.step(policy.scores(carts.state).argmax(axis=1))
        ended = (fell | cut) & (lengths == 0)
        lengths[ended] = carts.lengths[ended]
        carts.restart(fell | cut)
    return float(lengths.mean())


def note(what: str, **values: Any) -> None:
    """Append an event to `events.jsonl` in the folder of the configuration, for the timeline of the demo."""
    place = current()
    folder = place.config.get("folder")
    if folder:
        who = {"role": place.role, "rank": place.rank, "incarnation": place.incarnation, "pid": os.getpid()}
        with Path(folder, "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.time(), **who, "what": what, **values}) + "\n")
