"""No text of a cluster brings a secret of the job into its record, which the task log, the tab and the XComs show."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from rallypoint.supervision.masking import masked_observation, masked_record
from rallypoint.supervision.observation import CreateError, NodeSeen, NodeState, Observation, Told
from rallypoint.supervision.record import Condition, ConditionType, JobRecord, Phase

SECRET = "s3cr3t-pa55w0rd"

#: Text fields that identify an object.
_NAMES = frozenset({"host", "group"})

T = TypeVar("T")


def quoting(cls: type[T], **fields: Any) -> T:
    """Return a value with the secret in each of its text fields."""
    texts = {"str": f"Invalid value: {SECRET!r}", "tuple[str, ...]": (f"Invalid value: {SECRET!r}",)}
    found = dataclasses.fields(cls)  # type: ignore[arg-type]
    return cls(**{one.name: texts[str(one.type)] for one in found if one.type in texts and one.name not in _NAMES}, **fields)


def mask(text: str) -> str:
    return text.replace(SECRET, "***")


CONDITION = quoting(Condition, type=ConditionType.UNHEALTHY, value=True, at=0.0, clock=0.0)
NODE = quoting(NodeSeen, attempt=1, node=0, incarnation=1, state=NodeState.FAILED, present=True)


def test_each_text_of_an_observation_is_masked() -> None:
    """Fails if a field of an observation shows a secret that an API server or another controller has quoted."""
    seen = quoting(
        Observation,
        nodes=(NODE,),
        coordinators=(NODE,),
        create_errors=(quoting(CreateError, attempt=1, node=0, fatal=True),),
        told=Told(phase=Phase.FAILED, conditions=(CONDITION,), messages=((ConditionType.UNHEALTHY, f"has {SECRET}"),)),
    )

    masked = masked_observation(seen, mask)

    assert SECRET in repr(seen)
    assert SECRET not in repr(masked)
    assert masked.told is not None
    assert masked.told.message(ConditionType.UNHEALTHY) == "has ***"
    assert masked.controller == "Invalid value: '***'"


def test_the_words_of_another_controller_are_masked_in_a_record() -> None:
    """Fails if the record of a role that an older supervisor has stored shows a secret of its conditions."""
    record = JobRecord.new(name="digits", uid="u", digest="d", owner="o", now=0.0)
    record = dataclasses.replace(record, conditions=(CONDITION,), waits_for=f"Unhealthy: {SECRET}")

    assert SECRET not in repr(masked_record(record, mask))
