"""A watch loses nothing, whatever its server does."""

from __future__ import annotations

import contextlib

from rallypoint.backends.kubernetes.watching.watch import Target, Watch
from tests.kube.fake_api import FakeApi
from tests.waiting import eventually_async


class Shelves:
    """What the watch told, as it would be kept."""

    full = False

    def __init__(self):
        self.kept: dict[str, dict] = {}
        self.told = 0

    def put(self, found):
        self.told += 1
        self.kept[found["metadata"]["name"]] = found

    def remove(self, found):
        self.told += 1
        self.kept.pop(found["metadata"]["name"], None)

    def keep(self, uids, version):
        self.kept = {name: each for name, each in self.kept.items() if each["metadata"]["uid"] in uids}


@contextlib.asynccontextmanager
async def watching(api, **options):
    shelves = Shelves()
    watch = Watch(api, Target(path="/pods", selector="a=b"), shelves, **options)
    watch.start()
    try:
        yield watch, shelves
    finally:
        await watch.stop()


async def same(api, shelves):
    await eventually_async(lambda: shelves.kept == api.objects)


async def test_what_is_there_is_listed_and_what_comes_is_told():
    """First a list, page by page, then each change."""
    api = FakeApi()
    for number in range(1200):
        api.put(f"pod-{number}")
    async with watching(api) as (watch, shelves):
        await same(api, shelves)
        await eventually_async(lambda: watch.fresh)
        listed = shelves.told
        api.put("late")
        api.delete("pod-7")
        await same(api, shelves)
        assert shelves.told == listed + 2
        assert [method for method, _ in api.asked] == ["GET", "GET", "GET", "WATCH"]


async def test_a_cut_stream_goes_on_where_it_ended():
    """Nothing is listed again, and what happened meanwhile is told."""
    api = FakeApi()
    api.put("one")
    async with watching(api) as (_, shelves):
        await same(api, shelves)
        for number in range(20):
            api.cut()
            api.put(f"pod-{number}")
            api.delete("one") if number == 10 else None
            await same(api, shelves)
        assert [method for method, _ in api.asked].count("GET") == 1


async def test_history_that_is_gone_is_listed_anew():
    """What was deleted in the gap is gone, although nobody told of its deletion."""
    api = FakeApi()
    api.put("one")
    api.put("two")
    async with watching(api) as (watch, shelves):
        await same(api, shelves)
        await eventually_async(lambda: watch.fresh)
        api.delete("one")
        api.put("three")
        api.history.clear()
        api.compact()
        await same(api, shelves)
        assert watch.relisted >= 1


async def test_a_watch_that_is_not_connected_says_so():
    """Then the server itself is asked; afterwards the watch is up to date again."""
    api = FakeApi()
    async with watching(api) as (watch, shelves):
        await eventually_async(lambda: watch.fresh)
        api.down = True
        api.cut()
        await eventually_async(lambda: not watch.fresh)
        api.put("meanwhile")
        api.down = False
        await same(api, shelves)
        await eventually_async(lambda: watch.fresh)
        assert sorted(shelves.kept) == ["meanwhile"]


async def test_a_watch_begins_when_its_server_does():
    """A server that is down at first is tried again."""
    api = FakeApi()
    api.down = True
    async with watching(api) as (watch, shelves):
        assert not await watch.listed(0.05)
        api.put("one")
        api.down = False
        await same(api, shelves)
        assert await watch.listed(0.05)


async def test_an_object_that_cannot_be_read_ends_no_watch(caplog):
    """Any user of the namespace can write one. The watch lists again, and is up to date when the object is gone."""
    api = FakeApi()

    class Strict(Shelves):
        def put(self, found):
            if found.get("hostile"):
                raise ValueError("invalid literal for int()")
            super().put(found)

    shelves = Strict()
    watch = Watch(api, Target(path="/pods", selector="a=b"), shelves)
    watch.start()
    try:
        await eventually_async(lambda: watch.fresh)
        api.put("bad", hostile=True)
        await eventually_async(lambda: [method for method, _ in api.asked].count("GET") >= 3)
        api.put("good")
        api.delete("bad")
        await same(api, shelves)
        await eventually_async(lambda: watch.fresh)
    finally:
        await watch.stop()
    assert [record.exc_info is not None for record in caplog.records if "listing the objects again" in record.message] == [True]


async def test_a_watch_that_does_not_keep_all_objects_is_not_up_to_date():
    """Supervisors then read each object from the server; the objects are listed again when the stream ends."""
    api = FakeApi()
    async with watching(api) as (watch, shelves):
        await eventually_async(lambda: watch.fresh)
        shelves.full = True
        assert not watch.fresh
        api.cut()
        await eventually_async(lambda: [method for method, _ in api.asked].count("GET") >= 2)
        shelves.full = False
        await eventually_async(lambda: watch.fresh)
        assert [method for method, _ in api.asked].count("WATCH") >= 2
