from __future__ import annotations

import json
import os
import random
import resource
import shutil
import threading
from collections import Counter, OrderedDict

import pytest
import torch
from torch import nn

from rallypoint.checkpoint import folder
from rallypoint.training import CheckpointError, Checkpoints, report_progress, weights_digest
from rallypoint.wire import env
from rallypoint.wire.progress import ProgressFile


def make(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def step(state):
    state["optimizer"].zero_grad()
    state["model"](torch.randn(8, 4)).sum().backward()
    state["optimizer"].step()


def told(file):
    """What rank 0 has reported."""
    slot = file.read(0)
    assert slot is not None
    return slot


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def worker(monkeypatch):
    """Make this process a worker of a job, at a round that the test chooses."""

    def become(number, attempt=1, uid="ab12"):
        told = {"JOB": "digits", "JOB_MARK": f"{uid}/0", "ATTEMPT": attempt, "TERM": 1, "ROUND": number}
        for name, value in told.items():
            monkeypatch.setenv(f"RALLYPOINT_{name}", str(value))
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "0")
        monkeypatch.setenv("WORLD_SIZE", "1")

    return become


def test_training_goes_on_where_it_was(tmp_path):
    """Weights, optimizer, plain values, tensors and random states are those of the save; the next step is the same."""
    state = {**make(), "count": torch.arange(3), "epoch": 3}
    step(state)
    Checkpoints(tmp_path).save(1, state)
    step(state)
    expected = (weights_digest(state["model"]), torch.rand(1).item(), random.random())

    fresh = {**make(seed=9), "count": torch.zeros(3, dtype=torch.long), "epoch": 0}
    count = fresh["count"]
    assert Checkpoints(tmp_path).load(fresh) == 1
    step(fresh)

    random.seed(1)
    assert (weights_digest(fresh["model"]), torch.rand(1).item()) == expected[:2]
    assert (count.tolist(), fresh["epoch"]) == ([0, 1, 2], 3)


def test_random_numbers_go_on_too(tmp_path):
    """Python's own generator continues as if nothing had happened."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"epoch": 1})
    expected = random.random()
    random.seed(99)
    checkpoints.load({"epoch": 0})

    assert random.random() == expected


VALUES = [
    pytest.param({"a": [1, (torch.ones(2), "x")], 3: None}, id="nested, with a key that is no text"),
    pytest.param(OrderedDict(a=Counter(x=2)), id="dictionaries of other classes"),
    pytest.param({"bits": torch.ones(3, dtype=torch.bool), "half": torch.ones((), dtype=torch.bfloat16)}, id="other dtypes"),
    pytest.param({}, id="nothing"),
]


@pytest.mark.parametrize("value", VALUES)
def test_any_value_comes_back_as_it_was(tmp_path, value):
    """Structure, classes, keys and dtypes survive."""
    Checkpoints(tmp_path).save(1, {"value": value})
    state = {"value": None}
    Checkpoints(tmp_path).load(state)

    assert repr(state["value"]) == repr(value)


def test_an_optimizer_without_state_stays_so(tmp_path):
    """A checkpoint from before the first step empties the state of an optimizer that has stepped."""
    Checkpoints(tmp_path).save(0, make())
    state = make()
    step(state)
    Checkpoints(tmp_path).load(state)

    assert not state["optimizer"].state_dict()["state"]


def test_an_empty_folder_has_nothing_to_load(tmp_path):
    """Without a checkpoint, or a folder, training begins at the beginning."""
    checkpoints = Checkpoints(tmp_path / "later")

    assert (checkpoints.latest(), checkpoints.load(make())) == (None, None)


def test_old_ones_go_and_nothing_else(tmp_path):
    """The `keep` newest stay; files of others are not touched."""
    (tmp_path / "result.json").write_text("{}")
    checkpoints = Checkpoints(tmp_path, keep=2)
    for number in (1, 2, 3):
        checkpoints.save(number, {"epoch": number})

    assert names(tmp_path) == ["result.json", "step-000000000002-1.0.0", "step-000000000003-1.0.0"]


def test_a_step_is_saved_once_per_round(tmp_path):
    """The save after the last step does no harm when that step was saved already."""
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.save(1, {"epoch": 1})

    assert checkpoints.save(1, {"epoch": 2}) == first
    state = {"epoch": 0}
    checkpoints.load(state)
    assert state == {"epoch": 1}


def half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unfinished(path):
    path.rename(path.with_name(path.name + ".tmp"))


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


TORN = [
    pytest.param(lambda p: (half(p / "__0_0.distcp"), (p / "manifest.json").unlink(), unfinished(p)), id="killed at a write"),
    pytest.param(lambda p: ((p / "manifest.json").unlink(), unfinished(p)), id="killed before the manifest"),
    pytest.param(lambda p: (half(p / "manifest.json"), unfinished(p)), id="killed in the manifest"),
    pytest.param(unfinished, id="killed before the renaming"),
    pytest.param(lambda p: (p / "manifest.json").unlink(), id="manifest missing"),
    pytest.param(lambda p: half(p / "manifest.json"), id="manifest truncated"),
    pytest.param(lambda p: edit(p / "manifest.json", step=1), id="manifest of another checkpoint"),
    pytest.param(lambda p: edit(p / "manifest.json", version=2), id="manifest of another version"),
    pytest.param(lambda p: half(p / "__0_0.distcp"), id="tensors truncated"),
    pytest.param(lambda p: (p / "__0_0.distcp").unlink(), id="tensors missing"),
    pytest.param(lambda p: half(p / "values.pt"), id="values truncated"),
    pytest.param(lambda p: flip(p / ".metadata"), id="a bit of the metadata flipped"),
    pytest.param(shutil.rmtree, id="gone"),
]


@pytest.mark.parametrize("tear", TORN)
def test_a_torn_one_is_never_loaded(tmp_path, tear):
    """Whatever a kill or a fault of the disk leaves, the newest complete checkpoint is what is loaded, and saving goes on."""
    checkpoints = Checkpoints(tmp_path)
    complete = checkpoints.save(1, {"epoch": 1})
    tear(checkpoints.save(2, {"epoch": 2, "weights": torch.ones(300)}).path)

    state = {"epoch": 0}
    assert checkpoints.latest() == complete
    assert checkpoints.load(state) == 1
    assert state == {"epoch": 1}
    assert Checkpoints(tmp_path).save(2, state).step == 2
    assert [checkpoint for checkpoint in names(tmp_path) if checkpoint.endswith(".tmp")] == []


def test_a_damaged_step_is_saved_again(tmp_path):
    """A save of a step whose checkpoint was damaged since replaces it."""
    checkpoints = Checkpoints(tmp_path)
    half(checkpoints.save(1, {"epoch": 1}).path / "values.pt")

    assert checkpoints.latest() is None
    assert checkpoints.save(1, {"epoch": 1}) == checkpoints.latest()


def test_damage_in_large_values_is_passed_over(tmp_path):
    """What is unpickled is digested whatever its size: a damaged one never breaks a load that an older one can serve."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"epoch": 1})
    values = checkpoints.save(2, {"epoch": 2, "history": bytes(2 << 20)}).path / "values.pt"
    values.write_bytes(b"x" * values.stat().st_size)

    state = {"epoch": 0}
    assert (checkpoints.load(state), state) == (1, {"epoch": 1})


