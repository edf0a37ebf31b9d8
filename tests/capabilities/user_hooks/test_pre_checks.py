"""Pre-check operators: what is loaded, what they are told, what follows from what they say. Nothing here waits."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.rendezvous import capabilities
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.user_hooks.coordinator import Answered, Failed, UserHooks, facts
from rallypoint.capabilities.user_hooks.host import ConnectionPreCheckOperator, Loaded, SchedulingPreCheckOperator, job_of, main
from rallypoint.capabilities.user_hooks.pre_checks import SPARE, Action, ActionKind, Answer, Operator, is_last, may_ask_until
from rallypoint.capabilities.user_hooks.service import host_command
from rallypoint.capabilities.user_hooks.wire import StatusSection
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Answer as Ruling
from rallypoint.wire.messages import Assignment, Stop
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.pre_check import BUILT_IN_MODULE, PreCheckOp, PreCheckState
from rallypoint.wire.sections import build, replaced
from rallypoint.wire.status import JobState
from tests.agent.test_rendezvous import TWO, answers, report, say, start

DISK = PreCheckOp(module="my.checks", name="Disk")
OFF = PreCheckOp(module="my.checks", name="Net", enabled=False)
PLAN = build(
    Plan,
    name="digits",
    role="trainer",
    min_nodes=2,
    max_nodes=2,
    entry=Entry.SCRIPT,
    entrypoint="train.py",
    pre_check_ops=(DISK, OFF),
)
FINE = Answer(fine=True, message="all well")


def bad(*actions: Action, message: str = "no space", nodes: tuple[int, ...] = ()) -> Answer:
    return Answer(fine=False, message=message, nodes=nodes, actions=actions)


def waiting(plan: Plan = PLAN) -> State:
    """Both nodes wait, and nobody has asked the operators yet."""
    return say(start(TWO, registered=(UserHooks(plan),)), report(0), report(1))


def heard(state: State, answer: Answer, now: float = 1.0, *, last: bool = False) -> State:
    request = Answered(index=0, answer=answer, last=last)
    return rendezvous.tick(capabilities.on_request(state, "user_hooks", request, now), now)


def waits(state: State) -> bool:
    return capabilities.holds_round(state)


@pytest.mark.argument("pre_check_ops")
def test_no_round_is_closed_before_the_operators_are_content() -> None:
    """Not even with all nodes there; one that is bypassed is not waited for."""
    state = waiting()
    assert answers(state, "0.1", "1.1") == [None, None]

    state = heard(state, FINE)

    assert all(isinstance(answer, Assignment) for answer in answers(state, "0.1", "1.1"))
    told = StatusSection.of(rendezvous.status(state, 1.0)).pre_checks
    assert [(one.operator, one.state) for one in told] == [
        ("my.checks.Disk", PreCheckState.PASSED),
        ("my.checks.Net", PreCheckState.BYPASSED),
    ]


@pytest.mark.difference(5)
def test_a_job_whose_operators_are_all_bypassed_waits_for_nobody() -> None:
    """False bypasses: it is not even loaded."""
    state = waiting(replaced(PLAN, pre_check_ops=(OFF,)))

    assert state.state is JobState.RUNNING


def test_nobody_is_late_while_operators_are_asked() -> None:
    """The join time-out begins when they are content."""
    settings = dataclasses.replace(TWO, join_timeout=10.0)
    state = say(start(settings, registered=(UserHooks(PLAN),)), report(0))
    assert rendezvous.deadline(state) == settings.node_lease
    state = rendezvous.tick(state, 100.0)
    assert state.verdict is None

    state = heard(state, FINE, now=100.0)

    assert rendezvous.deadline(state) == 110.0
    assert rendezvous.tick(state, 110.0).verdict is not None


def test_one_that_is_not_content_is_told_and_asked_again() -> None:
    """Its message and its nodes stand in the status; the same words are one line of the story."""
    state = heard(heard(waiting(), bad(nodes=(1,))), bad(nodes=(1,)), now=2.0)
    (told, _) = StatusSection.of(rendezvous.status(state, 2.0)).pre_checks

    assert (told.state, told.tries, told.message, told.nodes) == (PreCheckState.CHECKING, 2, "no space", (1,))
    assert [event.detail for event in state.events if event.kind == "pre-check"] == ["my.checks.Disk did not pass: no space"]
    assert state.verdict is None


def test_the_last_time_ends_the_attempt() -> None:
    """A reset may help: other machines."""
    state = heard(waiting(), bad(), last=True)

    assert state.verdict is not None
    assert (state.verdict.reason, state.verdict.message) == (
        "PreCheckFailed",
        "pre-check my.checks.Disk did not pass after 1 tries: no space",
    )
    assert isinstance(answers(state, "0.1")[0], Stop)


@pytest.mark.parametrize(
    ("action", "kind", "said"),
    [
        pytest.param(Action(kind=ActionKind.EVENT, message="look"), "pre-check", "my.checks.Disk: look", id="an event"),
        pytest.param(Action(kind=ActionKind.ABORT, message="enough"), "failed", "ended the job: enough", id="the end"),
        pytest.param(Action(kind=ActionKind.RELAUNCH, node=1), "sent-away", "node 1 on host-1 did not pass", id="a node"),
        pytest.param(
            Action(kind=ActionKind.RELAUNCH, node=7), "pre-check", "node 7, but the job has no such node", id="nobody"
        ),
    ],
)
def test_what_an_operator_wants_is_done(action: Action, kind: str, said: str) -> None:
    """By the names that DLRover has for it."""
    state = heard(waiting(), bad(action))

    assert any(event.kind == kind and said in event.detail for event in state.events)
    assert (state.verdict is not None) == (action.kind is ActionKind.ABORT)
    assert bool(state.away) == (kind == "sent-away")


def test_the_end_that_an_operator_wants_is_final() -> None:
    """No other attempt can help: it is what the supervisor takes for the end of the job."""
    state = heard(waiting(), bad(Action(kind=ActionKind.ABORT)))

    assert state.verdict is not None
    assert state.verdict.reason == "FailNow"


def test_a_node_that_is_to_be_replaced_leaves_and_its_machine_is_kept_off() -> None:
    """As one that did not pass the node check."""
    state = heard(waiting(), bad(Action(kind=ActionKind.RELAUNCH, node=1, message="its disk is full")))
    (incident,) = state.incidents

    assert (incident.answer, incident.id.node, incident.rule) == (Ruling.RETRY_ELSEWHERE, 1, "pre-check my.checks.Disk")
    assert isinstance(answers(state, "1.1")[0], Stop)


def test_where_nobody_replaces_nodes_the_attempt_ends() -> None:
    """Nothing is waited for in vain."""
    state = waiting(replaced(PLAN, node_replacements=0))
    state = heard(state, bad(Action(kind=ActionKind.RELAUNCH, node=1)))

    assert state.verdict is not None
    assert "node replacement is disabled in this job" in state.verdict.message


def test_a_coordinator_that_takes_over_asks_anew_unless_the_attempt_has_trained() -> None:
    """What was found fine is not asked twice either."""
    begun = rendezvous.status(waiting(), 1.0)
    content = rendezvous.status(heard(waiting(), FINE), 1.0)

    assert waits(start(TWO, term=2, previous=begun, registered=(UserHooks(PLAN),)))
    assert not waits(start(TWO, term=2, previous=content, registered=(UserHooks(PLAN),)))


def test_operators_that_cannot_be_asked_end_the_job() -> None:
    """A class that is missing is missing in the next attempt, too."""
    state = capabilities.on_request(waiting(), "user_hooks", Failed(message="health.pre_check_ops: my.checks.Disk: no"), 1.0)

    assert state.verdict is not None
    assert (state.verdict.reason, state.verdict.message) == ("FailNow", "health.pre_check_ops: my.checks.Disk: no")


def test_an_operator_is_told_which_nodes_are_here_and_which_were() -> None:
    """And how long the coordinator has waited."""
    state = rendezvous.disconnected(waiting(), "agent-1.1", 1.0)
    job = job_of(facts(PLAN, capabilities.view(state), {1: "host-1", 5: "host-5"}, 30.0))

    assert [(node.id, node.host, node.status) for node in job.nodes] == [
        (0, "host-0", "Running"),
        (1, "host-1", "Lost"),
        (5, "host-5", "Lost"),
    ]
    assert (job.job_name, job.min_nodes, job.waited) == ("digits", 2, 30.0)


@pytest.mark.parametrize(
    ("operator", "tries", "now", "last"),
    [
        pytest.param(Operator(interval=5.0, limit=3), 1, 0.0, False, id="a second of three"),
        pytest.param(Operator(interval=5.0, limit=3), 2, 0.0, True, id="the third of three"),
        pytest.param(Operator(interval=5.0), 99, 0.0, False, id="no limit of its own"),
        pytest.param(Operator(interval=5.0), 0, 900.0 + SPARE - 5.0, True, id="there is no time for another"),
    ],
)
def test_how_often_it_is_asked(operator: Operator, tries: int, now: float, last: bool) -> None:
    """As often as it says, and for as long as the pending time-out and ten minutes at the most."""
    assert is_last(operator, tries, now, may_ask_until(0.0, 900.0)) == last


# --- The process that loads them --------------------------------------------------------------------------------------------


class Result:
    """As DLRover's."""

    def __init__(self, result: int = 0, result_msg: str = "", abnormal_nodes: object = ()) -> None:
        self.result, self.result_msg, self.abnormal_nodes = result, result_msg, abnormal_nodes


