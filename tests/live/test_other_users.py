"""Another user of the machine takes the place of a rank: torch's store and gloo let everybody in, the workers do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
