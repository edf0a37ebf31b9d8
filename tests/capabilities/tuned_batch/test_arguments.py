"""The tuned batch in a job document, as DLRover's argument, and as a flag of a run by hand."""

from __future__ import annotations

import pytest

from rallypoint.agent.command_line import RunParser
from rallypoint.agent.flags import add_run_flags
from rallypoint.agent.options import read_options
from rallypoint.capabilities.tuned_batch.wire import PlanSection
from rallypoint.job import JobError, compile_plan, load_job
from rallypoint.job.arguments import ARGUMENTS
from rallypoint.wire import codec
from rallypoint.wire.plan import Plan


def compiled(**fields: object) -> PlanSection:
    [plan] = compile_plan(load_job({"name": "digits", "entrypoint": "train.py", **fields}, based=False))
    assert codec.loads(Plan, codec.dumps(plan)) == plan
    return PlanSection.of(plan)


def test_the_fields_of_a_job_reach_its_plan() -> None:
    """By both names; without them nothing is tuned."""
    assert compiled() == PlanSection()
    assert compiled(auto_tuning=True, auto_tuning_memory="1Gi") == PlanSection(auto_tuning=True, tuning_memory=1 << 30)
    assert compiled(auto_tunning=True).auto_tuning
    assert not compiled(auto_tuning=False).auto_tuning


@pytest.mark.parametrize(("field", "value"), [("auto_tuning", "perhaps"), ("auto_tuning_memory", "much")])
def test_a_wrong_value_is_refused_by_name(field: str, value: str) -> None:
    """As that of every field of a job."""
    with pytest.raises(JobError, match=f"{field}.*{value}"):
        compiled(**{field: value})


@pytest.mark.parametrize("flag", ["--auto-tunning", "--auto_tunning"])
def test_a_run_by_hand_has_the_flag(flag: str) -> None:
    """In both spellings, as its `RALLYPOINT_` variable, and off without it."""

    def parse(*words: str, **environ: str) -> PlanSection:
        parser = RunParser()
        add_run_flags(parser, environ)
        return PlanSection.of(read_options(parser.parse_args([*words, "train.py"]), environ).plan)

    assert parse(flag).auto_tuning
    assert parse(RALLYPOINT_AUTO_TUNNING="1").auto_tuning
    assert not parse().auto_tuning


def test_it_keeps_its_place_among_dlrovers_arguments() -> None:
    """Behind `auto_config`, as in DLRover's document."""
    names = list(ARGUMENTS)

    assert names[names.index("auto_config") + 1] == "auto_tunning"
    assert ARGUMENTS["auto_tunning"].switch
