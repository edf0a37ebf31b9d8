"""A job's status as metrics, read by Prometheus' own parser; and the story as lines of JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rallypoint.agent.clock import Clock, monotone_clock
from rallypoint.agent.coordinator import event_lines
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.capabilities import NAMES, modules
from rallypoint.capabilities.base import ServiceContext
from rallypoint.capabilities.metrics import server, service
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Folded, Incident, IncidentId, Rung
from rallypoint.wire.messages import AgentState, WorkerReport
from rallypoint.wire.missing import Absence, Missing
from rallypoint.wire.paths import METRICS_PATH
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.ports import METRICS_PORT, metrics_port
from rallypoint.wire.pulse import Phase
from rallypoint.wire.sections import build
from rallypoint.wire.status import JobState, JobStatus, Member, Progress, Sample
from tests.agent.fakes import MemorySink, new_state, report

ROOT = Path(__file__).parents[3]
NOW = 1000.0


def incident(number: int, cause: Cause, *, rung: Rung = Rung.RESTART_WORKERS, **more: object) -> Incident:
    fields: dict[str, object] = {"detected_at": 900.0, "healed_at": 902.5, "reason": "rank 1 ended", **more}
    return Incident(id=IncidentId(attempt=2, round=number), cause=cause, rung=rung, **fields)  # type: ignore[arg-type]


def status_of(**more: object) -> JobStatus:
    members = [
        Member(node=n, incarnation=1, agent=f"a{n}", host=f"gpu-{n}", local_world_size=4, first_rank=4 * n) for n in (0, 1)
    ]
    fields: dict[str, object] = {
        "job": 'a "job"\\with\nodd characters',
        "uid": "u1",
        "fence": Fence(attempt=2, term=3, round=5),
        "state": JobState.RUNNING,
        "world": tuple(members),
        "updated_at": NOW,
        **more,
    }
    return build(JobStatus, **fields)


def scraped(status: JobStatus) -> dict[tuple[str, str], float]:
    """Every value by the name of its metric and the value of its label."""
    found = {}
    for family in text_string_to_metric_families(server.render(status)):
        for sample in family.samples:
            label = next(iter(sample.labels.values()), "")
            found[sample.name, label] = sample.value
    return found


def test_the_parser_of_prometheus_reads_what_is_told() -> None:
    """Each with the help and the type that it was given, and a name that is good style."""
    told = {family.name: family for family in server.families(status_of())}
    read = {}
    for family in text_string_to_metric_families(server.render(status_of())):
        read[family.name + ("_total" if family.type == "counter" else "")] = family

    assert list(read) == list(told)
    for name, own in told.items():
        assert (read[name].documentation, read[name].type) == (own.help, own.kind.value)
        assert re.fullmatch(r"rallypoint_[a-z][a-z_]*[a-z]", name)
        assert name.endswith("_total") is (own.kind is server.Kind.COUNTER)
        assert len(read[name].samples) == len(own.samples)


def test_a_label_comes_back_as_it_was() -> None:
    """What Prometheus must have escaped in a label is escaped."""
    assert scraped(status_of())["rallypoint_job_info", 'a "job"\\with\nodd characters'] == 1


def test_the_world_and_who_is_missing() -> None:
    """Rounds, nodes, ranks, and who is missing in which way and for how long, are told."""
    gone = Missing(node=3, why=Absence.LOST, since=NOW - 30)
    silent = Missing(node=1, why=Absence.SILENT, since=NOW - 2)
    found = scraped(status_of(missing=(gone, silent), missing_count=2))

    assert found["rallypoint_rounds_total", ""] == 5
    assert (found["rallypoint_world_nodes", ""], found["rallypoint_world_size", ""]) == (2, 8)
    assert (found["rallypoint_missing_nodes", "absent"], found["rallypoint_missing_nodes", "silent"]) == (1, 1)
    assert found["rallypoint_missing_seconds", ""] == 30
    assert [state for (name, state), value in found.items() if name == "rallypoint_job_state" and value] == ["running"]


def test_restarts_and_seconds_lost_are_told_by_cause() -> None:
    """Those that are counts by now, those that are open still; what was only told restarted nothing."""
    told = (
        incident(1, Cause.PROCESS),
        incident(2, Cause.PROCESS, healed_at=None, detected_at=NOW - 4),
        incident(3, Cause.HANG, rung=Rung.NOTIFY, healed_at=960.0),
        incident(4, Cause.NODE, rung=Rung.EXIT),
        dataclasses.replace(incident(5, Cause.PROCESS), id=IncidentId(attempt=1, round=5)),
    )
    folded = (
        Folded(cause=Cause.PROCESS, attempt=2, count=7, first_at=1.0, last_at=2.0),
        Folded(cause=Cause.HANG, attempt=2, count=2, first_at=1.0, last_at=2.0),
        Folded(cause=Cause.PROCESS, attempt=1, count=100, first_at=1.0, last_at=2.0),
    )
    found = scraped(status_of(incidents=told, folded=folded, lost={"process": 70.25}))

    assert {c: found["rallypoint_incidents_total", c] for c in ("process", "hang", "node", "scale")} == {
        "process": 9,
        "hang": 3,
        "node": 1,
        "scale": 0,
    }
    assert {c: found["rallypoint_restarts_total", c] for c in ("process", "hang", "node")} == {
        "process": 9,
        "hang": 0,
        "node": 0,
    }
    assert found["rallypoint_lost_seconds_total", "process"] == 70.25 + 2.5 + 4
    assert found["rallypoint_lost_seconds_total", "hang"] == 60


@pytest.mark.parametrize(
    ("samples", "step", "rate"),
    [
        pytest.param((), 7, None, id="no sample yet"),
        pytest.param(((985.0, 10), (995.0, 40)), 60, 50 / 15, id="from the last that is ten seconds old"),
        pytest.param(((998.0, 10),), 20, 5.0, id="since the round began where that is shorter"),
        pytest.param(((500.0, 10), (990.0, 500)), 500, 0.0, id="no step for ten seconds"),
        pytest.param(((985.0, 60),), 20, 0.0, id="begun anew"),
    ],
)
def test_the_rate_of_steps(samples, step, rate) -> None:
    """Steps a second are those between the samples of the running round; of too few, none is told."""
    points = tuple(Sample(at=at, round=5, world_size=8, step=number) for at, number in samples)
    points = (Sample(at=400.0, round=4, world_size=8, step=3), *points)
    found = scraped(status_of(progress=Progress(step=step, at=NOW - 1), samples=points))

    assert found["rallypoint_step", ""] == step
    assert found.get(("rallypoint_steps_per_second", "")) == (None if rate is None else pytest.approx(rate))


def test_what_a_script_never_told_has_no_value() -> None:
    """Rather than a zero that nobody could tell from a real one."""
    found = scraped(status_of())
    names = {name for name, _ in found}

    assert names.isdisjoint({"rallypoint_step", "rallypoint_steps_per_second", "rallypoint_checkpoint_age_seconds"})
    assert "rallypoint_check_nodes" not in names


def test_the_age_of_a_checkpoint_counts_from_when_it_was_new() -> None:
    """To tell the same one again makes it no younger."""
    state = new_state(now=0.0)
    for node in (0, 1):
        state = rendezvous.receive(state, report(node), 1.0)

    def trained(state: rendezvous.State, step: int, path: str, now: float) -> rendezvous.State:
        worker = WorkerReport(local_rank=0, pid=1, step=step, checkpoint=path)
        told = report(0, AgentState.RUNNING, round=1, fence=state.fence, workers=(worker,), sequence=step)
        return rendezvous.receive(state, told, now)

    state = trained(trained(state, 5, "/ckpt/5", 10.0), 9, "/ckpt/5", 50.0)
    assert scraped(rendezvous.status(state, 60.0))["rallypoint_checkpoint_age_seconds", ""] == 50
    state = trained(state, 10, "/ckpt/10", 70.0)
    assert scraped(rendezvous.status(state, 71.0))["rallypoint_checkpoint_age_seconds", ""] == 1


def test_ranks_are_counted_by_phase() -> None:
    """Every phase has a figure, so that one that ended is 0 and not gone."""
    found = scraped(status_of(phases={"step": 6, "data wait": 2}))
    told = {phase: count for (name, phase), count in found.items() if name == "rallypoint_phase_ranks"}

    assert set(told) == {phase.value for phase in Phase}
    assert {phase: count for phase, count in told.items() if count} == {"step": 6, "data wait": 2}


def test_nothing_is_told_that_needs_the_secret() -> None:
    """No host, no path, no error, no log; and as many lines with thousands of nodes as with two."""
    secret = Culprit(host="gpu-secret", error="token=abc", log_tail=("password",), log_path="/home/secret")
    status = status_of(
        incidents=(incident(1, Cause.PROCESS, culprit=secret, reason="secret"),),
        progress=Progress(step=1, checkpoint="/data/secret", metrics={"secret": 1.0}),
        missing=tuple(Missing(node=n, host="gpu-secret", why=Absence.LOST, since=1.0) for n in range(64)),
        missing_count=4000,
        result="secret",
        store="10.0.0.1:29500",
    )
    text = server.render(status)

    assert not re.search(r"secret|password|abc|gpu-|10\.0\.0\.1|/data", text)
    assert len(text.splitlines()) < 120


def test_the_page_lists_every_metric_and_no_other() -> None:
    """With the kind and the help that the code gives it; the package of each optional capability has a table of its own."""
    page = (ROOT / "docs" / "guides" / "metrics.md").read_text()
    own, *tables = page.split("package `rallypoint.capabilities.")
    optional = {one.name for module in modules("report") for one in module.gauges(status_of())}
    tables = [table for table in tables if table.partition("`")[0] in NAMES]
    families = sorted(server.families(status_of()), key=lambda family: family.name in optional)

    assert [row for text in (own, *tables) for row in listed(text)] == [
        (family.name, family.kind.value, family.help) for family in families
    ]


def listed(text: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^\| `(rallypoint_\w+)` \| (\w+) \| [^|]*\| ([^|]+) \|$", text, re.MULTILINE)


# --- Where they are served -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "pod", "where"),
    [
        pytest.param(None, True, METRICS_PORT, id="pods have an address of their own"),
        pytest.param(None, False, 0, id="a machine has one for all jobs"),
        pytest.param(0, True, 0, id="off"),
        pytest.param(9100, False, 9100, id="named"),
    ],
)
def test_where_the_metrics_are(port, pod, where) -> None:
    """In a pod metrics have a port; elsewhere only where one is named; 0 is off."""
    assert metrics_port(plan_of(port), pod=pod) == where


def plan_of(port: int | None) -> Plan:
    fields = {"name": "a", "role": "r", "min_nodes": 1, "max_nodes": 1, "entry": Entry.SCRIPT, "entrypoint": "a.py"}
    return build(Plan, **fields, metrics_port=port)


def context(shell: Coordinator, port: int, clock: Clock, plan: Plan | None = None) -> ServiceContext:
    return ServiceContext(
        plan=plan or plan_of(port),
        host="127.0.0.1",
        pod=False,
        clock=clock,
        status=shell.status,
        note=shell.note,
        send=shell.send,
        state_of=shell.state_of,
        requested=None,
    )


def shell_at(clock) -> Coordinator:
    return Coordinator(new_state(now=clock()), sink=MemorySink(), clock=clock)


async def test_a_scrape_needs_no_secret_and_finds_nothing_else() -> None:
    """Through a real port: the metrics, in their type; nothing at any other path."""
    clock = monotone_clock()
    async with (
        service.running(context(shell_at(clock), free_port(), clock)) as port,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"http://127.0.0.1:{port}{METRICS_PATH}") as answer:
            text, kind = await answer.text(), answer.headers["Content-Type"]
        async with session.get(f"http://127.0.0.1:{port}/v1/status") as other:
            assert other.status == 404

    assert kind == server.CONTENT_TYPE
    assert {"rallypoint_rounds", "rallypoint_world_size"} <= {f.name for f in text_string_to_metric_families(text)}


async def test_who_scrapes_often_costs_one_reading() -> None:
    """Until it is old; then there is another."""
    now = 100.0
    read: list[float] = []

    class Counted(Coordinator):
        def status(self) -> JobStatus:
            read.append(now)
            return super().status()

    shell = Counted(new_state(now=now), sink=MemorySink(), clock=lambda: now)
    async with (
        service.running(context(shell, free_port(), lambda: now)) as port,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(5):
            await (await session.get(f"http://127.0.0.1:{port}{METRICS_PATH}")).read()
        now += server.FRESH
        await (await session.get(f"http://127.0.0.1:{port}{METRICS_PATH}")).read()

    assert read == [100.0, 100.0 + server.FRESH]


async def test_a_port_that_is_taken_costs_the_metrics_alone() -> None:
    """The job's story says so, and the job goes on."""
    clock = monotone_clock()
    shell = shell_at(clock)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with service.running(context(shell, taken.getsockname()[1], clock)) as port:
            await asyncio.sleep(0)

    assert port == 0
    assert "metrics (health.metrics_port)" in shell.status().events[-1].detail


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- The story as lines ----------------------------------------------------------------------------------------------------


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[list[str]]:
    handler, logger = Heard(), logging.getLogger("rallypoint.events")
    level, handlers = logger.level, list(logger.handlers)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.lines
    logger.setLevel(level)
    logger.handlers[:] = handlers


