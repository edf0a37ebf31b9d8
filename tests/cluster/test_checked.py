"""A machine that is broken for everybody who is put there: found before anything trains, and never used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.backends.kubernetes.labels import JOB
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Answer, Cause
from tests.cluster.jobs import submitted
from tests.cluster.sites import ClusterSite

pytestmark = pytest.mark.may_block("the hands of a test read files and kubeconfigs")

#: A probe that fails on one machine, whichever the first of all probes was on.
PROBE = """
import json, os, pathlib, sys
bad, mine = pathlib.Path(os.environ["TRAIL"], "bad"), os.environ["RALLYPOINT_MACHINE"]
own = bad.with_name(f"bad.{os.getpid()}")
own.write_text(mine)
try:
    os.link(own, bad)
except FileExistsError:
    pass
if bad.read_text() == mine:
    sys.exit("uncorrectable ECC error")
print(json.dumps({"compute": 1, "transfer": 1, "moved": 100, "latency": 0.1}))
"""


async def test_a_broken_machine_is_found_and_its_replacement_goes_elsewhere(place: ClusterSite, tmp_path: Path) -> None:
    """The pod there is sent away before the first round, and the next one of its slot keeps off that machine."""
    probe = [place.python, "-c", PROBE]
    spec = place.job(nodes=3, health={"precheck": 1, "precheck_timeout": "20m", "precheck_program": probe})

    async with submitted(place, spec) as job:
        status = await job.trains(ranks=3)
        pods = await place.listed("pods", f"{JOB}={job.name}")
        record = await job.ends()

    bad = (tmp_path / "trail" / "bad").read_text()
    [incident, *_] = [i for i in record.incidents if i.cause is Cause.NODE]
    assert incident.answer is Answer.RETRY_ELSEWHERE
    assert incident.culprit is not None
    assert incident.culprit.host == bad
    assert sorted(m.incarnation for m in status.world) == [1, 1, 2]
    workers = [
        p for p in pods if "rallypoint.dev/node" in p["metadata"]["labels"] and not p["metadata"].get("deletionTimestamp")
    ]
    running = {p["spec"]["nodeName"] for p in workers if p["status"]["phase"] == "Running"}
    assert len(running) == 3
    assert bad not in running
    assert (record.phase, record.attempt, len(record.incidents)) == (Phase.SUCCEEDED, 1, 1)
