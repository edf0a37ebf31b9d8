"""Whatever a job reports becomes something that every reader accepts, and stays what it is from then on."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.supervision.record import JobRecord
from rallypoint.wire import bounds, codec, sanitize
from rallypoint.wire.line import Failed, read_from_worker, write
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.status import JobStatus, Progress
from tests.provider.records import record
from tests.wire.payloads import FLOATS, INTEGERS, TEXTS, VALUES, parsed
from tests.wire.test_codec import CULPRIT, INCIDENT, REPORT, STATUS
from tests.work import growth

DEEP: list[object] = []
for _ in range(5000):
    DEEP = [DEEP]


@given(VALUES)
def test_any_value_becomes_json_that_every_parser_reads(value: object) -> None:
    """Doing it twice changes nothing."""
    cleaned, again = cleanings(value)

    assert again == [cleaned] * 3


@pytest.mark.parametrize("size", ["deep", "wide", "long", "many fields"])
def test_a_value_of_any_size_does(size: str) -> None:
    """Nested, with many items, or one text."""
    values = {
        "deep": DEEP,
        "wide": {"a": list(range(60_000))},
        "long": "x" * 200_000,
        "many fields": dict.fromkeys(range(60_000)),
    }
    cleaned, again = cleanings(values[size])

    assert again == [cleaned] * 3


def cleanings(value: object) -> tuple[object, list[object]]:
    """Return the cleaned value, and what both JSON writers and a second cleaning make of it."""
    cleaned = sanitize.clean(value)
    texts = (json.dumps(cleaned, allow_nan=False), sanitize.dumps(value))
    return cleaned, [*map(parsed, texts), sanitize.clean(cleaned)]


@given(TEXTS)
def test_a_text_without_what_somebody_refuses_stays_as_it_is(text: str) -> None:
    """Tabs and line breaks are text; the rest of the control characters is shown by its escape."""
    cleaned = sanitize.clean_text(text)

    assert not any(0xD800 <= ord(c) <= 0xDFFF or (ord(c) < 32 and c not in "\t\n\r") or 0x7F <= ord(c) <= 0x9F for c in cleaned)
    assert not set(sanitize.one_line(text)) & set("\t\n\r")
    if cleaned == text:
        assert text.isprintable() or any(c in "\t\n\r" or not c.isprintable() for c in text)


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        pytest.param(math.nan, "NaN", id="nan"),
        pytest.param([math.inf, -math.inf], ["Infinity", "-Infinity"], id="infinite"),
        pytest.param(-0.0, -0.0, id="zero"),
        pytest.param(1e18, 1e18, id="a large double"),
        pytest.param([1e19, -1e308], ["1e+19", "-1e+308"], id="doubles that come back as integers"),
        pytest.param(2**64 - 1, 2**64 - 1, id="64 bits"),
        pytest.param(2**64, "18446744073709551616", id="65 bits"),
        pytest.param(10**5000, "… [an integer of 16610 bits]", id="too large to convert"),
        pytest.param("a\x00b\x1b[31m", "a\\x00b\\x1b[31m", id="control characters"),
        pytest.param("\udc80", "\\udc80", id="half a pair"),
        pytest.param({"a\x00": 1, "a\\x00": 2}, {"a\\x00": 1, "a\\x00 (2)": 2}, id="two keys stay two"),
        pytest.param({1: (2,)}, {"1": [2]}, id="keys and tuples"),
        pytest.param({"__classname__": 1, "_one": 2}, {"\\x5f_classname__": 1, "_one": 2}, id="keys of serializers"),
        pytest.param(b"\xff", "b'\\xff'", id="bytes"),
        pytest.param("x" * 70_000, "x" * 65_511 + "… [cut: 70000 characters]", id="long"),
    ],
)
def test_the_policy_by_example(value: object, cleaned: object) -> None:
    """The table of docs/reference/payloads.md."""
    assert sanitize.clean(value) == cleaned


def test_what_is_cut_says_so() -> None:
    """Nesting and numbers of items are bounded, with a mark that tells what is missing."""
    assert "… [cut: nested too deep]" in sanitize.dumps(DEEP)
    assert sanitize.clean(list(range(9)), items=4) == [0, 1, 2, 3, "… [cut: 9 items, 4 of them here]"]
    assert sanitize.clean({"a": [1, 2], "b": 3}, items=2) == {
        "a": [1, "… [cut: 2 items, 1 of them here]"],
        "…": "… [cut: 2 fields, 1 of them here]",
    }


@given(st.dictionaries(TEXTS, FLOATS, max_size=5), TEXTS, VALUES)
def test_reports_statuses_and_records_are_json_and_come_back(metrics: dict[str, float], text: str, result: object) -> None:
    """Written, read and written again they are the same, and equal as values: a NaN does not look like news each time."""
    culprit = dataclasses.replace(CULPRIT, error=text, host=text, log_tail=(text, text))
    incident = dataclasses.replace(INCIDENT, reason=text, culprit=culprit)
    progress = Progress(step=1, metrics=metrics, checkpoint=text)
    worker = dataclasses.replace(REPORT.workers[0], metrics=metrics, checkpoint=text)
    report = dataclasses.replace(REPORT, reason=text, result=result, failures=(culprit,), workers=(worker,))
    status = dataclasses.replace(STATUS, progress=progress, incidents=(incident,), result=result)
    for word in (report, status):
        read = codec.loads(type(word), codec.dumps(word))
        parsed(codec.dumps(word))
        assert codec.dumps(read) == codec.dumps(word)
        assert codec.loads(type(word), codec.dumps(word)) == read
    kept = dataclasses.replace(record(), progress=progress, incidents=(incident,), result=result)
    parsed(kept.to_json())
    again = JobRecord.from_json(kept.to_json())
    assert again == JobRecord.from_json(again.to_json())
    assert again.to_json() == kept.to_json()


def test_a_metric_that_is_no_number_stays_a_float_in_a_status() -> None:
    """Only its JSON is a text: whoever reads it has the number again."""
    status = dataclasses.replace(STATUS, progress=Progress(step=1, metrics={"loss": math.nan, "best": -math.inf}))

    text = codec.dumps(status)
    metrics = codec.loads(JobStatus, text).progress.metrics

    assert parsed(text)["progress"]["metrics"] == {"loss": "NaN", "best": "-Infinity"}
    assert math.isnan(metrics["loss"])
    assert metrics["best"] == -math.inf


def test_the_bare_words_of_earlier_versions_are_read() -> None:
    """A record that was written before this policy still is one."""
    kept = dataclasses.replace(record(), progress=Progress(step=1, metrics={"loss": math.nan}))
    old = kept.to_json().replace('"NaN"', "NaN")

    assert '"metrics": {"loss": NaN}' in old
    assert JobRecord.from_json(old) == JobRecord.from_json(kept.to_json())


@given(INTEGERS)
def test_an_integer_of_a_message_has_at_most_64_bits(number: int) -> None:
    """A larger one is refused by its name, whatever its size; a time takes it within its own limits."""
    fields = {**codec.to_json(REPORT), "sequence": number}
    if sanitize.INT_MIN <= number <= sanitize.INT_MAX:
        assert codec.from_json(AgentReport, fields).sequence == number
    else:
        with pytest.raises(codec.WireError, match=r"sequence: 'an integer of .* bits' is not allowed"):
            codec.from_json(AgentReport, fields)
    try:
        assert codec.from_json(Progress, {"at": number}).at == float(number)
    except codec.WireError as error:
        assert abs(number) > bounds.TIME[1]
        assert "at: " in str(error)  # noqa: PT017


@pytest.mark.parametrize("text", ["[" * 100_000, '{"job": ' + "[" * 900 + "]" * 900 + "}", '{"a":' * 50_000])
def test_json_that_is_nested_without_end_is_refused_in_a_sentence(text: str) -> None:
    """As a message, as a status and as a worker's line."""
    for read in (lambda: codec.loads(AgentReport, text), lambda: read_from_worker(text.encode())):
        with pytest.raises(codec.WireError) as caught:
            read()
        assert len(str(caught.value)) < 3000


