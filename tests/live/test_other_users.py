"""A stranger takes the place of a rank: torch's store and gloo let everybody in; workers and simple roles do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.agent.workers.worker_env import worker_env
from tests.agent.test_worker_env import PLACE, plan
from tests.live.jobs import cli

#: Rank 1 gives up its rights and is another user from then on; it sends code that runs where an object is unpickled.
SCRIPT = """
import os, sys
import torch.distributed as dist

class Code:
    def __reduce__(self):
        return open, (sys.argv[1], "w")

stranger = os.environ["RANK"] == "1"
if stranger:
    os.setresuid(65534, 65534, 65534)
dist.init_process_group("gloo")
everyone = [None, None]
dist.all_gather_object(everyone, Code() if stranger else "mine")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_rank_of_another_user_is_refused(tmp_path: Path) -> None:
    """The other rank ends with a sentence before it reads anything from the stranger."""
    script, written = tmp_path / "train.py", tmp_path / "written"
    script.write_text(SCRIPT)
    tmp_path.chmod(0o777)
    command = (sys.executable, "-m", "rallypoint.agent", "run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0")
    done = subprocess.run(
        [*command, str(script), str(written)], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert (
        "belongs to a process of user 65534; expected a process of user 0, because all workers of the job run as this user"
        in said
    )
    assert not written.exists()


#: The store of a round, served by another user; prints its port.
STORE = """
import os, sys
from torch.distributed import TCPStore
os.setresuid(65534, 65534, 65534)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.extended
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_store_of_another_user_is_refused_by_a_worker_that_lives_through_rounds(tmp_path: Path) -> None:
    """Fails if such a worker looks at its connections only after it has connected to the store."""
    served = subprocess.Popen([sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert served.stdout is not None
    try:
        environ = {**worker_env({}, plan(), PLACE), "RALLYPOINT_LINE": str(tmp_path / "line"), "RANK": "0", "WORLD_SIZE": "1"}
        environ = {**os.environ, **environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": served.stdout.readline().strip()}
        command = [sys.executable, "-c", "from rallypoint.training import init_process_group as i; i('gloo')"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    finally:
        served.communicate()

    assert done.returncode != 0
    assert "belongs to a process of user 65534" in done.stderr


#: Instance 0 of a simple role first has the key, then plays a process of another machine, and at last another user.
INSTANCES = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from rallypoint.training import Checkpoints
from rallypoint.training.signed import agree, broadcast

class Code:
    def __reduce__(self):
        return open, (sys.argv[1], "w")

def attempt(call):
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

said = []
first = os.environ["RANK"] == "0"
dist.init_process_group("gloo")
said.append(attempt(lambda: agree(lambda: "rank " + os.environ["RANK"])))
if first:
    for name in ("RALLYPOINT_ROLES_SECRET_FILE", "RALLYPOINT_JOB"):
        del os.environ[name]
    attempt(lambda: broadcast(Code(), 0))
else:
    said.append(attempt(lambda: Checkpoints(sys.argv[2]).load({})))
dist.destroy_process_group()
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
if first:
    os.setresuid(65534, 65534, 65534)
said.append(attempt(lambda: dist.init_process_group("gloo")))
if first:
    attempt(dist.barrier)  # the other instance has looked at its connections when it ends
else:
    Path(sys.argv[2], "said").write_text("\\n".join(said))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_an_instance_of_a_simple_role_refuses_strangers(tmp_path: Path, home: Path) -> None:
    """Instances have one key, refuse a value that is signed with another one, and a group with a process of another user."""
    script, written = tmp_path / "pair.py", tmp_path / "written"
    script.write_text(INSTANCES)
    pair = {
        "launch": "simple",
        "entrypoint": str(script),
        "args": [str(written), str(tmp_path)],
        "total": 2,
        "on_failure": "job",
    }
    limits = {"fault_tolerance": {"retry_limit": 0}, "recovery": {"node_replacements": 0}}
    (tmp_path / "pair.json").write_text(json.dumps({"name": "pair", "roles": {"pair": pair}, **limits}))
    done = cli("submit", tmp_path / "pair.json", "--supervise", "here", check=False)

    assert done.returncode == 0, done.stdout + done.stderr + cli("logs", "pair").stdout
    agreed, forged, other = (tmp_path / "said").read_text().splitlines()
    assert agreed == "rank 0"
    assert forged.startswith("CheckpointError: a value of another rank is not signed by a worker of this job")
    assert "belongs to a process of user 65534; expected a process of user 0" in other
    assert not written.exists()
