"""Each number and each collection of every class that is read from JSON has limits."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import time
import types
import typing
from typing import Any

import pytest

import rallypoint
from rallypoint.backends.contract import LogLine, Pulse, Tail
from rallypoint.backends.local.devices import assigned
from rallypoint.backends.local.heartbeat import Heartbeat
from rallypoint.backends.local.node import Shim
from rallypoint.backends.roles import policy_of
from rallypoint.checkpoint.manifest import Manifest
from rallypoint.report.page.values import Page
from rallypoint.supervision import conductor, role_records
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import UnitSeen, UnitState
from rallypoint.wire import bounds, codec, line, messages
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.failover import Failure
from rallypoint.wire.fields import hints_of
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Plan
from rallypoint.wire.readers import Unexpected, field_reader, limits_of
from rallypoint.wire.role_plans import DEVICES, NODES, UNITS, RolePlan, role_plan, role_plans
from rallypoint.wire.roles import RoleEntry
from rallypoint.wire.status import JobStatus
from rallypoint.wire.unit_files import HostReady, UnitStart, UnitStarted
from rallypoint.wire.wish import Wish

#: What is read from files, annotations and connections that a script can write to.
READ = (JobRecord, JobStatus, Plan, RolePlan, Pulse, LogLine, Tail, Observation, Page, Size, Wish, Endpoint, Failure, Manifest)
READ_BY_AGENTS = (RoleEntry, UnitStart, *messages.__dict__.values(), *line.__dict__.values())

#: Numbers that may be larger than any size: they are compared, shown and added, and nothing is allocated or repeated by them.
ONLY_COMPARED = {
    *("step", "steps", "last_step", "resumed_step", "resumed_from", "steps_lost", "fault_step", "behind", "replica_every"),
    *("size", "memory", "limit", "ceiling", "replica_limit", "tuning_memory", "moved", "output"),  # bytes
    *("at", "since", "step_at", "waited", "left", "operation", "out_time", "window", "beat", "least", "most"),  # times, places
    *("count", "faults", "refilled", "sequence", "unseen", "number", "called", "collectives", "out_steps", "life", "liveness"),
    *("mark", "pid", "incarnation"),
    *("max_restarts", "node_replacements", "retry_limit", "max_hangs", "no_progress_limit", "coordinator_replacements"),
    *("fault_retry_times", "backoff_limit", "pending_rounds"),  # budgets
}


def classes() -> list[type]:
    """Return every dataclass that is read, those in others included."""
    for module in pkgutil.walk_packages(
        [str(path) + "/capabilities" for path in rallypoint.__path__], "rallypoint.capabilities."
    ):
        if module.name.endswith(".wire"):
            importlib.import_module(module.name)  # they register sections
    found: dict[type, None] = {}

    def walk(kind: Any) -> None:
        for arm in typing.get_args(kind):
            walk(arm)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in found:
            found[kind] = None
            for hint in hints_of(kind).values():
                walk(hint)

    for kind in (*READ, *READ_BY_AGENTS):
        walk(kind)
    return list(found)


def refuses(hint: Any, limits: Any, value: Any) -> bool:
    try:
        field_reader(hint, lenient=False, reported=False, limits=limits)(value)
    except Unexpected:
        return True
    return False


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_number_and_collection_of_a_class_has_limits(kind: type) -> None:
    """A number that may be larger than a size is named above, with why; `limits` names no field that is not there."""
    hints = hints_of(kind)
    for name, hint in hints.items():
        limits = limits_of(kind, name)
        bare = [arm for arm in typing.get_args(hint) or [hint] if arm is not types.NoneType]
        if int in bare and typing.get_origin(hint) not in (tuple, dict):
            large = bounds.COUNT[1] + 1
            named = limits.own is not None and limits.own[1] <= 1 << 30  # of ranks
            assert named or refuses(hint, limits, large) or name in ONLY_COMPARED, f"{kind.__name__}.{name}"
            assert refuses(hint, limits, 1 << 64)
        elif typing.get_origin(hint) in (tuple, dict):
            many = range(bounds.VALUES + 1)
            value = list(many) if typing.get_origin(hint) is tuple else dict.fromkeys(map(str, many), 0)
            assert refuses(hint, limits, value), f"{kind.__name__}.{name}"
            if int in bare:
                assert refuses(hint, limits, [1 << 64] if typing.get_origin(hint) is tuple else {"a": 1 << 64})
    declared = {name.removesuffix("[]") for name in getattr(kind, "limits", {})}
    assert declared <= {*hints}, f"{kind.__name__}.limits names unknown fields"


def plan(*roles: dict[str, Any]) -> Plan:
    return Plan(name="j", role="", min_nodes=1, max_nodes=1, entry="script", entrypoint="x", roles=roles)  # type: ignore[arg-type]


def role(**changed: Any) -> dict[str, Any]:
    return {"name": "judge", "elastic": False, "total": 4, **changed}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"total": 400_000_000}, "total: 400000000 is not allowed; expected a number from 0 to 999999"),
        (
            {"total": UNITS + 1},
            f"roles: '{UNITS + 1} instances' is not allowed; expected at most {UNITS} instances",
        ),
        ({"total": -1}, "total: -1 is not allowed"),
        ({"name": "**/x"}, "name: '**/x' is not allowed; expected letters, digits"),
        ({"name": "/etc"}, "name: '/etc' is not allowed"),
        ({"place": "../x"}, "place: '../x' is not allowed"),
        ({"per_group": 0}, "per_group: 0 is not allowed; expected a number from 1 to 999999"),
        ({"devices": "30000000"}, "devices: '30000000' is not allowed; expected a number of devices such as 2 or 1/2"),
        ({"devices": "1/0"}, "devices: '1/0' is not allowed"),
        ({"devices": "1e999999"}, "devices: '1e999999' is not allowed"),
        ({"devices": "1" * 14}, "expected a text of at most 13 characters"),
        (
            {"devices": "999999"},
            f"roles: '3999996 devices' is not allowed; expected at most {DEVICES} devices in all roles together",
        ),
    ],
)
def test_a_role_with_hostile_numbers_is_refused(changed: dict[str, Any], text: str) -> None:
    """Its script can write them into its plan, and the trigger of its task reads it."""
    for read in (
        lambda: role_plans(plan(role(**changed))),
        lambda: role_plan(plan(role(**changed)), changed.get("name", "judge")),
    ):
        with pytest.raises(codec.WireError) as refused:
            read()
        assert text in str(refused.value)


def test_many_roles_are_refused_together() -> None:
    """Each of them alone is small enough."""
    with pytest.raises(codec.WireError, match="at most 16384 instances"):
        role_plans(plan(role(total=UNITS), role(name="other")))
    for nodes in ({"total": NODES}, {"total": 1, "plan": {"max_nodes": NODES}}):
        with pytest.raises(codec.WireError, match="at most 16384 nodes in all elastic roles together"):
            role_plans(plan(role(elastic=True, **nodes), role(elastic=True, name="other")))
    fields = codec.to_json(plan()) | {"roles": [role()] * 257}
    with pytest.raises(codec.WireError, match="collection of 257"):
        codec.loads(Plan, json.dumps(fields))


@pytest.mark.parametrize("per_group", [1, UNITS])
def test_the_largest_roles_are_conducted_in_time_proportional_to_their_instances(per_group: int) -> None:
    """Devices are assigned, instances started, and all of them succeed or fail in one turn."""
    read = plan(role(total=UNITS, per_group=per_group, devices="3/5"))
    policy = policy_of(read)
    began = time.process_time()
    assert len(assigned(role_plans(read))) == UNITS
    started = conductor.conduct(conductor.new_record(policy), (), policy, 1.0)
    assert len(started.actions) == UNITS
    for state in (UnitState.SUCCEEDED, UnitState.FAILED):
        seen = tuple(UnitSeen(key=action.key, state=state, present=False) for action in started.actions)
        ended = conductor.conduct(started.record, seen, policy, 2.0)
        assert ended.record.phase is not role_records.Phase.RUNNING or state is UnitState.FAILED
    assert time.process_time() - began < 8.0


@pytest.mark.parametrize("kind", [Heartbeat, Shim, HostReady, UnitStarted], ids=lambda kind: kind.__name__)
def test_a_process_of_a_machine_that_runs_for_years_can_be_read(kind: Any) -> None:
    """Its id is the largest that Linux gives, and its start a year after that of the kernel, at 1,000 ticks per second."""
    values = {"pid": 1 << 22, "start_ticks": 366 * 86_400 * 1000, "counter": 366 * 86_400}
    texts: dict[str, Any] = {
        name: values.get(name, [] if name == "command" else 1 if name in {"attempt", "started_at"} else "")
        for name in hints_of(kind)
    }

    read = codec.loads(kind, json.dumps(texts))

    assert (read.pid, read.start_ticks) == (values["pid"], values["start_ticks"])