async def test_each_event_is_one_line_with_the_same_keys(heard: list[str]) -> None:
    """In order, and none of them twice."""
    now = 1790000000.5
    shell = Coordinator(new_state(now=now), sink=MemorySink(), clock=lambda: now, log_event=event_lines.structured)
    shell.note("asked", 'a "quoted"\nthing')
    shell.note("asked", "again")

    told = [json.loads(line) for line in heard]
    assert [(line["event"], line["detail"]) for line in told] == [("asked", 'a "quoted"\nthing'), ("asked", "again")]
    assert all(tuple(line) == event_lines.KEYS for line in told)
    assert all("\n" not in line for line in heard)
    first = {key: told[0][key] for key in ("time", "job", "uid", "attempt", "term", "round", "nodes", "ranks", "state")}
    assert first == {
        "time": "2026-09-21T14:13:20.500Z",
        "job": "digits",
        "uid": "u1",
        "attempt": 1,
        "term": 1,
        "round": 0,
        "nodes": 0,
        "ranks": 0,
        "state": "forming",
    }


def test_the_page_tells_every_key() -> None:
    """The keys of an event line in the docs are those of the code."""
    page = (ROOT / "docs" / "guides" / "metrics.md").read_text().partition("## Event lines")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \| [^|]*\|$", page, re.MULTILINE)) == event_lines.KEYS


async def test_metrics_of_an_elastic_role_have_its_label() -> None:
    """All of them, after their own labels."""
    clock, port = monotone_clock(), free_port()
    plan = dataclasses.replace(plan_of(port), job="rl", env={"RALLYPOINT_ROLE": "trainer"})
    async with (
        service.running(context(shell_at(clock), port, clock, plan)) as bound,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{bound}{METRICS_PATH}") as answer,
    ):
        lines = [line for line in (await answer.text()).splitlines() if not line.startswith("#")]
    assert all('role="trainer"}' in line for line in lines), lines
    assert any(line.startswith('rallypoint_attempt{role="trainer"} ') for line in lines)
