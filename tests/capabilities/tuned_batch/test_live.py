"""A real job whose batch grows to a limit of memory, and whose next attempt begins with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.capabilities.tuned_batch.wire import StatusSection, Tuning
from rallypoint.supervision.record import Phase
from tests.backends.stage import remove_tree
from tests.live.jobs import Job, cli
from tests.waiting import eventually

SCRIPT = Path(__file__).parent / "growing.py"
MIB = 1 << 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "home"
    monkeypatch.setenv("RALLYPOINT_HOME", str(home))
    yield home
    remove_tree(home)


@pytest.mark.extended
def test_the_batch_grows_to_the_limit_and_the_next_attempt_uses_it(tmp_path: Path, home: Path) -> None:
    """Two nodes measure and agree; nothing of the script knows of it but DLRover's file."""
    job = Job.write(
        tmp_path,
        home,
        4 * MIB,
        str(tmp_path),
        entrypoint=str(SCRIPT),
        nodes=2,
        accelerator="cpu",
        auto_tuning=True,
        auto_tuning_memory="256Mi",
        recovery={"max_restarts": 0, "start_method": "spawn"},
    ).submit()

    try:

        def settled() -> Tuning | None:
            status = job.status
            tuning = None if status is None else StatusSection.of(status).tuning
            return tuning if tuning is not None and tuning.settled else None

        tuning = eventually(settled, timeout=60.0, why=job.tell)

        assert tuning.limit == 256 * MIB
        assert max(one.memory for one in tuning.seen) <= 256 * MIB
        # 230 MiB are to be used, of which Python takes its part: more than the 8 that it began with, never more than fits.
        assert 20 <= tuning.batch <= 57
        assert [one.batch for one in tuning.seen] == sorted(one.batch for one in tuning.seen)

        (tmp_path / "fail").touch()
        record = job.ends()

        assert (record.phase, record.attempt) == (Phase.SUCCEEDED, 2)
        assert {(tmp_path / f"second-{rank}").read_text() for rank in range(2)} == {str(tuning.batch)}
    finally:
        cli("delete", job.name, check=False)
