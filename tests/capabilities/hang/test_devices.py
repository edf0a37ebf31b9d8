"""Errors of GPUs as evidence of a hang."""

from __future__ import annotations

from rallypoint.capabilities.hang.blame import blame
from rallypoint.capabilities.hang.description import groups, place
from rallypoint.capabilities.hang.rounds import looks_hung
from rallypoint.wire.hang import RankSeen


def test_a_rank_whose_gpu_has_an_error_is_to_blame_for_a_hang() -> None:
    """However alike all ranks look; and the verdict says how busy its GPU is, and with which error."""
    waits = {"state": "S", "frames": ("torch/distributed/distributed_c10d.py:3 all_reduce",), "cpu": 1.0}
    ranks = {n: RankSeen(local_rank=n, pid=n + 1, gpu=1.0, **waits) for n in range(3)}  # type: ignore[arg-type]
    assert (blame(ranks), looks_hung(ranks)) == ((), False)

    ranks[2] = RankSeen(local_rank=2, pid=3, gpu=0.97, device="GPU 2: XID 74 (NVLink error)", **waits)  # type: ignore[arg-type]

    assert (blame(ranks), looks_hung(ranks)) == ((2,), True)
    assert place(ranks[2]).endswith(", GPU 97% busy; GPU 2: XID 74 (NVLink error)")
    culprit, others = groups(ranks, (2,))
    assert (culprit.gpu, culprit.device) == (0.97, "GPU 2: XID 74 (NVLink error)")
    assert (others.ranks, others.gpu, others.device) == ((0, 1), 1.0, "")