@given(TEXTS)
def test_what_a_worker_says_on_its_line_is_cleaned_when_it_is_read(text: str) -> None:
    """An error travels from there into incidents, logs and exceptions."""
    word = read_from_worker(write(Failed(round=1, error=text)))

    assert word == Failed(round=1, error=sanitize.clean_text(text))


def test_equal_keys_are_told_apart_without_counting_from_the_start_for_each():
    """Thousands of long keys that differ only after the limit kept each reader of the job busy for minutes."""

    def cleaning(count):
        value = {"k" * 600 + str(number): number for number in range(count)}
        return lambda: sanitize.clean(value)

    cleaned = sanitize.clean({"k" * 600 + str(number): number for number in range(200)})
    assert sorted(cleaned.values()) == list(range(200))
    assert sanitize.clean(cleaned) == cleaned
    assert _compared(2000) < 6 * _compared(500)
    assert growth(cleaning, 200) < 6


def _compared(count: int) -> int:
    """Return how often a key is looked up while `count` keys that become equal are cleaned."""

    class Taken(dict[str, None]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            Taken.asked += 1
            return super().__contains__(key)

    taken, numbers = Taken(), dict[str, int]()
    for _ in range(count):
        taken[sanitize._fresh("k", taken, numbers)] = None
    return Taken.asked


def test_a_key_that_looks_like_a_number_of_another_is_kept():
    """Its number is passed over."""
    cleaned = sanitize.clean({"k" * 512 + "a": 1, "k" * 504 + " (2)": 2, "k" * 512 + "b": 3, "k" * 512 + "c": 4})
    assert sorted(cleaned.values()) == [1, 2, 3, 4]