class Written:
    """An operator as its users write it, by what DLRover's base class asks for."""

    @classmethod
    def get_retry_interval_secs(cls) -> int:
        return 7

    def check(self, *args: Any, **kwargs: Any) -> Result:
        self.job = kwargs["job_args"]
        return Result(1, "full", [node for node in self.job.nodes if node.id == 1])

    def failed_actions(self, *args: Any, **kwargs: Any) -> list[object]:
        node = kwargs["abnormal_nodes"][0]
        return [SimpleNamespace(action_type="master_relaunch_worker", node_id=node.id, reason=kwargs["result_msg"])]


class Limited(Written):
    """One of the older interface: it says how often it is asked, and what is done meanwhile."""

    @classmethod
    def get_retry_times(cls) -> int:
        return 2

    def recover_actions(self) -> list[str]:
        return ["no_action"]


class Plain:
    """The least that an operator needs."""

    def check(self) -> bool:
        return True


class Raises:
    def check(self, job_args: object) -> bool:
        raise OSError("no such device")


class Says:
    def check(self, job_args: object) -> str:
        return "fine"


class Wrong:
    get_retry_interval_secs = staticmethod(lambda: -1)

    def check(self) -> bool:
        return True


class NoCheck:
    pass


JOB = {"job_name": "digits", "min_nodes": 2, "max_nodes": 2, "nodes": [{"id": 1, "host": "h", "status": "Running"}]}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's."""
    found = ModuleType("checks_of_job")
    for cls in (Written, Limited, Plain, Raises, Says, Wrong, NoCheck):
        setattr(found, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "checks_of_job", found)