def test_old_ones_may_go_by_another_hand(tmp_path):
    """An old checkpoint that somebody deletes while a save does is no error, and the other old ones still go."""
    checkpoints = Checkpoints(tmp_path)
    gone, kept = (checkpoints.save(number, {"epoch": number}) for number in (1, 2))
    slow = tmp_path / "step-000000000000-1.0.0" / "manifest.json"
    slow.parent.mkdir()
    os.mkfifo(slow)  # who reads it has listed the folder, and waits until the other hand is done

    def delete():
        with slow.open("wb"):
            shutil.rmtree(gone.path)

    other = threading.Thread(target=delete, daemon=True)
    other.start()
    folder.retain(tmp_path, 1)
    other.join()

    assert names(tmp_path) == [kept.path.name]


def test_damage_is_told(tmp_path, caplog):
    """What is passed over is logged with its file and reason; when nothing is left that is an error, not a fresh start."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"epoch": 1})
    half(checkpoints.save(2, {"epoch": 2}).path / "values.pt")
    checkpoints.load({"epoch": 0})

    assert "step-000000000002-1.0.0/values.pt" in caplog.text
    half(tmp_path / "step-000000000001-1.0.0" / "values.pt")
    with pytest.raises(
        CheckpointError, match="no readable checkpoint; to start without a checkpoint, move the damaged checkpoints away"
    ):
        checkpoints.load({"epoch": 0})


def test_a_stale_round_neither_writes_nor_wins(tmp_path, worker):
    """Once a newer round has written, a worker of the older one is refused, and the newer checkpoint is the one loaded."""
    worker(number=1)
    stale = Checkpoints(tmp_path)
    stale.save(300, {"epoch": 1})
    worker(number=2)
    Checkpoints(tmp_path).save(200, {"epoch": 2})
    worker(number=1)
    with pytest.raises(CheckpointError, match=r"token 1\.1\.1.* newer token 1\.1\.2"):
        stale.save(400, {"epoch": 1})

    state = {"epoch": 0}
    assert (Checkpoints(tmp_path).load(state), state) == (200, {"epoch": 2})


def test_a_new_round_cleans_up_after_older_ones(tmp_path, worker):
    """Unfinished saves of lower fences are deleted at the first save; those of higher ones and other names are not."""
    left = ["step-000000000005-1.1.1.tmp", "step-000000000005-9.1.1.tmp", "mine.tmp"]
    for name in left:
        (tmp_path / name).mkdir()
    worker(number=2)
    Checkpoints(tmp_path).save(6, {"epoch": 1})

    assert names(tmp_path) == ["mine.tmp", "step-000000000005-9.1.1.tmp", "step-000000000006-1.1.2"]


def test_a_new_job_of_the_same_name_goes_on_above_the_old_one(tmp_path, worker):
    """A job submitted again counts its rounds from 1; its checkpoints are newer than the old job's all the same."""
    worker(number=3, uid="old")
    Checkpoints(tmp_path).save(300, {"epoch": 1})
    worker(number=1, uid="new")
    again = Checkpoints(tmp_path)

    assert again.load({"epoch": 0}) == 300
    assert str(again.save(10, {"epoch": 2}).fence) == "2.1.1"
    assert again.load({"epoch": 0}) == 10


