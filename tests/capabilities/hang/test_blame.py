"""Who is waited for, and how that is told in few words."""

from __future__ import annotations

import pytest

from rallypoint.agent.node.health.evidence import complete, main_frames
from rallypoint.capabilities.hang.blame import blame, far, waits
from rallypoint.capabilities.hang.description import groups, place, places
from rallypoint.wire.hang import FRAMES, RankSeen
from rallypoint.wire.incident import RankGroup
from rallypoint.wire.places import RankSpan

REDUCE = ("torch/distributed/distributed_c10d.py:3000 all_reduce", "train.py:20 step", "train.py:40 main")
SLEEP = ("train.py:9 load", "train.py:19 step", "train.py:40 main")
HOOK = ("train.py:9 hook", "torch/autograd/graph.py:800 backward", "train.py:19 step")
SAVE = ("torch/distributed/checkpoint/filesystem.py:100 write", "train.py:30 save")


def seen(local_rank: int = 0, **more: object) -> RankSeen:
    fields: dict[str, object] = {"pid": 100 + local_rank, "liveness": 5, "state": "S", "frames": REDUCE}
    return RankSeen(local_rank=local_rank, **{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([seen(), seen(state="T"), seen()], (1,), id="who is stopped"),
        pytest.param([seen(), seen(state="D"), seen()], (1,), id="who waits for a disk"),
        pytest.param([seen(), seen(), seen(liveness=4)], (2,), id="who has taken fewer steps"),
        pytest.param([seen(step=3), seen(step=3), seen(step=2)], (2,), id="who has reported fewer steps"),
        pytest.param(
            [seen(liveness=9), seen(liveness=0), seen(liveness=0)], (), id="who never shows a sign of life is not behind"
        ),
        pytest.param(
            [seen(step=3, frames=SLEEP), seen(step=4, liveness=1, frames=SLEEP)],
            (0,),
            id="what is reported counts before what is counted",
        ),
        pytest.param([seen(), seen(frames=SLEEP), seen()], (1,), id="who is in no collective while others are"),
        pytest.param([seen(frames=()), seen(frames=SLEEP)], (1,), id="who has no stack is not known to be elsewhere"),
        pytest.param(
            [seen(frames=("a.py:1 f",)), *[seen(frames=("a.py:2 g",))] * 2], (0,), id="who stands elsewhere than most"
        ),
        pytest.param([seen(frames=("a.py:1 f",)), seen(frames=("a.py:2 g",))], (), id="two that differ: nobody knows"),
        pytest.param([seen(), seen()], (), id="all wait in the same collective"),
        pytest.param([seen(frames=SLEEP)], (0,), id="a world of one has nobody else"),
        pytest.param([seen(state="T"), seen(state="T")], (0, 1), id="all are stopped"),
        pytest.param(
            [seen(state="", note="the worker exited with code 0", liveness=1), seen(frames=SLEEP)],
            (1,),
            id="who has ended waits for nobody",
        ),
        pytest.param([seen(state="", frames=()), seen()], (0,), id="who has ended while the others wait for it"),
        pytest.param([seen(), seen(liveness=6)], (1,), id="of two that wait the one ahead has left a collective out"),
        pytest.param([seen(), seen(), seen(liveness=6)], (2,), id="of three the one that left it out"),
        pytest.param([seen(), seen(frames=HOOK)], (1,), id="a hook of the script that a collective has called"),
        pytest.param([seen(), seen(frames=SAVE)], (1,), id="a checkpoint of torch.distributed is nobody else's"),
        pytest.param([seen(), seen(), seen(frames=())], (2,), id="all others wait, and of one there is no stack"),
        pytest.param(
            [seen(), seen(frames=SLEEP, liveness=4), seen(frames=SLEEP)], (1,), id="of those in no collective who is behind"
        ),
        pytest.param(
            [seen(frames=SLEEP, collective="all_reduce #41 of group 0, done"), seen(collective="all_reduce #42 of group 0")],
            (0,),
            id="who has not called the collective of the others",
        ),
        pytest.param(
            [seen(collective="all_reduce #41 of group 0"), seen(collective="all_reduce #42 of group 0", liveness=6)],
            (1,),
            id="who waits in the older collective waits for the one that left it out",
        ),
        pytest.param([], (), id="nobody was found"),
    ],
)
def test_the_culprit_is_who_the_others_wait_for(ranks: list[RankSeen], expected: tuple[int, ...]) -> None:
    """The surest sign decides; where there is none, nobody is named."""
    assert blame(dict(enumerate(ranks))) == expected


def test_equal_stacks_are_told_once_the_culprit_first() -> None:
    """Whoever reads it sees first who is behind, then who waits."""
    ranks = {0: seen(quiet=9.0), 1: seen(frames=SLEEP, quiet=9.5, step=4), 2: seen(quiet=8.0, cpu=1.0)}

    culprit, others = groups(ranks, (1,))

    assert culprit == RankGroup(ranks=(1,), culprit=True, step=4, life=5, quiet=9.5, state="sleeping", frames=SLEEP)
    assert others == RankGroup(ranks=(0, 2), life=5, quiet=9.0, cpu=0.5, state="sleeping", frames=REDUCE)


