"""A process that takes a rank's place in a group cannot run code in the workers through what Rallypoint exchanges."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.workers.logs import Streams
from rallypoint.training import signed
from rallypoint.training.errors import CheckpointError
from rallypoint.wire import env
from tests.agent.test_gpus import PLAN
from tests.training.worlds import finish, kill, python

torch = pytest.importorskip("torch")

WORKER = """
import sys
from torch import distributed as dist
from rallypoint.training import signed
from rallypoint.training.signed import agree
from rallypoint.training.errors import CheckpointError
dist.init_process_group("gloo")
def attempt(call):
    try:
        return call()
    except CheckpointError as error:
        return f"refused: {error}"
rank = dist.get_rank()
print("gathered", attempt(lambda: signed.all_gather({"rank": rank, "text": "x" * 1000 * rank, "set": {1, 2}}))[0:1])
print("agreed", attempt(lambda: signed.broadcast(("of", rank), 1)))
print("decided", attempt(lambda: agree(lambda: [1, None, "a"])))
"""

#: A process that ends while gloo's threads still work for its group may be aborted by them.
LEAVE = """
dist.destroy_process_group()
"""

STRANGER = """
import os, pickle, sys
import torch
from torch import distributed as dist
from rallypoint.training import signed
class Evil:
    def __reduce__(self):
        return (os.system, (f"touch {sys.argv[1]}",))
dist.init_process_group("gloo")
for call in (lambda: signed.all_gather(Evil()), lambda: signed.broadcast(Evil(), 1)):
    try:
        call()
    except Exception as error:
        print("stranger:", error)
"""


def world(*scripts, keys, args=(), **more):
    """Run one script for each rank, with its key and more variables, and return the output of the first."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=10))
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(len(scripts)),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **more,
    }
    ranks = [
        python(
            "-c", script + LEAVE, *args, environ={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), env.EXCHANGE_KEY: key}
        )
        for rank, (script, key) in enumerate(zip(scripts, keys, strict=True))
    ]
    try:
        return [finish(process) for process in ranks[:1]]
    finally:
        for process in ranks:
            kill(process)


@pytest.mark.extended
def test_workers_of_a_job_exchange_values():
    """Of different sizes, and of types that JSON does not have."""
    (told,) = world(WORKER, WORKER, keys=["k", "k"])

    assert told.splitlines() == [
        "gathered [{'rank': 0, 'text': '', 'set': {1, 2}}]",
        "agreed ('of', 1)",
        "decided [1, None, 'a']",
    ]


def test_the_pickle_of_a_stranger_is_not_loaded(tmp_path):
    """It does not know the key: the worker raises, and nothing has run."""
    evil = tmp_path / "evil"
    (told,) = world(WORKER.partition('print("decided')[0], STRANGER, keys=["k", "other"], args=[str(evil)])

    assert told.count("is not signed by a worker of this job") >= 1
    assert "agreed refused" in told
    assert not evil.exists()


def test_ranks_of_a_job_without_a_key_exchange_nothing():
    """Such as simple roles in an AppWrapper: the error says what to set."""
    (told,) = world(WORKER, WORKER, keys=["", ""], **{env.JOB_NAME: "digits"})

    text = "RALLYPOINT_EXCHANGE_KEY: not set; expected a key with which the 2 ranks of this process group sign the values"
    assert [line.partition(" ")[0] for line in told.splitlines()] == ["gathered", "agreed", "decided"]
    assert told.count(text) == 2


def test_instances_of_a_simple_role_derive_their_key_from_the_secret_of_all_roles(monkeypatch, tmp_path):
    """The file and the text mean the same; a secret that others can write is refused, as for calls."""
    for name, secret in (("ours", "s"), ("theirs", "t")):
        (tmp_path / name).write_text(f"{secret}\n")
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv(env.ROLES_SECRET_FILE, str(tmp_path / "ours"))
    good = signed.sign(b"content")
    assert signed.verify(good) == b"content"
    monkeypatch.delenv(env.ROLES_SECRET_FILE)
    monkeypatch.setenv(env.ROLES_SECRET, "s")
    assert signed.verify(good) == b"content"

    monkeypatch.setenv(env.ROLES_SECRET_FILE, str(tmp_path / "theirs"))
    with pytest.raises(CheckpointError, match="not signed by a worker of this job"):
        signed.verify(good)
    (tmp_path / "open").write_text("s")
    (tmp_path / "open").chmod(0o666)
    monkeypatch.setenv(env.ROLES_SECRET_FILE, str(tmp_path / "open"))
    with pytest.raises(CheckpointError, match="no write access for others"):
        signed.sign(b"content")


@pytest.mark.parametrize("signer", ["", "other"])
def test_only_the_right_key_signs(monkeypatch, signer):
    """A byte more or less, or another key, is refused."""
    monkeypatch.setenv(env.EXCHANGE_KEY, "k")
    good = signed.sign(b"content")
    assert signed.verify(good) == b"content"
    monkeypatch.setenv(env.EXCHANGE_KEY, signer)
    forged = signed.sign(b"content")
    monkeypatch.setenv(env.EXCHANGE_KEY, "k")

    for wrong in (forged, good[:-1], good + b"x", b"", b"\x00" * 40):
        with pytest.raises(CheckpointError, match="not signed by a worker of this job"):
            signed.verify(wrong)


def test_agents_of_a_job_give_their_workers_one_key(tmp_path):
    """Derived from the job's secret, which the key does not reveal; a run without a secret has a random one."""

    def key(secret):
        place: Any = {"attempt": 1, "node": 0, "incarnation": 1, "host": "h"}
        config = NodeConfig(plan=PLAN, folder=tmp_path, log_folder=tmp_path, streams=Streams(), secret=secret, **place)
        assert config.worker_environment[env.EXCHANGE_KEY] == config.worker_environment[env.EXCHANGE_KEY]
        return config.worker_environment[env.EXCHANGE_KEY]

    assert key("s") == key("s") != key("t")
    assert len({key(""), key(""), "s", key("s")}) == 4
