"""What is read of the pods of simple roles, and what is kept of their lives."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.backends.kubernetes.labels import Part, PodLabels
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.lives import LIVES_KEY, Life, Lives, MadePod, read_lives, write_lives
from rallypoint.backends.kubernetes.roles.seen import seen
from rallypoint.backends.kubernetes.roles.units import KubernetesUnits
from rallypoint.backends.kubernetes.watching.views import Container, HostView, PodView, Running, Terminated, Waiting
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend

KEY = UnitKey(role="a", attempt=1, reset=0, index=0, incarnation=1)
BACK_OFF = Waiting(reason="CrashLoopBackOff", message="")


def ended(code: int, reason: str = "Error") -> Terminated:
    return Terminated(code=code, reason=reason, message="")


def pod(
    *containers: Container, lives: str = "a-0=0.1", phase: str = "Running", deleting: bool = False, host: str = ""
) -> PodView:
    its = PodLabels(job="j", uid="u", part=Part.UNIT, attempt=1, node=0, incarnation=1, place="a")
    return PodView(
        name="p",
        uid="1",
        version="1",
        labels=its,
        phase=phase,
        containers=containers,
        deleting=deleting,
        lives=lives,
        host=host,
    )


def test_what_ended_says_when():
    """The kubelet's times, from which the conductor knows what failed first."""
    first = dataclasses.replace(ended(3), at=100.0)
    again = Container(name="a-0", state=dataclasses.replace(ended(1), at=200.0), restarts=1, last=first)

    assert [unit.ended_at for unit in seen((pod(again),), Lives(), ())] == [100.0, 200.0]


@pytest.mark.parametrize(
    ("code", "message", "result"),
    [
        pytest.param(0, '{"score": 0.5}', {"score": 0.5}, id="a result"),
        pytest.param(0, "", None, id="nothing"),
        pytest.param(0, "the last line of a log", None, id="another message"),
        pytest.param(0, '{"score": NaN}', {"score": "NaN"}, id="a number that JSON does not have"),
        pytest.param(0, '{"cut": "of', None, id="cut off by the kubelet"),
        pytest.param(0, "[" * 4096, None, id="deep"),
        pytest.param(1, '{"score": 0.5}', None, id="of an instance that failed"),
    ],
)
def test_a_result_is_the_termination_message(code, message, result):
    """Of an instance that succeeded; what cannot be read is none."""
    state = Terminated(code=code, reason="Completed", message=message)

    assert one(pod(Container(name="a-0", state=state))).result == result


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("step 1\nstep 2\n", "", id="a log without an exception"),
        pytest.param("Traceback (most recent call last):\n  File\nKeyError: 'x'\n", ": KeyError: 'x'", id="a traceback"),
        pytest.param("pkg.errors.SomeError\nlater output\n", ": pkg.errors.SomeError", id="output after it"),
        pytest.param('{"score": 0.5}', "", id="a result"),
        pytest.param("    raise ValueError(x)\n", "", id="a line of code"),
        pytest.param("ValueError: \x1b[31mred", ": ValueError: \\x1b[31mred", id="control characters"),
        pytest.param("ValueError: " + "x" * 4000, ": ValueError: " + "x" * 488, id="a long line"),
    ],
)
def test_an_exception_is_the_cause_of_an_end(message, reason):
    """As on the local backend, which reads it from stderr; here it is in the end of the log."""
    state = Terminated(code=1, reason="Error", message=message)

    told = one(pod(Container(name="a-0", state=state))).reason
    assert told[: len("a 0 exited with code 1") + 500].startswith("a 0 exited with code 1" + reason[:400])
    assert len(told) <= len("a 0 exited with code 1: ") + 500
    assert (told == "a 0 exited with code 1") is (not reason)


def one(pod_: PodView, lives: Lives | None = None) -> UnitSeen:
    (found,) = seen((pod_,), lives or Lives(), ())
    return found