def test_a_large_world_is_told_in_few_words() -> None:
    """A thousand ranks that all stand at different places must not fill a record."""
    many = {rank: seen(frames=(f"a.py:{rank} f",)) for rank in range(1000)}

    told = groups(many, ())

    assert len(told) == 8
    assert sum(len(group.ranks) + group.more for group in told) == 1000
    [one] = groups({rank: seen() for rank in range(1000)}, ())
    assert (len(one.ranks), one.more) == (32, 968)


def test_how_far_each_rank_came() -> None:
    """Runs of equal neighbours; of a thousand ranks that all differ, a few that tell from where to where."""
    ranks = {0: seen(), 1: seen(), 2: seen(frames=SLEEP, liveness=4), 3: seen()}
    told = places(ranks, (2,), far=far(ranks), waits=waits)
    many = {rank: seen(liveness=rank + 1) for rank in range(1000)}
    few = places(many, (500,), far=far(many), waits=waits)

    assert told == (
        RankSpan(first=0, last=1, count=2, least=5, most=5, waits=True),
        RankSpan(first=2, last=2, count=1, least=4, most=4, culprit=True),
        RankSpan(first=3, last=3, count=1, least=5, most=5, waits=True),
    )
    assert len(few) == 16
    assert sum(span.count for span in few) == 1000
    assert [span for span in few if span.culprit] == [
        RankSpan(first=500, last=500, count=1, least=501, most=501, culprit=True, waits=True)
    ]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(
            seen(frames=("torch/nn/modules/linear.py:5 forward", "train.py:7 step")), "sleeping in train.py:7 step", id="script"
        ),
        pytest.param(
            seen(frames=("python/threading.py:5 wait", "... 3 more ...", "train.py:7 step")),
            "sleeping in train.py:7 step",
            id="library",
        ),
        pytest.param(seen(frames=REDUCE[:1]), f"sleeping in {REDUCE[0]}", id="no frame of the script"),
        pytest.param(seen(state="T", frames=(), note="it did not answer"), "stopped (it did not answer)", id="no stack"),
    ],
)
def test_where_a_rank_stands_in_few_words(one: RankSeen, expected: str) -> None:
    """The innermost frame of the script says most."""
    assert place(one) == expected


DUMP = """\
Thread 0x00007f10 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/x/site-packages/torch/utils/data/_utils/pin_memory.py", line 50 in do_one_step

Current thread 0x00007f11 (most recent call first):
  File "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3000 in all_reduce
  File "/home/me/my code/train.py", line 20 in step
  File "/home/me/my code/train.py", line ??? in <module>
"""


def test_the_interrupted_thread_is_read() -> None:
    """Paths of packages are told from the package on, others by their name."""
    assert main_frames(DUMP) == (
        "torch/distributed/distributed_c10d.py:3000 all_reduce",
        "train.py:20 step",
        "train.py:??? <module>",
    )


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        pytest.param(DUMP, True, id="all of it"),
        pytest.param(DUMP[:200], False, id="the other threads only"),
        pytest.param(DUMP.rpartition("  File")[0][:-1], False, id="cut in a line"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_a_dump_is_whole_when_the_main_thread_is_there(text: str, whole: bool) -> None:
    """The threads before it are written first."""
    assert complete(text) is whole


@pytest.mark.parametrize(
    ("runpy", "told"),
    [
        pytest.param("<frozen runpy>", 1, id="what starts a module of ours is left out"),
        pytest.param("/home/me/loop.py", 3, id="code of the user is kept"),
    ],
)
def test_the_code_that_starts_a_module_of_ours_is_left_out(runpy: str, told: int) -> None:
    """It is the outermost frame of each fork, and there it calls `runpy`."""
    frames = f'  File "/train.py", line 1 in f\n  File "{runpy}", line 8 in g\n  File "<string>", line 1 in <module>\n'

    assert len(main_frames(f"Current thread 0x1 (most recent call first):\n{frames}")) == told


def test_of_a_deep_stack_both_ends_are_told() -> None:
    """Where it stands, and from where it was called."""
    deep = "Current thread 0x1 (most recent call first):\n" + "".join(f'  File "/a.py", line {n} in f{n}\n' for n in range(50))

    frames = main_frames(deep)

    assert len(frames) == FRAMES
    assert (frames[0], frames[8], frames[-1]) == ("a.py:0 f0", "... 39 more ...", "a.py:49 f49")


def test_the_last_dump_counts() -> None:
    """A worker may have been asked before."""
    assert main_frames(DUMP + DUMP.replace("line 20", "line 21"))[1] == "train.py:21 step"


def test_how_far_a_rank_came():
    """In steps, of which the first may be 0 and counts as one; in signs of life where a living rank reports no step."""
    counted = {0: seen(0, step=0, liveness=9), 1: seen(1, step=6, liveness=9)}
    silent = {**counted, 2: seen(2, liveness=3)}

    assert [far(counted)(one) for one in counted.values()] == [1, 7]
    assert [far(silent)(one) for one in silent.values()] == [9, 9, 3]
