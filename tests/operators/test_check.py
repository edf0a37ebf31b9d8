"""`NodeCheckOperator`: what was found reaches XCom, and nodes that must not train fail the task."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree as ET

import pytest

from rallypoint.capabilities.node_check.wire import PlanSection
from rallypoint.operators.check import XCOM_KEYS, NodeCheckOperator
from rallypoint.provider.errors import InvalidJob, NodesRefused, OptionError
from rallypoint.wire import codec
from rallypoint.wire.check import CheckState, Link, NodeCheck, NodeFound, NodeVerdict
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context

CHECK = NodeCheck(
    number=1,
    level=1,
    state=CheckState.PASSED,
    reason="before the first round",
    started_at=0.0,
    rounds=1,
    count=3,
    nodes=tuple(NodeFound(node=n, incarnation=1, host=f"gpu-{n}", verdict=NodeVerdict.GOOD) for n in range(3)),
    links=(Link(nodes=(0, 1), bandwidth=1e9), Link(nodes=(1, 2))),
)


def found(**verdicts: NodeVerdict) -> NodeCheck:
    kinds = {int(name[1:]): verdict for name, verdict in verdicts.items()}
    nodes = tuple(dataclasses.replace(one, verdict=kinds.get(one.node, one.verdict)) for one in CHECK.nodes)
    return dataclasses.replace(CHECK, nodes=nodes)


class Checking(FakeBackend):
    """Every job ends with a check as its result."""

    def __init__(self, check: NodeCheck) -> None:
        super().__init__(verdict=SUCCESS)
        self.check = check

    async def observe(self, record):
        seen = await super().observe(record)
        told = seen.status
        if told is None:
            return seen
        return dataclasses.replace(seen, status=dataclasses.replace(told, result=codec.to_json(self.check)))


class Operator(NodeCheckOperator):
    """Checks nodes in memory."""

    def __init__(self, *, fake, **kwargs):
        super().__init__(task_id="check", poll_interval=0.01, **kwargs)
        self.fake = fake

    def open_backend(self):
        return self.fake

    async def ask_state(self, context):
        return "running"


def test_what_was_found_is_returned_and_pushed():
    """Hosts, the matrix, and its picture; the job is nothing but its check."""
    fake, ti = Checking(CHECK), FakeTask()

    told = Operator(fake=fake, nodes=3, nproc_per_node=2, level="2", all_pairs=True).execute(context(ti))

    assert (told["nodes"], told["faulty_hosts"], told["stragglers"]) == (3, [], [])
    assert told["bandwidth"]["bandwidth"][0][1] == 1e9
    assert ET.fromstring(told["bandwidth_svg"]).tag.endswith("svg")
    assert {key: ti.pushed[key] for key in XCOM_KEYS} == {key: told[key] for key in XCOM_KEYS}
    plan = fake.submitted[0].plan
    checked = PlanSection.of(plan)
    assert (checked.check_only, checked.check_level, checked.check_all_pairs) == (True, 2, True)
    assert (plan.max_nodes, plan.budgets.retry_limit) == (3, 0)


@pytest.mark.parametrize(
    ("check", "fail_on", "said"),
    [
        pytest.param(found(_1=NodeVerdict.FAULT), "fault", "faulty: gpu-1", id="at fault"),
        pytest.param(found(_1=NodeVerdict.UNKNOWN), "fault", "faulty: gpu-1", id="unclear"),
        pytest.param(found(_0=NodeVerdict.STRAGGLER), "straggler", "slow: gpu-0", id="slow, and nobody may be"),
        pytest.param(found(_0=NodeVerdict.STRAGGLER), "fault", "", id="slow, which is no fault"),
        pytest.param(found(_1=NodeVerdict.FAULT), "never", "", id="left to whoever reads it"),
    ],
)
def test_nodes_that_must_not_train_fail_the_task(check, fail_on, said):
    """What was found is in XCom in any case."""
    ti, op = FakeTask(), Operator(fake=Checking(check), nodes=3, fail_on=fail_on)

    if said:
        with pytest.raises(NodesRefused, match=said):
            op.execute(context(ti))
    else:
        op.execute(context(ti))

    assert ti.pushed["bandwidth"]["nodes"] == [0, 1, 2]


def test_the_nodes_of_a_job_are_checked(tmp_path):
    """Its file says which; what it would run is not started."""
    path = tmp_path / "job.yaml"
    path.write_text("name: digits\nentrypoint: train.py\nnodes: 4\nimage: registry/train:1\n")
    fake = Checking(CHECK)

    Operator(fake=fake, job=str(path), round_timeout="90s").execute(context(FakeTask()))

    plan = fake.submitted[0].plan
    assert (plan.max_nodes, PlanSection.of(plan).check_only, PlanSection.of(plan).check_timeout) == (4, True, 90.0)


def test_wrong_arguments_are_told():
    """Those that no template changes when the DAG is parsed, the others when the task runs."""
    with pytest.raises(
        OptionError,
        match="fail_on: 'slow' is not allowed; expected one of fault, straggler, never",
    ):
        NodeCheckOperator(task_id="check", nodes=2, fail_on="slow")
    with pytest.raises(OptionError, match="wait_for_completion"):
        NodeCheckOperator(task_id="check", nodes=2, wait_for_completion=False)
    with pytest.raises(
        OptionError,
        match="level: '3' is not allowed; expected 1 or 2",
    ):
        Operator(fake=Checking(CHECK), nodes=2, level="3").execute(context(FakeTask()))
    with pytest.raises(InvalidJob, match="precheck_timeout"):
        Operator(fake=Checking(CHECK), nodes=2, round_timeout="soon").execute(context(FakeTask()))
