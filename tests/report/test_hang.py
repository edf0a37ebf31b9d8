"""What is told of a world that hung."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from rallypoint.report.hang import behind_lines, drawn, picture, ranks_of
from rallypoint.report.incidents import incident_lines
from rallypoint.supervision.trimming import size_of, trim_incident
from rallypoint.wire import codec
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, RankGroup, Rung
from rallypoint.wire.places import RankSpan

BEHIND = RankGroup(ranks=(3,), culprit=True, step=41, life=42, quiet=90.0, state="stopped", frames=("no answer within 3 s",))
OTHERS = RankGroup(
    ranks=(0, 1, 2, 5), more=4, step=42, life=43, quiet=89.0, cpu=0.25, state="sleeping", frames=("x.py:1 reduce", "t.py:2 f")
)


def incident(*groups: RankGroup, rung: Rung = Rung.NOTIFY, places: tuple[RankSpan, ...] = ()) -> Incident:
    return Incident(
        id=IncidentId(attempt=1, round=2, node=1, local_rank=1, sequence=1),
        cause=Cause.HANG,
        rung=rung,
        reason="no sign of life",
        culprit=Culprit(node=1, host="b", rank=3, local_rank=1, pid=7, error="stopped", kind=FaultKind.HANG),
        kind=FaultKind.HANG,
        answer=Answer.RETRY_HERE,
        evidence=groups,
        places=places,
    )


def run(first: int, last: int, far: int = 42, *, culprit: bool = False, waits: bool = False) -> RankSpan:
    return RankSpan(first=first, last=last, count=last - first + 1, least=far, most=far, culprit=culprit, waits=waits)


def test_who_is_behind_whom_the_culprit_first() -> None:
    """Each group in one line, its stack below."""
    told = list(incident_lines(incident(BEHIND, OTHERS), 1))
    first = next(place for place, line in enumerate(told) if "stood" in line)

    assert [line.strip() for line in told[first:]] == [
        "stood    rank 3 (the others wait for it): stopped, step 41, 42 heartbeats, silent for 1m 30s, 0% of a core",
        "no answer within 3 s",
        "ranks 0-2, 5 and 4 more: sleeping, step 42, 43 heartbeats, silent for 1m 29s, 25% of a core",
        "x.py:1 reduce",
        "t.py:2 f",
    ]
    assert "  ended    no exit; alive but making no progress" in told


@pytest.mark.parametrize(
    ("rung", "words"),
    [
        pytest.param(Rung.NOTIFY, ("not charged to a budget", "no action taken"), id="it was only told"),
        pytest.param(Rung.RESTART_WORKERS, ("charged to the hang budget", "were restarted"), id="the workers were restarted"),
    ],
)
def test_what_was_done_and_who_paid(rung: Rung, words: tuple[str, ...]) -> None:
    """A hang that was only told costs nothing."""
    text = "\n".join(incident_lines(incident(BEHIND, rung=rung), 1))

    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(RankGroup(ranks=(4,)), "rank 4", id="one"),
        pytest.param(RankGroup(ranks=(0, 1, 2, 4, 6, 7)), "ranks 0-2, 4, 6-7", id="runs"),
        pytest.param(RankGroup(ranks=(0,), more=9), "ranks 0 and 9 more", id="more than are named"),
        pytest.param(RankGroup(ranks=(), more=9), "9 more ranks", id="none is named"),
    ],
)
def test_ranks_are_told_in_runs(group: RankGroup, expected: str) -> None:
    """Of many the number of those that are not named is told."""
    assert ranks_of(group) == expected


@pytest.mark.parametrize("whole", [pytest.param(True, id="whole"), pytest.param(False, id="a little")])
def test_evidence_stays_within_its_bounds(whole: bool) -> None:
    """A record holds many incidents: the culprit's group stays, the frames of the others go first; twice changes nothing."""
    frames = tuple(f"a/{'long' * 40}.py:{n} function" for n in range(40))
    many = tuple(RankGroup(ranks=tuple(range(n, n + 100)), culprit=n == 0, state="sleeping", frames=frames) for n in range(20))
    places = tuple(run(n, n, far=10**9 + n, culprit=n == 700) for n in range(1000))
    trimmed = trim_incident(incident(*many, places=places), whole=whole)

    assert size_of(trimmed) <= (7100 if whole else 2500)
    assert sum(place.count for place in trimmed.places) == 1000
    assert len(codec.dumps_item(trimmed).encode()) <= size_of(trimmed)
    assert trimmed.evidence[0].culprit
    assert trimmed.evidence[0].frames
    assert trim_incident(trimmed, whole=whole) == trimmed


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        pytest.param(
            (run(0, 2, waits=True), run(3, 3, 41, culprit=True)),
            "rank 3 is 1 step behind ranks 0-2, which wait for it",
            id="behind",
        ),
        pytest.param(
            (run(0, 0, waits=True), run(1, 2, 39, culprit=True)),
            "ranks 1-2 are 3 steps behind rank 0, which waits for them",
            id="two",
        ),
        pytest.param((run(0, 2), run(3, 3, culprit=True)), "rank 3 is at the same point as ranks 0-2", id="level"),
        pytest.param(
            (run(0, 0, 41, waits=True), run(1, 1, culprit=True)),
            "rank 1 is 1 step ahead of rank 0, which waits for it; rank 1 skipped the operation that the others wait for",
            id="ahead",
        ),
    ],
)
def test_who_is_behind_whom_in_a_sentence(places: tuple[RankSpan, ...], expected: str) -> None:
    """The gap, and whether the others wait."""
    assert list(behind_lines(incident(BEHIND, OTHERS, places=places))) == [expected]


def test_nobody_is_behind_where_nobody_stands_out() -> None:
    """Nothing is claimed."""
    assert list(behind_lines(incident(OTHERS, places=(run(0, 9),)))) == []


def test_the_picture_in_a_terminal() -> None:
    """A bar for each run of ranks, the culprit marked, what others have begun behind it."""
    places = (run(0, 2, waits=True), run(3, 3, 41, culprit=True))
    head, others, culprit = drawn(incident(BEHIND, OTHERS, places=places), plain=True)

    assert head.split() == ["ranks", "37", "43", "reported", "steps"]
    assert others == "  0-2  #################################....     42 waits"
    assert culprit == "    3  ###########################               41 <- the others wait (stopped)"
    assert all("█" in line for line in list(drawn(incident(BEHIND, OTHERS, places=places)))[1:])
    assert list(drawn(incident(BEHIND))) == []


def test_a_large_world_has_a_picture_of_a_page() -> None:
    """Ranks that are not neighbours are counted; the culprit keeps its row."""
    places = tuple(run(n, n, far=100 + n % 50, culprit=n == 700) for n in range(1000))
    lines = list(drawn(incident(BEHIND, places=places)))

    assert len(lines) == 17
    assert any(line.split()[0] == "700" and "the others wait" in line for line in lines)
    assert any(" of " in line for line in lines[1:])


def test_the_picture_as_a_file() -> None:
    """It is well-formed, whatever a name has in it; a row for each run, red for the culprit alone."""
    places = (run(0, 2, waits=True), run(3, 3, 41, culprit=True))
    root = ElementTree.fromstring(picture(incident(BEHIND, OTHERS, places=places), "a <job> & more"))
    fills = [element.get("fill") for element in root.iter() if element.tag.endswith("rect")][1:]
    nothing = picture(incident(BEHIND), "none")

    assert fills == ["#2c8d6c", "#a9d5c4", "#d64545"]
    assert "No data" in nothing
