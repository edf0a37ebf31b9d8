"""The share of each second of a job: what it was lost to, and how long that takes to find out."""

from __future__ import annotations

import dataclasses
import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.report import timeline
from rallypoint.report.page.view import page_of
from rallypoint.supervision.record import Attempt, JobRecord
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.status import JobState, JobStatus
from tests.scale import sized

RECORD = dataclasses.replace(
    JobRecord.new(name="j", uid="u", digest="d", owner="o", now=1.0),
    attempt=1,
    attempts=(Attempt(number=1, owner="o", started_at=2.0, ready_at=3.0),),
    last_now=100.0,
)


def incident(number: int, cause: Cause, start: float, end: float | None) -> Incident:
    return Incident(
        id=IncidentId(attempt=1, round=number), cause=cause, rung=Rung.RETRY, reason="", detected_at=start, healed_at=end
    )


def expected(spans: list[tuple[float, float, str]], begin: float, until: float) -> list[tuple[str, float, float]]:
    """Return the definition: between two edges, the first kind of the spans that contain this time."""
    edges = sorted({begin, until, *(edge for start, end, _ in spans for edge in (start, end) if begin <= edge <= until)})
    found: list[tuple[str, float, float]] = []
    for start, end in itertools.pairwise(edges):
        kinds = {kind for s, e, kind in spans if s <= start and e >= end}
        kind = min(kinds, key=timeline._FIRST.index) if kinds else timeline.TRAINING
        if found and found[-1][0] == kind:
            start = found.pop()[1]  # noqa: PLW2901
        found.append((kind, start, end))
    return found


TIMES = st.integers(1, 40).map(float)
INCIDENTS = st.lists(
    st.tuples(st.sampled_from([Cause.PROCESS, Cause.NODE, Cause.HANG, Cause.SCALE]), TIMES, TIMES), max_size=12
)


@given(INCIDENTS)
@settings(max_examples=sized(200, 60))
def test_each_moment_is_lost_to_the_first_of_its_kinds(found):
    """Spans that overlap, contain each other, begin together or end before they begin."""
    incidents = [incident(number, *one) for number, one in enumerate(found)]
    spans = [(start, end, cause.value) for cause, start, end in found]
    known = [(1.0, 2.0, timeline.QUEUED), (2.0, 3.0, timeline.STARTING), *((s, e, k) for s, e, k in spans if e > s)]

    work = timeline.work(RECORD, None, incidents, until=30.0)
    assert [(span.kind, span.start, span.end) for span in work] == expected(known, 1.0, 30.0)


def test_a_page_of_many_incidents_or_attempts_takes_time_in_proportion_to_them():
    """A script can write its own status and record: 14,000 incidents took minutes."""
    causes = (Cause.HANG, Cause.PROCESS)
    many = tuple(incident(n, causes[n % 2], 10.0 + 3 * n, 11.0 + 3 * n) for n in range(8000))
    status = JobStatus(job="j", uid="u", fence=Fence(attempt=1), state=JobState.RUNNING, incidents=many, updated_at=1e6)
    attempts = tuple(Attempt(number=n, owner="o", started_at=10.0 + 4 * n, ended_at=12.0 + 4 * n) for n in range(8000))
    restarted = dataclasses.replace(RECORD, attempt=7999, attempts=attempts)

    began = time.process_time()
    page_of(RECORD, status, now=1e6)
    page_of(restarted, None, now=1e6)
    assert time.process_time() - began < 8.0
