"""Whose output a task tells, from where on, and in which groups."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from dataclasses import dataclass, field

import pytest

from rallypoint.backends.contract import BackendError, LogLine
from rallypoint.provider.errors import OptionError
from rallypoint.provider.ranks import check_get_logs, ranks_of
from rallypoint.provider.task_log import EARLIER_LINES, tell_culprit, telling_logs
from rallypoint.wire.env import MASKED
from rallypoint.wire.status import Outcome, Verdict
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.records import CULPRIT
from tests.provider.triggers import Trigger, ending, submitted
from tests.waiting import eventually_async

ALL = None


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)

    def info(self, line: str, /, *values: object) -> None:
        self.lines.append(line % values if values else line)


@dataclass
class Bookmark:
    cursor: str = ""

    async def read(self) -> str:
        return self.cursor

    async def write(self, cursor: str) -> None:
        self.cursor = cursor


def line(rank: int, text: str) -> LogLine:
    return LogLine(rank=rank, stream="out", text=text, cursor="")


async def backend_with(*lines: LogLine) -> FakeBackend:
    fake = FakeBackend()
    fake.lines = lines
    return await submitted(fake)


async def told(fake: FakeBackend, ranks: frozenset[int] | None = ALL, bookmark: Bookmark | None = None, more=()) -> list[str]:
    """What is told from the beginning until `more` has been written and read."""
    log = Log()
    async with telling_logs(fake, "digits", log, ranks=ranks, bookmark=bookmark):
        await asyncio.sleep(0)
        fake.world.jobs["digits"].logs.extend(more)
        last = more[-1].text if more else "nothing"
        await eventually_async(lambda: not more or any(last in each for each in log.lines))
        if not more:
            await asyncio.sleep(0.05)
    return log.lines


@pytest.mark.parametrize(
    ("get_logs", "ranks"), [(True, {0}), (False, set()), ("all", None), ([0, 3], {0, 3})], ids=["rank 0", "none", "all", "some"]
)
def test_which_ranks_are_told(get_logs, ranks):
    """By default the first one; its word is that of the job in most scripts."""
    check_get_logs(get_logs)

    assert ranks_of(get_logs) == ranks


@pytest.mark.parametrize("value", ["some", [], [True], [-1], ["0"], 0, None])
def test_other_ranks_are_refused_when_the_dag_is_parsed(value):
    """The field, the value and what is allowed."""
    with pytest.raises(
        OptionError,
        match=r"get_logs: .* is not allowed; expected True",
    ):
        check_get_logs(value)


async def test_the_output_of_the_chosen_ranks_is_told():
    """One by its number, some among all."""
    fake = await backend_with(line(0, "a"), line(1, "b"), line(3, "c"))

    assert await told(fake, frozenset({0})) == ["[rank 0 out] a"]
    assert await told(fake, frozenset({1, 3})) == ["[rank 1 out] b", "[rank 3 out] c"]
    assert await told(fake) == ["[rank 0 out] a", "[rank 1 out] b", "[rank 3 out] c"]


async def test_lines_that_come_together_are_one_group():
    """It begins and ends without a line of anybody else in it; its title has the last of them."""
    fake = await backend_with()
    lines = await told(fake, frozenset({0}), more=[line(0, f"step {number}") for number in range(9)])

    assert lines[0] == "::group::9 lines of rank 0; last line: step 8"
    assert lines[-1] == "::endgroup::"
    assert lines[1:-1] == [f"[rank 0 out] step {number}" for number in range(9)]


async def test_who_takes_over_goes_on_where_the_last_one_was():
    """Each line is told once; without a bookmark the end of what was written is told again."""
    fake, bookmark = await backend_with(line(0, "a"), line(0, "b")), Bookmark()

    assert await told(fake, bookmark=bookmark) == ["[rank 0 out] a", "[rank 0 out] b"]
    assert bookmark.cursor == "2"
    assert await told(fake, bookmark=bookmark, more=[line(0, "c")]) == ["[rank 0 out] c"]
    assert (await told(fake))[-1] == "[rank 0 out] c"


async def test_earlier_output_is_cut_short():
    """What is left out is counted, and where it is to be found is said."""
    fake = await backend_with(*(line(0, str(number)) for number in range(EARLIER_LINES + 7)))

    lines = await told(fake)

    assert lines[0] == "7 earlier lines are omitted; `rallypoint logs digits` shows them"
    assert (lines[2], len(lines)) == ("[rank 0 out] 7", EARLIER_LINES + 3)


async def test_output_that_cannot_be_read_is_said_so():
    """The job goes on without it."""

    class Broken(FakeBackend):
        async def logs(self, name, *, rank=None, cursor="", follow=False):
            raise BackendError("the disk is gone")
            yield

    log = Log()
    async with telling_logs(Broken(), "digits", log, ranks=ALL, bookmark=None) as task:
        await asyncio.wait([task])

    assert log.lines == ["Cannot read more output of the job's ranks, so this log is incomplete: the disk is gone"]


async def test_the_culprits_last_lines_are_a_group_of_their_own():
    """Whoever has written nothing is left out."""
    fake, log = await backend_with(line(0, "fine"), line(3, "about to divide"), line(3, "ZeroDivisionError")), Log()

    await tell_culprit(fake, "digits", log, 3)
    await tell_culprit(fake, "digits", log, 9)

    assert log.lines == [
        "::group::Last 2 lines of the output of rank 3, which failed first",
        "[rank 3 out] about to divide",
        "[rank 3 out] ZeroDivisionError",
        "::endgroup::",
    ]


async def test_the_secrets_of_a_role_are_looked_for_in_a_thread():
    """A script can write a long note of them into its plan; a triggerer's event loop has other triggers."""
    threads = set()

    class Noted(dict):
        def get(self, key, default=None):
            threads.add(threading.current_thread())
            return super().get(key, default)

    class Roles(FakeBackend):
        async def load(self, name):
            stored = await super().load(name)
            assert stored is not None
            env = Noted({"PW": "hunter2-secret", MASKED: '[["PW", 0, 14]]'})
            return dataclasses.replace(stored, plan=dataclasses.replace(stored.plan, roles=({"plan": {"env": env}},)))

    fake, log = Roles(), Log()
    fake.lines = (line(3, "got hunter2-secret"),)
    await tell_culprit(await submitted(fake), "digits", log, 3)

    assert log.lines[1] == "[rank 3 out] got ***"
    assert threads
    assert threading.main_thread() not in threads


