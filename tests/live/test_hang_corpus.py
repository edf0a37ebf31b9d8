"""A hang of each kind, for real (tests/live/hang_corpus.py): found, all looked into, and the right ranks blamed."""

from __future__ import annotations

from tests.live.hang_corpus import run_all
from tests.live.hang_kinds import KINDS
from tests.optional import needs
from tests.scale import WHOLE

needs("torch")

#: The ways of which the evidence proves that the ranks can never go on.
PROVABLE = {"stop", "lock-c", "lock-c-gil", "exited", "deadlock", "skip", "order", "barrier"}


#: The one that `make test` runs beside the hangs of test_hangs.py and test_hang_lines.py: it is restarted by positive evidence,
#: and a rank that makes another collective than the others is the culprit. `make test-all` runs all kinds.
SAMPLE = ("skip",)


def test_every_way_to_hang_is_found_and_its_culprit_named() -> None:
    """What only looks like a hang is none. How long it took is told by `make hang-corpus`, not here."""
    kinds = [kind for kind in KINDS if WHOLE or kind.name in SAMPLE]
    results = run_all(kinds, times=1, jobs=6 if WHOLE else 1, downtime=15.0)
    wrong = [found for found in results if not (found.right and found.complete and found.recovered)]
    proven = {found.kind.name for found in results if found.proven}

    assert sorted(found.kind.name for found in results) == sorted(kind.name for kind in kinds)
    assert [found for found in wrong if found.took is None or not found.complete] == []
    assert len(wrong) <= 0.05 * len(results), wrong
    # The others look like ranks that are at work: they are restarted when `hang_downtime` is over.
    assert proven <= PROVABLE
    assert proven, "no hang was restarted by positive evidence"
