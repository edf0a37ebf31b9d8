"""What holds for every registered capability, and for a product with none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.capabilities import COMPAT, NAMES, modules
from rallypoint.capabilities.base import CoordinatorCapability, coordinator_capabilities
from rallypoint.wire import codec
from rallypoint.wire.messages import AgentState, Assignment
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.status import JobStatus
from tests.agent.fakes import TWO, new_state, report

PLAN = Plan(name="digits", role="trainer", min_nodes=2, max_nodes=2, entry=Entry.SCRIPT, entrypoint="train.py")
PREVIOUS = Path(__file__).parents[1] / "data" / "previous"
REGISTERED = [pytest.param(one, id=one.name) for one in coordinator_capabilities(PLAN)]
PARTS = ("arguments", "coordinator", "node", "report", "service", "spec", "wire", "worker")


def trained(registered: tuple[CoordinatorCapability[Any], ...]) -> rendezvous.State:
    """Return a job of two nodes whose first round runs."""
    state = new_state(TWO, now=0.0, registered=registered)
    for node in range(2):
        state = rendezvous.receive(state, report(node), 1.0)
    for node in range(2):
        assert isinstance(rendezvous.answer(state, f"agent-{node}"), Assignment)
        state = rendezvous.receive(state, report(node, AgentState.RUNNING, round=1, sequence=1), 2.0)
    return state


def test_every_folder_is_registered() -> None:
    """By its name; what is not registered is never loaded."""
    folders = {path.parent.name for path in Path(*map(str, _package().__path__)).glob("*/__init__.py")}

    assert folders == set(NAMES)
    names = {module.__name__.split(".")[2] for part in PARTS for module in modules(part)}
    assert names <= {*NAMES, *(name.rpartition(".")[2] for name in COMPAT)}


def _package() -> Any:
    return sys.modules["rallypoint.capabilities"]


def test_the_rendezvous_works_with_none() -> None:
    """It forms a round, publishes its status, and a next coordinator takes over from that."""
    state = trained(())
    status = rendezvous.status(state, 3.0)
    after = rendezvous.new(TWO, job="digits", uid="u1", attempt=1, term=2, now=4.0, previous=status)

    assert not status.sections
    assert (after.world, after.capabilities.states) == (state.world, ())


@pytest.mark.parametrize("one", REGISTERED)
def test_without_reports_of_it_a_capability_changes_nothing(one: CoordinatorCapability[Any]) -> None:
    """Its state stays the very same, it asks for nothing, and nothing of it is published."""
    state = trained((one,))
    again = rendezvous.tick(state, 3.0)

    assert again.capabilities.states[0] is state.capabilities.states[0]
    assert rendezvous.answer(again, "agent-0") is None
    assert [event.kind for event in again.events] == [event.kind for event in trained(()).events]
    published = rendezvous.status(again, 3.0).sections.get(one.name)
    assert published is None or published.steady().bare, "only the beginning of the round, as the last sign of life"


@pytest.mark.parametrize("one", REGISTERED)
def test_a_capability_survives_a_coordinator(one: CoordinatorCapability[Any]) -> None:
    """It takes a status of the version before ours, with a value in each field, and publishes one that can be read."""
    data = json.loads((PREVIOUS / "every-field-status.json").read_text())
    previous = codec.from_json(JobStatus, {**data, "job": "digits", "uid": "u1"})
    attempt = previous.fence.attempt

    for following in (attempt, attempt + 1):
        state = rendezvous.new(
            TWO, job="digits", uid="u1", attempt=following, term=999, now=4.0, previous=previous, registered=(one,)
        )
        status = rendezvous.status(rendezvous.tick(state, 5.0), 5.0)
        assert codec.loads(JobStatus, codec.dumps(status)) == status


def test_what_no_capability_reads_is_published_again() -> None:
    """A coordinator without a capability that takes over leaves its published state to the next one that has it."""
    data = json.loads(codec.dumps(rendezvous.status(trained(()), 3.0)))
    previous = codec.from_json(JobStatus, {**data, "of_another": {"version": 3}})
    after = rendezvous.new(TWO, job="digits", uid="u1", attempt=1, term=2, now=4.0, previous=previous)

    assert json.loads(codec.dumps(rendezvous.status(after, 5.0)))["of_another"] == {"version": 3}


BARE = """
import rallypoint.capabilities as capabilities

capabilities.NAMES = ()

import json, sys
from pathlib import Path
from rallypoint.agent.command_line import RunParser
from rallypoint.agent.flags import add_run_flags
from rallypoint.agent.options import read_options
from rallypoint.job import compile_plan, load_job
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus

[plan] = compile_plan(load_job({"name": "digits", "entrypoint": "train.py"}, based=False))
parser = RunParser()
add_run_flags(parser, {})
assert read_options(parser.parse_args(["train.py"]), {}).plan.min_nodes == 1
for kind, name in ((Plan, "plan"), (JobStatus, "status")):
    text = Path(sys.argv[1], f"every-field-{name}.json").read_text()
    assert json.loads(text).items() <= json.loads(codec.dumps(codec.loads(kind, text))).items(), name
print(sorted(name for name in sys.modules if name.count(".") > 2 and name.startswith("rallypoint.capabilities.")))
"""


def test_jobs_and_agents_work_with_none() -> None:
    """Documents compile, flags are read, records of other versions pass through unchanged, and nothing is imported."""
    done = subprocess.run([sys.executable, "-c", BARE, str(PREVIOUS)], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "[]\n", done.stderr
