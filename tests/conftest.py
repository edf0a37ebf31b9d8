"""What every test gets: a home of its own, an event loop that may not block, and nobody left behind."""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from rallypoint.wire import env
from rallypoint.wire.repeated_lines import RepeatedLines
from tests.leftovers import marked_with
from tests.scale import sized
from tests.waiting import eventually

LIVE = Path(__file__).parent / "live"

#: Files that take longest in `make test`, longest first, then those of `make test-all`: at the end no worker waits for a file.
LONG = (
    "test_tab.py",
    "test_living.py",
    "test_forked_workers.py",
    "test_builder_jobs.py",
    "test_launch_agent.py",
    "test_behaviours.py",
    "test_role_jobs.py",
    "test_ends.py",
    "test_doc_pages.py",
    "test_hangs.py",
    "test_agent_run.py",
    "test_endings.py",
    "test_mindcluster_words.py",
    "test_private_files.py",
    "test_verdicts.py",
    "test_verbs.py",
    "test_roles.py",
    "test_agent_nodes.py",
    "test_mindcluster.py",
    "test_role_calls.py",
    "test_replicas.py",
    "test_snapshots.py",
    "test_pre_checks.py",
    "test_lease.py",
    "test_gpu.py",
    "test_newcomers.py",
    "test_hang_corpus.py",
    "test_flood_ports.py",
    "test_airflow_dags.py",
    "test_disasters.py",
    "test_kills.py",
    "test_loss_matrix.py",
    "test_flood.py",
    "test_tls.py",
    "test_integrations_page.py",
    "test_airflow_clusters.py",
    "test_rights.py",
    "test_chaos.py",
    "test_airflow_kills.py",
    "test_trainers.py",
    "test_supervision.py",
)

#: How long the processes of a live test may take to end after it, in seconds.
LEAVE = 5.0

# No deadline: how long an example takes says something about the machine, not about the code.
settings.register_profile(
    "rallypoint",
    deadline=None,
    max_examples=sized(100, 25),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rallypoint")


def pytest_configure() -> None:
    """Let Ctrl-C interrupt: a shell that starts tests in the background has it ignored, and what is ignored is inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(100_000, 50, 100)


def pytest_collection_finish() -> None:
    """Keep what lives until the end out of garbage collections: they took a sixth of the CPU time of the unit tests."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything under tests/live, and test_live.py of a capability, as `live`; put what takes long first."""
    for item in items:
        if item.path.is_relative_to(LIVE) or item.path.name == "test_live.py":
            item.add_marker(pytest.mark.live)
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A throw-away $RALLYPOINT_HOME, not created yet; none of our variables leaks in from outside."""
    for name in [name for name in os.environ if name.startswith("RALLYPOINT_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "rallypoint-home"
    monkeypatch.setenv(env.HOME, str(path))
    return path


@pytest.fixture(autouse=True)
def nobody_left_behind(request: pytest.FixtureRequest, home: Path) -> Iterator[None]:
    """After a live test no process may live on that was started with its home; who does is killed and fails the test."""
    yield
    if request.node.get_closest_marker("live") is None:
        return
    with contextlib.suppress(AssertionError):
        eventually(lambda: not marked_with(str(home)), timeout=LEAVE)
    left = marked_with(str(home))
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    if left:
        lines = "\n".join(f"  {process.pid}: {process.command}" for process in left)
        pytest.fail(f"{len(left)} processes outlived the test (killed now):\n{lines}", pytrace=False)


@pytest.fixture(autouse=True)
def repeated_lines_are_captured() -> Iterator[None]:
    """An entry point that is called in a test limits repeated lines of all handlers; those of pytest outlive the test."""
    yield
    for handler in logging.getLogger().handlers:
        for limit in [one for one in handler.filters if isinstance(one, RepeatedLines)]:
            handler.removeFilter(limit)
            limit.close()


@pytest.fixture(autouse=True)
def loop_never_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A blocking call of ours inside an event loop fails an async test; `@pytest.mark.may_block("reason")` allows it."""
    function = getattr(request, "function", None)
    if not inspect.iscoroutinefunction(function) or request.node.get_closest_marker("may_block"):
        yield
        return
    guard = BlockBuster(scanned_modules=["rallypoint"])
    # The garbage collector runs finalizers wherever it happens to be, also in the event loop of another test.
    for blocking in guard.functions.values():
        blocking.can_block_in("rallypoint/compat/launch_agent/events.py", "_remove")
    guard.activate()
    yield
    guard.deactivate()
