"""Sections of optional capabilities: in the record by name, in JSON beside the fixed fields."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rallypoint.wire import codec, sections
from rallypoint.wire.messages import Continue
from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import Section, Sections, build, replaced
from rallypoint.wire.status import JobStatus
from tests.wire.test_codec import FENCE, PLAN, REPORT, STATUS


@pytest.mark.parametrize("record", [PLAN, REPORT, STATUS, Continue(fence=FENCE)], ids=lambda record: type(record).__name__)
def test_unknown_keys_are_kept_and_written_again(record) -> None:
    """So what a neighbouring version or a capability that is not installed here has written is not lost on its way."""
    data = {**json.loads(codec.dumps(record)), "of_another": {"deep": [1, None]}, "flag": True}
    read = codec.from_json(type(record), data)

    assert read.sections.unknown == {"of_another": {"deep": [1, None]}, "flag": True}
    assert json.loads(codec.dumps(read)) == data
    assert json.loads(codec.dumps_lines(read))["flag"] is True
    assert codec.from_json(type(read), json.loads(codec.dumps(read))) == read


def test_unknown_keys_of_what_a_job_reports_are_cleaned() -> None:
    """As all that it reports: no control characters, and no number that JSON lacks."""
    data = {**json.loads(codec.dumps(REPORT)), "of\x1banother": "a\x1bb", "nested": {"a\x00": float("nan")}}
    read = codec.from_json(type(REPORT), data)

    assert "\x1b" not in codec.dumps(read)
    assert "\x00" not in codec.dumps(read)
    assert read.sections.unknown["nested"] == {"a\\x00": "NaN"}


@pytest.mark.parametrize("record", [Plan, JobStatus], ids=lambda record: record.__name__)
def test_no_two_sections_have_a_key_of_one_name(record: type) -> None:
    """Nor one of a fixed field; each key has one owner."""
    keys = sections.flat(record)

    assert not set(keys) & {field.name for field in dataclasses.fields(record)}
    assert set(keys.values()) == set(sections.of_record(record))


def test_every_section_can_be_left_out() -> None:
    """All fields have defaults; a section that equals them is the same as none."""
    for record in (PLAN, REPORT, STATUS):
        for section in sections.of_record(type(record)):
            assert section.of(record) == section()
            assert dataclasses.replace(record, sections=record.sections.having(section())) == record


class Wrong(Section, record="NoRecord", capability="wrong"):
    """A section of a record that does not exist."""


def test_sections_are_a_mapping_by_capability() -> None:
    """What is no registered field is an error where a record is made from flat fields."""
    assert dict(Sections()) == {}
    with pytest.raises(TypeError, match="of_another"):
        build(Plan, name="a", of_another=1)
    with pytest.raises(TypeError, match="of_another"):
        replaced(PLAN, of_another=1)
    assert replaced(PLAN, max_nodes=5).max_nodes == 5
