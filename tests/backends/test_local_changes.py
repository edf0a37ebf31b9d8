"""Following jobs of this machine: all of them in one go, and nothing that happens is missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rallypoint.backends.local.changes import LocalChanges
from rallypoint.backends.local.layout import JobFolder
from tests.waiting import PATIENCE, eventually_async


class Counted(LocalChanges):
    """Tells how often it was looked at."""

    def __init__(self, folder):
        super().__init__(folder)
        self.looks = 0

    def look(self):
        self.looks += 1
        return super().look()


def job(home: Path, name: str) -> Counted:
    folder = JobFolder(path=home / name)
    folder.path.mkdir()
    folder.record.write_text("first")
    following = Counted(folder)
    following.open()
    return following


def replace(following: Counted, text: str) -> None:
    fresh = following._folder.path / "fresh"
    fresh.write_text(text)
    fresh.rename(following._folder.record)


async def test_many_jobs_are_looked_at_in_one_go(tmp_path):
    """Each wakes for its own file alone, and no job has a thread of its own to look with."""
    jobs = [await asyncio.to_thread(job, tmp_path, f"job-{number}") for number in range(50)]
    begun = [following.looks for following in jobs]
    waiting = [asyncio.create_task(following.wait(PATIENCE * 30)) for following in jobs]
    await eventually_async(lambda: min(following.looks for following in jobs) >= 4)
    assert begun == [0] * 50
    looks = [following.looks for following in jobs]
    assert max(looks) - min(looks) <= 1, "they are looked at together"

    await asyncio.to_thread(replace, jobs[7], "second")
    await waiting[7]

    assert [task.done() for task in waiting] == [number == 7 for number in range(50)]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_what_happens_between_two_waits_is_not_missed(tmp_path):
    """The next wait ends at once; so does one of a job that is followed for the second time."""
    following = await asyncio.to_thread(job, tmp_path, "digits")
    await following.wait(0.3)
    await asyncio.to_thread(replace, following, "second")

    await asyncio.wait_for(following.wait(PATIENCE * 600), PATIENCE * 30)
    assert not (await asyncio.to_thread(following.look))


async def test_a_wait_ends_when_its_time_is_over(tmp_path):
    """Nothing happened."""
    following = await asyncio.to_thread(job, tmp_path, "digits")
    loop = asyncio.get_running_loop()
    begun = loop.time()

    await following.wait(0.25)

    assert loop.time() - begun >= 0.24
