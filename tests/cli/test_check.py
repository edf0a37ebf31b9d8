"""`rallypoint check`, and what `rallypoint status` tells of a job's check."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.cli.check import lines
from rallypoint.cli.view import view
from rallypoint.wire.check import AllNodes, CheckState, Link, NodeCheck, NodeFound, NodeVerdict
from rallypoint.wire.sections import replaced
from rallypoint.wire.status import JobState
from tests.cli.samples import NOW, PLAN, ZONE, begun, training

GOOD = NodeFound(node=0, incarnation=1, host="ada", verdict=NodeVerdict.GOOD, compute=0.0123, transfer=0.5)
FAULT = NodeFound(node=1, incarnation=1, host="eve", verdict=NodeVerdict.FAULT, reason="stage compute: ECC error")
CHECK = NodeCheck(
    number=1,
    level=2,
    state=CheckState.PASSED,
    reason="before the first round",
    started_at=NOW,
    finished_at=NOW,
    rounds=2,
    count=3,
    nodes=(FAULT, GOOD, dataclasses.replace(GOOD, node=2, host="bob")),
    links=(Link(nodes=(0, 1)), Link(nodes=(0, 2), bandwidth=2e9)),
    whole=AllNodes(nodes=2, ranks=4, moved=1, seconds=1.0, latency=2e-5, algbw=4e9, busbw=3e9),
)


def test_what_was_found_is_told_bad_nodes_first() -> None:
    """Then how fast the links are, and all nodes at once."""
    assert list(lines(CHECK)) == [
        "NODE  HOST  VERDICT  COMPUTE  TRANSFER  WHY",
        "   1  eve   fault          -         -  stage compute: ECC error",
        "   0  ada   good     12.3 ms    500 ms",
        "   2  bob   good     12.3 ms    500 ms",
        "",
        "3 nodes, 2 rounds, 2 groups, 1 of them failed",
        "bandwidth 2 GB/s (nodes 0 and 2) to 2 GB/s",
        "all 2 nodes at once, 4 ranks: algbw 4 GB/s, busbw 3 GB/s, latency 20 us",
    ]


@pytest.mark.parametrize(
    ("check", "text"),
    [
        pytest.param(CHECK, "3 nodes are checked: node 1 on eve faulty", id="one at fault"),
        pytest.param(dataclasses.replace(CHECK, nodes=(GOOD,), count=1), "1 node is checked: all passed", id="all passed"),
        pytest.param(
            dataclasses.replace(CHECK, state=CheckState.RUNNING, rounds=1, finished_at=None),
            "3 nodes are being checked (before the first round); 1 rounds done",
            id="on its way",
        ),
    ],
)
def test_the_status_of_a_job_tells_of_its_check(check: NodeCheck, text: str) -> None:
    """Whoever looks at a job sees what its check found."""
    shown = view(begun(), replaced(training(), check=check), PLAN, NOW, zone=ZONE)
    assert [fact.text for fact in shown.details if fact.label == "node check"] == [text]


def test_while_nodes_are_checked_the_summary_says_so() -> None:
    """They have joined, and nobody trains."""
    running = dataclasses.replace(CHECK, state=CheckState.RUNNING)
    status = replaced(training(), state=JobState.FORMING, world=(), ranks=(), check=running)
    assert view(begun(), status, PLAN, NOW, zone=ZONE).summary == "3 nodes are being checked"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((), "a FILE or --nodes N is required", id="nothing to check"),
        pytest.param(("FILE", "--image", "x"), "cannot be used with FILE", id="an image beside a file"),
        pytest.param(("--nodes", "2", "--level", "0"), "invalid choice: 0", id="a level that checks nothing"),
    ],
)
def test_wrong_usage_is_told(run, job_file, capsys, words, said) -> None:
    """Exit code 2, and one sentence that says what is allowed."""
    with pytest.raises(SystemExit):
        run("check", *(job_file if word == "FILE" else word for word in words))
    assert said in capsys.readouterr().err
