"""What `contract.py` promises of logs, on every backend."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from rallypoint.backends.contract import JobNotFoundError, LogLine
from rallypoint.supervision.actions import CreateNode, Purge, RemoveNode
from rallypoint.supervision.record import Phase
from tests.waiting import eventually_async

NODE = CreateNode(attempt=1, node=0, incarnation=1)
END_NODE = RemoveNode(attempt=1, node=0, incarnation=1)


async def act(stage, stored, *actions):
    for action in actions:
        await stage.backend.act(stored.record, stored.plan, action)


def line(text, rank=0, stream="out"):
    return LogLine(rank=rank, stream=stream, text=text, cursor="")


async def read(stage, **options):
    return [line async for line in stage.backend.logs("digits", **options)]


async def deployed_with_logs(stage):
    submitted = await stage.backend.submit(stage.backend.plan(stage.job(nproc_per_node=2)), owner="ann")
    record = dataclasses.replace(submitted.record, attempt=1, term=1, phase=Phase.RESUMING)
    stored = await stage.backend.save(record, version=submitted.version)
    await act(stage, stored, NODE)
    for rank, text in ((0, "one"), (0, "two"), (1, "three")):
        stage.write_log(line(text, rank), attempt=1, round_=1)
    stage.write_log(line("four"), attempt=1, round_=2)
    return stored


async def test_logs_of_a_job_that_is_not_there_are_an_error(stage):
    """No lines and no job are two things."""
    with pytest.raises(JobNotFoundError):
        await read(stage)


async def test_logs_come_in_order(stage):
    """All ranks in turn, or one alone."""
    stored = await deployed_with_logs(stage)
    try:
        assert [(found.rank, found.text) for found in await read(stage)] == [(0, "one"), (0, "two"), (1, "three"), (0, "four")]
        assert [found.text for found in await read(stage, rank=0)] == ["one", "two", "four"]
        assert await read(stage, rank=7) == []
    finally:
        await act(stage, stored, dataclasses.replace(END_NODE, force=True))


async def test_a_cursor_continues_after_its_line(stage):
    """Wherever reading stopped, no line is lost and none comes twice."""
    stored = await deployed_with_logs(stage)
    try:
        whole = await read(stage)
        for index, found in enumerate(whole):
            assert await read(stage, cursor=str(found.cursor)) == whole[index + 1 :]
    finally:
        await act(stage, stored, dataclasses.replace(END_NODE, force=True))


async def test_the_tail_of_a_log_and_what_comes_after_it(stage):
    """The last lines of each stream of each rank; the cursor continues behind them, and loses and repeats nothing."""
    stored = await deployed_with_logs(stage)
    try:
        stage.write_log(line("careful", stream="err"), attempt=1, round_=2)
        tail = await stage.backend.tail("digits", lines=1)
        assert [(found.rank, found.text) for found in tail.lines] == [(1, "three"), (0, "four"), (0, "careful")]
        assert [found.text for found in (await stage.backend.tail("digits", lines=3, rank=0)).lines] == [
            "one",
            "two",
            "four",
            "careful",
        ]
        assert (await stage.backend.tail("digits", lines=2, rank=7)).lines == ()
        assert (await stage.backend.tail("digits", lines=0)).lines == ()

        stage.write_log(line("five"), attempt=1, round_=2)
        assert [found.text for found in await read(stage, cursor=tail.cursor)] == ["five"]
    finally:
        await act(stage, stored, dataclasses.replace(END_NODE, force=True))


async def test_the_tail_of_a_job_that_is_not_there_is_an_error(stage):
    """As its logs are."""
    with pytest.raises(JobNotFoundError):
        await stage.backend.tail("digits", lines=1)


async def test_followed_logs_end_with_the_job(stage):
    """Lines come as they are written, and the end of the job ends them."""
    stored = await deployed_with_logs(stage)
    found: list[str] = []
    told = found.append

    async def follow():
        async for each in stage.another().logs("digits", follow=True):
            told(each.text)

    following = asyncio.ensure_future(follow())
    await eventually_async(lambda: len(found) == 4)
    stage.write_log(line("five"), attempt=1, round_=2)
    await eventually_async(lambda: len(found) == 5)
    await act(stage, stored, dataclasses.replace(END_NODE, force=True), Purge())
    await asyncio.wait_for(following, timeout=200)

    assert found == ["one", "two", "three", "four", "five"]
