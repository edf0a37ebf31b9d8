"""`rallypoint plan` shows the retries in force where they exceed what a job file may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rallypoint.cli.main import main

MINDCLUSTER = """\
name: counter
entrypoint: train.py
profile: mindcluster
labels: {fault-scheduling: grace, fault-retry-times: "%d"}
"""

APPWRAPPER = """\
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata:
  name: counter
  annotations: {workload.codeflare.dev.appwrapper/retryLimit: "%d"}
spec:
  components:
  - template:
      apiVersion: v1
      kind: Pod
      metadata: {name: counter}
      spec:
        restartPolicy: Never
        containers: [{name: main, image: busybox, command: ["true"]}]
"""

NOTE = "fault_tolerance.retry_limit: 500 is in force; a job file holds at most 100"


@pytest.mark.parametrize(
    ("text", "words"), [(MINDCLUSTER, ()), (APPWRAPPER, ("--backend", "kubernetes"))], ids=["fault-retry-times", "retryLimit"]
)
@pytest.mark.parametrize("limit", [100, 500])
def test_plan_shows_the_retries_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: tuple[str, ...], limit: int
) -> None:
    """As text and as JSON; a note tells why the job document has another number."""
    file = tmp_path / "job.yaml"
    file.write_text(text % limit)

    assert main(["plan", str(file), *words]) == 0
    shown = capsys.readouterr().out
    assert main(["plan", str(file), *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    [line] = [line.split() for line in shown.splitlines() if line.split()[:1] == ["fault_tolerance.retry_limit"]]
    assert line[1] == str(limit)
    assert (NOTE in shown, NOTE in document["notes"]) == ((True, True) if limit == 500 else (False, False))
    assert {**document["defaults"], **document["given"]}["fault_tolerance.retry_limit"] == limit
    assert document["plan"]["retry_limit"] == limit
