"""What a job reports is stored by a real PostgreSQL as JSON, as JSONB and as text, and comes back as it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given

from rallypoint.provider.claim import End, Ending
from rallypoint.provider.delivery import ending_event
from rallypoint.wire import sanitize
from tests.airflow.database import database
from tests.wire.payloads import FLOATS, TEXTS, VALUES, parsed

STORE = sqlalchemy.text("select cast(:value as jsonb), cast(:value as json), cast(:text as text)")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlalchemy.Connection]:
    """A server of its own; each statement is a transaction."""
    folder: Path = tmp_path_factory.mktemp("database")
    with database(folder) as made:
        if not made.url.startswith("postgresql"):
            pytest.skip(made.version)
        engine = sqlalchemy.create_engine(made.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connected:
            yield connected
        engine.dispose()


def stored(connection: sqlalchemy.Connection, value: Any) -> tuple[Any, Any, str]:
    """Store the JSON text of a value in each of the three kinds of columns that Airflow has."""
    text = json.dumps(value, allow_nan=False)
    binary, plain, kept = connection.execute(STORE, {"value": text, "text": text}).one()
    return binary, plain, kept


def test_the_database_refuses_what_a_script_may_report(connection: sqlalchemy.Connection) -> None:
    """Otherwise this file would find nothing."""
    for text in ('{"loss": NaN}', '"\\u0000"', '"\\ud800"'):
        with pytest.raises(sqlalchemy.exc.DataError):
            connection.execute(STORE, {"value": text, "text": ""})


def test_any_value_is_stored(connection: sqlalchemy.Connection) -> None:
    """Cleaned by itself, and inside of the event of a trigger."""

    @given(VALUES, FLOATS, TEXTS)
    def check(value: object, number: float, text: str) -> None:
        ended = Ending(end=End.FAILED, name="digits", summary={text: number, "result": value}, text=text)
        for cleaned in (sanitize.clean(value), ending_event(ended)):
            binary, plain, kept = stored(connection, cleaned)
            assert plain == parsed(kept) == cleaned
            assert as_floats(binary) == as_floats(cleaned)
            # The API server hands a stored event to a worker as msgpack, which has no larger integers.
            assert sanitize.clean(binary) == binary

    check()


def as_floats(value: Any) -> Any:
    """JSONB keeps decimal digits, not doubles: 3.864231208592318e+16 comes back as an integer that makes the same double."""
    return json.loads(json.dumps(value), parse_int=float)


def test_any_text_is_stored(connection: sqlalchemy.Connection) -> None:
    """As a plain column takes it: the text of an exception, a name."""

    @given(TEXTS)
    def check(text: str) -> None:
        cleaned = sanitize.clean_text(text)
        assert connection.execute(sqlalchemy.text("select cast(:text as text)"), {"text": cleaned}).scalar_one() == cleaned

    check()