@pytest.mark.parametrize(
    ("found", "state", "present", "reason"),
    [
        pytest.param(pod(phase="Pending"), UnitState.RUNNING, True, "", id="not begun"),
        pytest.param(pod(Container(name="a-0", state=Running())), UnitState.RUNNING, True, "", id="runs"),
        pytest.param(
            pod(Container(name="a-0", state=ended(0)), phase="Succeeded"),
            UnitState.SUCCEEDED,
            False,
            "a 0 exited with code 0",
            id="well",
        ),
        pytest.param(
            pod(Container(name="a-0", state=ended(3)), phase="Failed"),
            UnitState.FAILED,
            False,
            "a 0 exited with code 3",
            id="exit",
        ),
        pytest.param(
            pod(Container(name="a-0", state=ended(137)), phase="Failed"),
            UnitState.FAILED,
            False,
            "a 0 was killed by SIGKILL",
            id="signal",
        ),
        pytest.param(
            pod(Container(name="a-0", state=ended(137, "OOMKilled")), phase="Failed"),
            UnitState.FAILED,
            False,
            "a 0 was killed because it used more memory than its limit",
            id="out of memory",
        ),
        pytest.param(
            pod(Container(name="a-0", state=ended(0)), deleting=True),
            UnitState.LOST,
            False,
            "a 0: its pod was deleted",
            id="drained",
        ),
        pytest.param(
            dataclasses.replace(pod(phase="Failed"), reason="Evicted", message="The node was low on memory"),
            UnitState.LOST,
            False,
            "a 0: The node was low on memory",
            id="evicted",
        ),
        pytest.param(
            pod(Container(name="a-0", state=Waiting(reason="InvalidImageName", message="bad name")), phase="Pending"),
            UnitState.FAILED,
            True,
            "a 0 does not start: bad name",
            id="no image",
        ),
    ],
)
def test_a_life_is_as_its_container_says(found, state, present, reason):
    """What somebody ended with its pod is lost, whatever its exit code."""
    assert dataclasses.replace(one(found), exit_code=None) == UnitSeen(key=KEY, state=state, present=present, reason=reason)


@pytest.mark.parametrize(("code", "told"), [(0, 0), (3, 3), (137, -9)])
def test_an_exit_code_is_told_as_that_of_a_process(code, told):
    """Rules for exits and the story of the job read it; a signal is negative."""
    assert one(pod(Container(name="a-0", state=ended(code)), phase="Failed")).exit_code == told


def test_a_container_that_was_restarted_tells_of_its_lives():
    """While the kubelet waits the next one has not begun."""
    waiting = pod(Container(name="a-0", state=BACK_OFF, last=ended(3)))
    again = pod(Container(name="a-0", state=Running(), restarts=1, last=ended(3)))

    second = dataclasses.replace(KEY, incarnation=2)
    failed = UnitSeen(key=KEY, state=UnitState.FAILED, present=False, reason="a 0 exited with code 3", exit_code=3)
    assert seen((waiting,), Lives(), ()) == (failed,)
    assert seen((again,), Lives(), ()) == (failed, UnitSeen(key=second, state=UnitState.RUNNING, present=True))


def test_a_life_that_the_kubelet_has_yet_to_start_is_not_lost():
    """It was noted, and its pod is there; once the pod is gone it is lost."""
    second = dataclasses.replace(KEY, incarnation=2)
    made = MadePod(attempt=1, number=1, made=True, lives={"a-0": Life()})
    lives = Lives().with_instances(second).with_pod("a-0", made)
    waiting = pod(Container(name="a-0", state=BACK_OFF, last=ended(3)))

    assert [unit.key for unit in seen((waiting,), lives, ())] == [KEY]
    assert seen((), lives, ()) == (
        UnitSeen(key=second, state=UnitState.LOST, present=False, reason="a 0: its pod was deleted"),
    )


