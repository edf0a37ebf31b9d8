"""Who was there when: every change of an emulated namespace's pods, and the trails of a job's workers."""

from __future__ import annotations

import collections
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.emulator.store import Change

__all__ = ["Audit", "two_worlds"]

_OVER = ("Succeeded", "Failed")


@dataclass
class Audit:
    """Listens to the store of an emulator. `wrong` has what must never be; `made` the uids of each (node, incarnation)."""

    namespace: str
    #: Slots whose machine is lost: what the API says of their pods is not known to be so.
    lost: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    made: dict[tuple[int, int], set[str]] = field(default_factory=lambda: collections.defaultdict(set))
    attempts: set[int] = field(default_factory=set)
    _live: dict[int, set[str]] = field(default_factory=lambda: collections.defaultdict(set))

    def __call__(self, change: Change) -> None:
        """Take note of a change; called in the emulator's thread."""
        pod = change.now
        if pod.key != "pods" or pod.namespace != self.namespace:
            return
        labels = pod.body["metadata"].get("labels") or {}
        if labels.get("rallypoint.dev/part") == "node":
            self._node(labels, pod.body, gone=change.type == "DELETED")

    def _node(self, labels: dict[str, str], body: dict[str, Any], *, gone: bool) -> None:
        node, uid = int(labels["rallypoint.dev/node"]), str(body["metadata"]["uid"])
        which = (node, int(labels["rallypoint.dev/incarnation"]))
        self.attempts.add(int(labels["rallypoint.dev/attempt"]))
        self.made[which].add(uid)
        if len(self.made[which]) > 1:
            self.wrong.append(f"incarnation {which[1]} of node {node} was created {len(self.made[which])} times")
        over = gone or body["status"].get("phase") in _OVER
        (self._live[node].discard if over else self._live[node].add)(uid)
        if len(self._live[node]) > 1 and node not in self.lost:
            self.wrong.append(f"node {node} is alive {len(self._live[node])} times: {sorted(self._live[node])}")

    def incarnations(self) -> dict[int, int]:
        """Return how often each slot was filled."""
        return dict(collections.Counter(node for node, _ in self.made))


def two_worlds(trail: Path) -> list[str]:
    """Return every rank that was there twice in one round, and every step of a round after the first one of the next."""
    wrong: list[str] = []
    rounds: dict[int, dict[int, tuple[float, float]]] = collections.defaultdict(dict)
    for file in sorted(trail.iterdir()):
        times = [float(line) for line in file.read_text().split()]
        round_, rank, _ = map(int, file.name.split("-"))
        if rank in rounds[round_]:
            wrong.append(f"rank {rank} was there twice in round {round_}")
        if times:
            rounds[round_][rank] = (times[0], times[-1])
    order = sorted(rounds)
    for earlier, later in itertools.pairwise(order):
        last = max(end for _, end in rounds[earlier].values())
        first = min(begin for begin, _ in rounds[later].values())
        if last > first:
            wrong.append(f"round {earlier} made a step {last - first:.3f} s after round {later} had begun")
    return wrong