@pytest.mark.argument("pre_check_ops")
def test_a_class_written_for_dlrover_works() -> None:
    """Its interval, its result, its nodes and its actions are read by their names."""
    operator = Loaded("checks_of_job", "Written")
    said = Answer.of(operator.answer(JOB, last=False))

    assert (operator.interval, operator.limit) == (7.0, None)
    assert (said.fine, said.message, said.nodes) == (False, "full", (1,))
    assert said.actions == (Action(kind=ActionKind.RELAUNCH, node=1, message="full"),)


def test_one_that_limits_itself_acts_at_the_last_time_alone() -> None:
    """Before that it recovers."""
    operator = Loaded("checks_of_job", "Limited")

    assert operator.limit == 2
    assert [one.kind for one in Answer.of(operator.answer(JOB, last=False)).actions] == [ActionKind.NOTHING]
    assert [one.kind for one in Answer.of(operator.answer(JOB, last=True)).actions] == [ActionKind.RELAUNCH]


def test_the_least_is_a_check_that_says_yes_or_no() -> None:
    """It need not take what it has no use for."""
    assert Answer.of(Loaded("checks_of_job", "Plain").answer(JOB, last=False)) == Answer(fine=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("Raises", "check raised OSError: no such device", id="it raises"),
        pytest.param(
            "Says",
            "check raised TypeError: the method check() of the pre-check operator returned 'fine'; expected True, False",
            id="it says something else",
        ),
    ],
)
def test_an_operator_that_fails_is_not_content(name: str, said: str) -> None:
    """It is asked again; nothing passes because of a mistake in it."""
    answer = Answer.of(Loaded("checks_of_job", name).answer(JOB, last=False))

    assert (answer.fine, answer.trouble) == (False, True)
    assert answer.message.startswith(said)