class _Role(str):
    """A name of a role; counts how often it is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other):
        type(self).compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def _ended_instances(number):
    """Return the pods of `number` instances that have ended, and the stored lives of these instances."""
    success = Container(name="", state=dataclasses.replace(ended(0), reason="Completed"))
    pods = [
        dataclasses.replace(
            pod(dataclasses.replace(success, name=f"a-{n}"), lives=f"a-{n}=0.1", phase="Succeeded"), name=f"p{n}", uid=f"{n}"
        )
        for n in range(number)
    ]
    made = {f"a-{n}": MadePod(attempt=1, number=1, made=True, lives={f"a-{n}": Life()}) for n in range(number)}
    keys = {f"a-{n}": dataclasses.replace(KEY, role=_Role("a"), index=n) for n in range(number)}
    return pods, Lives(instances=keys, pods=made)


def test_instances_that_have_ended_are_compared_with_themselves_alone():
    """Fails if each is compared with all others: with 10,000 instances, the event loop stood still for ten seconds."""
    pods, lives = _ended_instances(300)
    _Role.compared = 0

    found = seen(pods, lives, ())

    assert len(found) == 300
    assert all(unit.state is UnitState.SUCCEEDED for unit in found)
    assert _Role.compared < 30 * 300


async def test_the_pods_of_roles_are_looked_at_in_a_thread():
    """Fails if a job with thousands of instances delays other triggers of the process."""
    pods, lives = _ended_instances(3)
    found = {"metadata": {"resourceVersion": "1"}, "data": {LIVES_KEY: lives.to_json()}}

    async def get(kind, name):
        return found

    cache = SimpleNamespace(pods_of=lambda uid: pods, hosts=())
    cluster = SimpleNamespace(fresh=True, cache=cache, get=get)
    ref = JobRef(name="job", uid="u", namespace="n", owner="o")
    parts = SimpleNamespace(cluster=cluster, store=SimpleNamespace(ref=lambda record: ref))

    async def its():
        return parts

    on_loop = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name in ("_of_pod", "from_json"):
            on_loop.append(frame.f_code.co_name)

    units: Any = KubernetesUnits(cast("Backend", None), its, namespace="n")
    sys.setprofile(note)  # of this thread, which is that of the event loop
    try:
        observed = await units.observe(SimpleNamespace(conductor=None, uid="u", name="job"), None)
    finally:
        sys.setprofile(None)

    assert len(observed) == 3
    assert on_loop == []


def test_a_pod_that_was_not_created_yet_is_not_lost():
    """A supervisor that was stopped between the two writes creates it again."""
    lives = Lives().with_instances(KEY).with_pod("a-0", MadePod(attempt=1, number=1, lives={"a-0": Life()}))

    assert seen((), lives, ()) == ()


def test_an_unreachable_machine_loses_what_may_still_run():
    """It stays present until the pod is gone."""
    host = HostView(name="m", uid="h", version="1", ready=None)

    (found,) = seen((pod(Container(name="a-0", state=Running()), host="m"),), Lives(), (host,))

    assert (found.state, found.present) == (UnitState.LOST, True)


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?-[0-9]{1,3}", fullmatch=True)
LIFE = st.builds(Life, reset=st.integers(0, 9), incarnation=st.integers(1, 99))


@given(st.dictionaries(NAMES, LIFE, max_size=5))
def test_lives_of_a_pod_are_read_as_they_were_written(lives):
    """Whatever the names of the roles are."""
    assert read_lives(write_lives(lives)) == lives


@given(st.dictionaries(NAMES, LIFE, max_size=5), st.booleans())
def test_what_is_kept_is_read_as_it_was_written(lives, made):
    """Instances, and pods with their lives."""
    keys = [
        UnitKey(
            role=name.rpartition("-")[0],
            index=int(name.rpartition("-")[2]),
            attempt=2,
            reset=it.reset,
            incarnation=it.incarnation,
        )
        for name, it in lives.items()
    ]
    kept = Lives().with_instances(*keys).with_pod("x-0", MadePod(attempt=2, number=7, made=made, lives=lives))

    assert Lives.from_json(kept.to_json()) == kept


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"instances": 1, "pods": {}}', '{"instances": {"a": [1]}, "pods": {}}', '"x"', "[" * 100_000),
        '{"instances": {"a-0": [1e999, 1, 1]}, "pods": {}}',
    ],
    ids=["cut", "a list", "a number", "short", "a text", "deep", "infinite"],
)
def test_what_is_no_record_of_lives_is_an_error(text):
    """And not an empty one, with which every instance would be started again."""
    with pytest.raises(ValueError, match=r"value of lives\.json in the ConfigMap of .*; restore the previous value"):
        Lives.from_json(text)


@given(st.text(max_size=30))
def test_an_annotation_that_somebody_wrote_is_read_without_an_error(text):
    """What is no life of an instance is left out."""
    assert all(life.incarnation >= 0 for life in read_lives(text).values())