async def test_a_job_that_fails_tells_of_its_culprit_though_only_rank_0_is_followed(capsys):
    """Who reads the task's log need not look for the rank that broke."""
    fake = FakeBackend(verdict=Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message="rank 3", culprit=CULPRIT))
    fake.lines = (line(0, "fine"), line(3, "about to divide"))

    await ending(Trigger(await submitted(fake)))

    said = capsys.readouterr().out
    assert said.index("rank 3, which failed first") < said.index("[rank 3 out] about to divide")


async def test_a_job_that_succeeds_tells_of_no_culprit(capsys):
    """There is none."""
    fake = FakeBackend(verdict=SUCCESS)
    fake.lines = (line(0, "fine"), line(3, "fine, too"))

    await ending(Trigger(await submitted(fake)))

    said = capsys.readouterr().out
    assert "[rank 0 out] fine" in said
    assert "rank 3" not in said


async def test_others_in_the_event_loop_have_their_turn_between_long_lines():
    """A script that prints binary data keeps no other trigger waiting: at most 128 KiB are logged at once."""
    turns, seen = 0, dict[int, int]()

    class Counting(Log):
        def info(self, line: str, /, *values: object) -> None:
            super().info(line, *values)
            seen[turns] = seen.get(turns, 0) + len(self.lines[-1])

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    fake, log = await backend_with(*(line(0, "\x01" * 16_000) for _ in range(99))), Counting()
    others = asyncio.create_task(other())
    async with telling_logs(fake, "digits", log, ranks=ALL, bookmark=None):
        await eventually_async(lambda: sum("rank 0 out" in each for each in log.lines) == 99)
    others.cancel()

    assert max(seen.values()) <= 4 * (1 << 17) + 1000  # an escape has four characters