@pytest.mark.parametrize(
    ("module_name", "name", "said"),
    [
        pytest.param("no.such", "Disk", "cannot import module no.such: ModuleNotFoundError", id="no module"),
        pytest.param("checks_of_job", "Disc", "module checks_of_job has no class Disc", id="no class"),
        pytest.param("checks_of_job", "__name__", "in module checks_of_job is not a class", id="no class but a name"),
        pytest.param("checks_of_job", "NoCheck", "class NoCheck has no method check()", id="no check"),
        pytest.param(
            "checks_of_job", "Wrong", "get_retry_interval_secs() returned -1; expected 0 or more", id="a wrong interval"
        ),
    ],
)
def test_what_cannot_be_loaded_is_an_error(module_name: str, name: str, said: str) -> None:
    """It names the field, the class and what is wrong; nothing is skipped."""
    with pytest.raises(ConfigError) as caught:
        Loaded(module_name, name)

    assert str(caught.value).startswith(f"health.pre_check_ops: {module_name}.{name}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "name", ["NoPreCheckOperator", "SchedulingPreCheckOperator", "ConnectionPreCheckOperator"], ids=lambda name: name
)
def test_dlrovers_own_operators_are_known_by_their_names(name: str) -> None:
    """DLRover need not be installed."""
    assert "dlrover" not in sys.modules
    assert Loaded(BUILT_IN_MODULE, name).name == f"{BUILT_IN_MODULE}.{name}"


@pytest.mark.parametrize(
    ("strategy", "here", "waited", "result", "actions"),
    [
        pytest.param(1, 1, 10.0, 0, [], id="MIN are here"),
        pytest.param(2, 1, 10.0, 1, ["no_action"], id="all are wanted"),
        pytest.param(1, 0, 10.0, 1, ["no_action"], id="too few, for now"),
        pytest.param(1, 0, 901.0, 1, ["job_abortion"], id="too few, for too long"),
        pytest.param(0, 0, 901.0, 0, [], id="nobody is judged"),
        pytest.param(-1, 0, 901.0, 0, [], id="no check"),
    ],
)
def test_the_scheduling_check_waits_for_nodes(strategy: int, here: int, waited: float, result: int, actions: list[str]) -> None:
    """As many as the strategy for pending nodes wants, for its time-out."""
    nodes = [SimpleNamespace(id=node, status="Running") for node in range(here)]
    job = SimpleNamespace(
        pending_fail_strategy=strategy, pending_timeout=900.0, min_nodes=1, max_nodes=2, nodes=nodes, waited=waited
    )
    operator = SchedulingPreCheckOperator()
    said = operator.check(job)

    assert said.result == result
    assert (operator.failed_actions(said.result_msg, ()) if result else []) == actions


def test_the_connection_check_finds_who_is_out_of_touch() -> None:
    """Whoever came and cannot be heard any more."""
    nodes = [SimpleNamespace(id=0, host="a", status="Running"), SimpleNamespace(id=1, host="b", status="Lost")]
    said = ConnectionPreCheckOperator().check(SimpleNamespace(min_nodes=1, nodes=nodes))

    assert (said.result, [node.id for node in said.abnormal_nodes]) == (1, [1])
    assert ConnectionPreCheckOperator().check(SimpleNamespace(min_nodes=1, nodes=nodes[:1])).result == 0


def test_our_own_operators_are_found_in_the_process_of_the_operators():
    """As soon as it runs, by the names that they have in DLRover."""
    ops = [PreCheckOp(module=BUILT_IN_MODULE, name=name) for name in ("NoPreCheckOperator", "ConnectionPreCheckOperator")]
    done = subprocess.run(host_command(PLAN, ops), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (Exit.OK, "")


CHECK = """
class Disk:
    def check(self, job_args=None):
        return True
"""


@pytest.mark.parametrize(
    ("beside", "code"),
    [pytest.param(True, 0, id="the script is beside it"), pytest.param(False, Exit.CONFIG, id="it is found nowhere")],
)
def test_a_class_beside_the_script_is_found(tmp_path, monkeypatch, capsys, beside, code):
    """From any folder in which the host starts; a missing module is an error that names it."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "my_disk_check.py").write_text(CHECK)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_disk_check", raising=False)
    words = ["--beside", str(folder / "train.py")] if beside else []

    assert main([*words, '[["my_disk_check", "Disk"]]']) == code
    assert ("my_disk_check" in capsys.readouterr().err) is not beside
    sys.modules.pop("my_disk_check", None)


def test_the_folders_of_a_job_come_first_and_once(tmp_path, monkeypatch):
    """A folder that is searched already keeps its place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib/somewhere", str(tmp_path)])

    assert main(["--beside", str(tmp_path / "project" / "train.py"), "[]"]) == 0

    assert sys.path == [str(tmp_path / "project"), "/usr/lib/somewhere", str(tmp_path)]
