"""What OpenLineage is told of a job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from airflow.sdk import Asset

from rallypoint.operators.reporting import open_library
from rallypoint.provider.errors import TrainingFailed
from rallypoint.provider.lineage import FACET, Library, lineage_of, place_of_file
from tests.operators.tasks import FAILURE, operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context


@dataclasses.dataclass
class Told:
    """As much of an `OperatorLineage` as is read; datasets and facets are the words that they were made of."""

    outputs: list[Any]
    run_facets: dict[str, Any]


WORDS = Library(lineage=Told, dataset=dict, facet=dict)


def finished(verdict, **arguments):
    """Return an operator whose job is over."""
    op = operator(FakeBackend(verdict=verdict), **arguments)
    try:
        op.execute(context(FakeTask(), outlet_events={asset: AnyEvent() for asset in arguments.get("outlets", ())}))
    except TrainingFailed:
        assert verdict is FAILURE
    return op


@dataclasses.dataclass
class AnyEvent:
    """As much of an outlet's event as is written to."""

    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        pytest.param("/data/run/step-300", ("file", "/data/run/step-300"), id="a path"),
        pytest.param("file:///data/run", ("file", "/data/run"), id="the address of a path"),
        pytest.param("s3://models/run/step-300", ("s3://models", "run/step-300"), id="an object store"),
        pytest.param("run/step-300", ("file", "run/step-300"), id="a relative path"),
        pytest.param("/data/100%/a#b?c", ("file", "/data/100%/a#b?c"), id="a path that looks like an address"),
        pytest.param("s3://key:secret@models/run", ("s3://models", "run"), id="credentials"),
        pytest.param("http://[::1", ("file", "http://[::1"), id="no address"),
    ],
)
def test_a_checkpoint_is_named_as_openlineage_names_files(path, place):
    """Whatever reads it afterwards finds it under the same name."""
    assert place_of_file(path) == place


def test_the_checkpoint_is_what_a_job_has_made():
    """And the facet tells how it went."""
    op = finished(SUCCESS)

    told = lineage_of(op.finished_with, library=WORDS)

    facet = told.run_facets[FACET]
    assert told.outputs == [{"namespace": "file", "name": "/ckpt/step-300"}]
    assert (facet["job"], facet["phase"], facet["step"], facet["metrics"]) == (
        op.finished_with["job"],
        "Succeeded",
        300,
        {"accuracy": 0.97},
    )
    assert "result" not in facet  # what rank 0 returned is its author's, and may be large


def test_a_job_that_was_deleted_tells_nothing():
    """There is no summary of it."""
    told = lineage_of({}, library=WORDS)

    assert (told.outputs, told.run_facets) == ([], {})


def test_without_openlineage_nothing_is_told():
    """It is nobody's must."""
    if open_library() is not None:
        pytest.skip("OpenLineage is installed")
    assert finished(SUCCESS).get_openlineage_facets_on_complete(None) is None


@pytest.mark.parametrize(
    ("verdict", "arguments", "outputs"),
    [
        pytest.param(SUCCESS, {}, ["/ckpt/step-300"], id="succeeded"),
        pytest.param(FAILURE, {}, ["/ckpt/step-300"], id="failed"),
        pytest.param(
            SUCCESS, {"outlets": [Asset("file:///models/best")]}, ["/models/best"], id="its author names what it makes"
        ),
    ],
)
def test_airflows_own_extractor_takes_it(verdict, arguments, outputs):
    """As the provider does it when a task ends: the real classes, through to the event's JSON."""
    manager = pytest.importorskip("airflow.providers.openlineage.extractors.manager")
    serde = pytest.importorskip("openlineage.client.serde")
    from airflow.utils.state import TaskInstanceState

    op = finished(verdict, **arguments)
    state = TaskInstanceState.SUCCESS if verdict is SUCCESS else TaskInstanceState.FAILED
    run = dataclasses.make_dataclass("Run", [("run_id", str)])("manual__1")

    told = manager.ExtractorManager().extract_metadata(run, op, state, FakeTask())

    assert [one.name for one in told.outputs] == outputs
    assert f'"job": "{op.finished_with["job"]}"' in serde.Serde.to_json(told.run_facets[FACET])