def test_a_new_job_goes_on_above_a_torn_one(tmp_path, worker):
    """A higher checkpoint that an old job left torn is passed over by loads and does not refuse the new job's saves."""
    worker(number=1, uid="old")
    Checkpoints(tmp_path).save(300, {"epoch": 1})
    worker(number=4, attempt=2, uid="old")
    half(Checkpoints(tmp_path).save(400, {"epoch": 2}).path / "values.pt")
    worker(number=1, uid="new")
    again = Checkpoints(tmp_path)

    assert again.load({"epoch": 0}) == 300
    assert str(again.save(310, {"epoch": 3}).fence) == "3.1.1"
    assert again.load({"epoch": 0}) == 310


def test_saves_and_loads_are_reported(tmp_path, worker, monkeypatch):
    """Step, origin and path reach the agent without a word of the script; a load is an origin, not a step."""
    file = ProgressFile.create(tmp_path / "progress", 1)
    monkeypatch.setenv(env.PROGRESS_FILE, str(tmp_path / "progress"))
    worker(number=1)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.load({"epoch": 0})
    assert (told(file).step, told(file).resumed_from) == (None, 0)

    report_progress(4, loss=1.0)
    saved = checkpoints.save(5, {"epoch": 0})
    assert (told(file).step, told(file).checkpoint, told(file).metrics) == (5, str(saved.path), {"loss": 1.0})
    checkpoints.load({"epoch": 0})
    assert told(file).resumed_from == 5
    file.close()


@pytest.fixture
def small_disk():
    """Files of this process can grow to 16 KiB and no further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "large",
    [pytest.param(torch.ones(30_000), id="in the tensors"), pytest.param("x" * 30_000, id="in the values")],
)
def test_a_full_disk_is_one_clear_error(tmp_path, small_disk, large):
    """A save that does not fit says so, leaves nothing behind, and the checkpoints before it are intact."""
    checkpoints = Checkpoints(tmp_path)
    saved = checkpoints.save(1, {"epoch": 1})
    with pytest.raises(CheckpointError, match="File too large"):
        checkpoints.save(2, {"epoch": large})

    assert names(tmp_path) == [saved.path.name]
    assert checkpoints.latest() == saved


def test_a_missing_entry_is_named(tmp_path):
    """A state that asks for what was not saved is an error that says what was."""
    Checkpoints(tmp_path).save(1, {"model": nn.Linear(1, 1), "epoch": 1})
    with pytest.raises(CheckpointError, match="has no entry 'optimizer'; the entries are 'model', 'epoch'"):
        Checkpoints(tmp_path).load({"optimizer": 1})


def test_two_keys_of_one_name_are_refused(tmp_path):
    """Tensors whose keys differ only as objects would overwrite each other on disk."""
    with pytest.raises(CheckpointError, match="two tensors get the name state/values/1"):
        Checkpoints(tmp_path).save(1, {"values": {1: torch.ones(1), "1": torch.zeros(1)}})


def test_wrong_arguments_are_named(tmp_path, monkeypatch):
    """No folder, nothing to keep, a negative step: one clear error each. The job's folder is the default."""
    with pytest.raises(CheckpointError, match="directory: is missing; pass a folder"):
        Checkpoints()
    with pytest.raises(CheckpointError, match="keep: 0 is not allowed"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(CheckpointError, match="step: -1 is not allowed"):
        Checkpoints(tmp_path).save(-1, {})

    monkeypatch.setenv(env.CHECKPOINT_DIR, str(tmp_path))
    assert Checkpoints().directory == tmp_path
