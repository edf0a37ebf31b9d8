"""The heartbeat file of the local backend: what is read from it, and what is done about its troubles."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import time

import pytest

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.heartbeat import Heartbeat, read_pulse
from rallypoint.supervision.record import Holder
from rallypoint.wire import codec
from tests.waiting import eventually_async


def write(home, beat):
    """Let a process's heartbeat lie on disk; its holder."""
    path = home / "supervisors" / f"{beat.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(codec.dumps(beat))
    return Holder(id=beat.id, name=beat.name, host=beat.host, pid=beat.pid, heartbeat=str(path))


def pulse_of(holder, home):
    """Return the pulse of a heartbeat that is there."""
    pulse = read_pulse(holder, home)
    assert pulse is not None
    return pulse


@pytest.fixture
def dead():
    """The heartbeat of a process that is gone."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    return dataclasses.replace(Heartbeat.of_this_process("ann"), id="dead", pid=ended.pid)


def test_a_killed_process_leaves_its_last_beat(home, dead):
    """It does not live, and when it was there last is known."""
    holder = write(home, dead)
    os.utime(holder.heartbeat, (1000, 1000))

    pulse = pulse_of(holder, home)

    assert (pulse.alive, pulse.at, pulse.note) == (False, 1000.0, "")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"boot_id": "another boot"}, id="before a reboot"),
        pytest.param({"start_ticks": 1}, id="another process of its number"),
    ],
)
def test_a_number_that_is_somebody_elses_by_now_is_no_sign_of_life(home, change):
    """A process is named by boot, number and start."""
    holder = write(home, dataclasses.replace(Heartbeat.of_this_process("ann"), **change))

    assert pulse_of(holder, home).alive is False


def test_a_process_that_lives_and_does_not_beat_is_told(home):
    """It was stopped, or its event loop is stuck."""
    holder = write(home, Heartbeat.of_this_process("ann"))
    os.utime(holder.heartbeat, (time.time() - 3600,) * 2)

    pulse = pulse_of(holder, home)

    assert (pulse.alive, pulse.note) == (True, "its process is alive but makes no progress")


@pytest.fixture
def alive():
    """The heartbeat of a process that lives: this one."""
    return dataclasses.replace(Heartbeat.of_this_process("bob"), id="alive")


async def test_who_begins_tidies_up_after_the_killed(home, dead, alive):
    """Their files go; that of a process that lives, and what is no heartbeat, stay."""
    gone = write(home, dead)
    other = write(home, alive)
    (home / "supervisors" / "notes.json").write_text("not ours")

    async with LocalBackend(home).heartbeat("ann") as me:
        names = sorted(path.name for path in (home / "supervisors").glob("*.json"))

    assert names == sorted(["alive.json", f"{me.id}.json", "notes.json"])
    assert await LocalBackend(home).pulse(gone) is None
    assert await LocalBackend(home).pulse(other) is not None


async def test_a_beat_that_cannot_be_written_ends_nothing(home, caplog):
    """It is said once, and tried again until it works."""
    caplog.set_level(logging.WARNING)
    home.mkdir()
    (home / "supervisors").write_text("in the way")
    backend = LocalBackend(home)
    async with backend.heartbeat("ann") as me:
        assert "cannot write its heartbeat" in caplog.text
        (home / "supervisors").unlink()

        async def beats():
            pulse = await backend.pulse(me)
            return pulse is not None and pulse.alive

        await eventually_async(beats, why="it beats as soon as it can be written")
    assert caplog.text.count("cannot write its heartbeat") == 1


@pytest.fixture
def full_disk(home):
    """A home on a small disk, and what fills it."""
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(home)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk")
    yield home
    subprocess.run(["umount", str(home)], check=True)


def fill(disk):
    """Write until nothing fits any more."""
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


async def test_a_full_disk_stops_no_heart(full_disk):
    """The file is touched in the place of being replaced, and the pulse says what its process waits for."""
    backend = LocalBackend(full_disk)
    async with backend.heartbeat("ann") as me:
        await asyncio.to_thread(fill, full_disk)
        first = await backend.pulse(me)
        assert first is not None

        async def beaten():
            pulse = await backend.pulse(me)
            return (pulse.alive, pulse.note) if pulse is not None and pulse.beat != first.beat else None

        assert await eventually_async(beaten) == (True, "waiting for free disk space")
