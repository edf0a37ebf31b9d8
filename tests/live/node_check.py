"""Node checks of real agents with a probe that has whatever a test gives its node.

`python -m tests.live.node_check` (`make node-check`) plays every case: 2 to 9 nodes, none ill, one slow, one broken, and both.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.capabilities.node_check.wire import StatusSection
from rallypoint.wire.check import NodeCheck, NodeVerdict
from rallypoint.wire.exits import Exit
from tests.live.agent_processes import SCRIPTS, Agents, agents, said

__all__ = ["Case", "cases", "illnesses", "play", "probe"]

#: Seconds that the probes of a round have; long, since only a node that hangs waits for it.
LIMIT = 120.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the nodes have, and what must be found."""

    nodes: int
    ill: Mapping[int, str] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.nodes} nodes, {', '.join(f'{node} {what}' for node, what in self.ill.items()) or 'all well'}"

    def expected(self) -> dict[int, NodeVerdict]:
        """Return the nodes that are not good; of two nodes' network nobody can tell whose is slow, so no case asks for it."""
        slow = {n: NodeVerdict.STRAGGLER for n, what in self.ill.items() if what.startswith("slow")}
        return {**slow, **{n: NodeVerdict.FAULT for n, what in self.ill.items() if not what.startswith("slow")}}


def cases() -> Iterator[Case]:
    """Yield every case: which node has it, and what it has, differs from size to size."""
    broken, slow = itertools.cycle(("device", "network", "lost")), itertools.cycle(("slow-device", "slow-network"))
    for nodes in range(2, 10):
        one, other = nodes // 2, 0 if nodes % 2 else nodes - 1
        # Where only two are left to be compared, only their devices can be.
        slow_alone = "slow-device" if nodes == 2 else next(slow)
        slow_beside = "slow-device" if nodes == 3 else next(slow)
        yield Case(nodes=nodes)
        yield Case(nodes=nodes, ill={one: slow_alone})
        yield Case(nodes=nodes, ill={one: next(broken)})
        if nodes > 2:  # the one that is left of two has nobody to be slower than
            yield Case(nodes=nodes, ill={one: next(broken), other: slow_beside})


def illnesses(folder: Path, ill: Mapping[int, str]) -> Path:
    """Write down what the nodes have."""
    where = folder / "ill"
    where.mkdir(exist_ok=True)
    for node, what in ill.items():
        (where / str(node)).write_text(what)
    return where


def probe(where: Path) -> tuple[str, ...]:
    """Return the program that has what stands there."""
    return (sys.executable, str(SCRIPTS / "probe.py"), str(where))


def play(job: Agents, case: Case) -> NodeCheck:
    """Check the nodes of a case, and return what was found."""
    job.write_plan(
        min_nodes=case.nodes,
        max_nodes=case.nodes,
        nproc_per_node=1,
        check_level=1,
        check_only=True,
        check_timeout=LIMIT,
        check_program=probe(illnesses(job.folder, case.ill)),
    )
    processes = [job.coordinator(), *(job.node(node) for node in range(case.nodes))]
    ended = [said(process, timeout=120.0) for process in processes]
    assert [code for code, _ in ended] == [Exit.OK] * len(processes), ended
    status = job.status()
    assert status is not None
    check = StatusSection.of(status).check
    assert check is not None
    return check


def found(check: NodeCheck) -> dict[int, NodeVerdict]:
    """Return the nodes that are not good."""
    return {one.node: one.verdict for one in check.nodes if one.verdict is not NodeVerdict.GOOD}


def main() -> int:
    """Play all cases; return 1 when one was judged wrongly."""
    wrong = 0
    for number, case in enumerate(cases(), 1):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, agents(Path(folder)) as job:
            check = play(job, case)
        right = found(check) == case.expected()
        wrong += not right
        took = time.monotonic() - began
        print(f"{number:3}  {'right' if right else 'WRONG'}  {check.rounds} rounds, {took:4.1f} s  {case.name}", flush=True)
        if not right:
            print(f"     found {found(check)}")
    print(f"{number - wrong} of {number} cases were judged rightly")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
