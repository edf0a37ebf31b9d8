from __future__ import annotations

import os
import signal
import threading

import pytest

from rallypoint.training.stopping import StopRequest
from tests.training.worlds import finish, python, run_world


@pytest.fixture
def calm():
    """SIGTERM is handled as before when the test is over."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_request_is_noted_and_ends_nothing(calm):
    """From the first call on; asked again, it is still so."""
    request = StopRequest()
    request.listen()
    before = request.made
    os.kill(os.getpid(), signal.SIGTERM)
    request.listen()

    assert (before, request.made) == (False, True)


def test_the_scripts_own_handler_is_still_called(calm):
    """Whoever had something to do on SIGTERM does it."""
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    request = StopRequest()
    request.listen()
    request.listen()
    os.kill(os.getpid(), signal.SIGTERM)

    assert (heard, request.made) == ([signal.SIGTERM], True)


def test_only_the_main_thread_may_ask_first():
    """Python handles signals there alone; the error says so."""
    errors = []

    def ask():
        try:
            StopRequest().listen()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()

    assert errors == ["stop_requested: make the first call in the main thread, because Python handles signals only there"]


def test_a_script_without_torch_stays_without():
    """It asks, and nothing large is imported for that."""
    script = (
        "import os, signal, sys; from rallypoint.training import stop_requested; print(stop_requested());"
        "os.kill(os.getpid(), signal.SIGTERM); print(stop_requested(), 'torch' in sys.modules)"
    )

    assert finish(python("-c", script)) == "False\nTrue False\n"


WORLD = """
import os, signal
from rallypoint.training import process_group, stop_requested

with process_group("gloo", timeout=600) as world:
    for step in range(1, 10):
        if step == 4 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if stop_requested():
            print("stops at", step)
            break
"""


def test_all_ranks_stop_at_the_same_step():
    """One of them was asked; all know it at once."""
    assert run_world(2, WORLD) == ["stops at 4\n", "stops at 4\n"]


ALONE = """
import itertools, os, pathlib, signal, sys, time
from rallypoint.training import stop_requested

folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])
stop_requested()
(folder / f"ready-{rank}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for step in itertools.count(1):
    time.sleep(0.002 * (rank + 1))
    if step == 3 + 2 * rank:
        os.kill(os.getpid(), signal.SIGTERM)
    if stop_requested():
        print("stops at", step)
        break
"""


def test_ranks_without_a_process_group_stop_at_one_step(tmp_path):
    """Each received SIGTERM at another step, and none is in step with another."""
    told = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RALLYPOINT_LINE": str(tmp_path / "line.sock")}
    ranks = [
        python("-c", ALONE, str(tmp_path), environ={**told, "LOCAL_RANK": str(rank), "RANK": str(rank)}) for rank in range(2)
    ]

    first, second = map(finish, ranks)

    assert first.splitlines()[-1] == second.splitlines()[-1]
    assert int(first.split()[-1]) > 5
