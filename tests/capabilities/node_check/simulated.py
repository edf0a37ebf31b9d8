"""A cluster of numbers: nodes that are broken or slow, and what a group of them would find."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.capabilities.node_check.check_run import next_groups
from rallypoint.capabilities.node_check.judging import Group, Played, Standing, judge

__all__ = ["Cluster", "Ill", "Outcome"]


class Ill(enum.Enum):
    """What a node has."""

    DEVICE = "device"  # its own arithmetic fails
    NETWORK = "network"  # it fails with everybody, and works alone
    SLOW_DEVICE = "slow-device"
    SLOW_NETWORK = "slow-network"


BROKEN = (Ill.DEVICE, Ill.NETWORK)
SLOW = (Ill.SLOW_DEVICE, Ill.SLOW_NETWORK)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    standing: Standing
    rounds: int
    history: tuple[Played, ...]
    early: Standing  # after two rounds


@dataclass
class Cluster:
    """`size` nodes; `noise` is how much longer a time may be than it should."""

    size: int
    ill: Mapping[int, Ill] = field(default_factory=dict)
    noise: float = 0.5
    seed: int = 0
    names_itself: bool = True  # a probe that breaks by itself says so

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def check(self, *, all_pairs: bool = False) -> Outcome:
        nodes, rounds = range(self.size), 0
        history: list[Played] = []
        early = judge(nodes, history)
        while groups := next_groups(nodes, history, rounds=rounds, all_pairs=all_pairs):
            together = [node for group in groups for node in group]
            assert len(together) == len(set(together)), "a node is in two groups at once"
            assert all(groups), "a group without a node"
            history += [self.play(group) for group in groups]
            rounds += 1
            early = judge(nodes, history) if rounds <= 2 else early
            assert rounds < 2 * self.size + 50
        return Outcome(standing=judge(nodes, history), rounds=rounds, history=tuple(history), early=early)

    def play(self, group: Group) -> Played:
        own = frozenset(n for n in group if self.ill.get(n) is Ill.DEVICE)
        cut = len(group) > 1 and any(self.ill.get(n) is Ill.NETWORK for n in group)
        compute = {n: self.timed(n, Ill.SLOW_DEVICE) for n in group if n not in own}
        if own or cut:
            return Played(group=group, failed=True, own=own if self.names_itself else frozenset(), compute=compute)
        transfer = max(self.timed(n, Ill.SLOW_NETWORK) for n in group) if len(group) > 1 else None
        return Played(group=group, compute=compute, transfer=transfer)

    def timed(self, node: int, ill: Ill) -> float:
        return (3.5 if self.ill.get(node) is ill else 1.0) * (1 + self.noise * self.random.random())

    def having(self, kinds: Sequence[Ill]) -> set[int]:
        return {node for node, ill in self.ill.items() if ill in kinds}
