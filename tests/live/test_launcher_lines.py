"""The command lines of torch's own launcher tests (test/distributed/launcher/test_run.py), through torchrun and ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.live.agent_processes import ROOT, SCRIPTS, Agents, agents, free_port, said

SCRIPT = str(SCRIPTS / "launched.py")

#: Of the variables of a worker, those that are the same whatever else differs.
SAME = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("OMP_NUM_THREADS", "SENTINEL", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "total"),
)

COMMON = ("--monitor-interval=1", "--start-method=spawn")
# Alone with `1:2` torchrun waits half a minute for the second node: the quotes hide `last_call_timeout` from it.
ONE, TWO = ("--nnodes=1", "--nproc-per-node=2"), ("--nnodes=1:2", "--nproc-per-node=2")


@dataclass(frozen=True)
class Line:
    """One command line; in its words PORT is a free port, and DIR the folder of what the workers write.

    Attributes:
        flags: before the script.
        rest: behind the script.
        script: what runs.
        same: variables that the line settles, beside `SAME`.
        env: variables of the launcher.
        agents: how many start with it.
        torch: the script imports torch.
    """

    flags: tuple[str, ...]
    rest: tuple[str, ...] = ("--touch-file-dir=DIR",)
    script: tuple[str, ...] = (SCRIPT,)
    same: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    agents: int = 1
    torch: bool = False

    def words(self, folder: Path, port: int) -> list[str]:
        whole = (*self.flags, *self.script, *self.rest)
        return [word.replace("PORT", str(port)).replace("DIR", str(folder)) for word in whole]

    def outcome(self, code: int, folder: Path, port: int) -> tuple[bool, dict[str, dict[str, str]]]:
        """Return whether it went well, and what each worker wrote of what must be the same."""
        found = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
        told = {rank: {name: seen.get(name, "") for name in (*SAME, *self.same)} for rank, seen in found.items()}
        for seen in told.values():
            if seen.get("MASTER_PORT") == str(port):
                seen["MASTER_PORT"] = "PORT"
        return code == 0, told


PROGRAM = (sys.executable, SCRIPT)
STATIC = ("--master-addr=localhost", "--master-port=PORT")
ELASTIC = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:PORT", "--rdzv-id=r7")
GIVEN = ("MASTER_ADDR", "MASTER_PORT")

LINES = {
    "a script": Line((*ONE, "--rdzv-id=r7", *COMMON)),
    "a master port": Line((*ONE, *COMMON, *STATIC, "--node-rank=0"), same=GIVEN),
    "a program": Line((*ONE, "--rdzv-id=r7", *COMMON, "--no-python"), script=PROGRAM),
    "a program that cannot be a module": Line((*ONE, *COMMON, "--no-python", "--module"), script=PROGRAM),
    "one worker by default": Line(("--nnodes=1", "--rdzv-id=r7", *COMMON, "--no-python"), script=PROGRAM),
    "all by variables": Line(
        (),
        script=PROGRAM,
        env={
            "PET_NNODES": "1",
            "PET_NPROC_PER_NODE": "2",
            "PET_NO_PYTHON": "1",
            "PET_MODULE": "0",
            "PET_MONITOR_INTERVAL": "1",
        },
    ),
    "as many workers as CPUs": Line(("--nnodes=1", "--nproc-per-node=cpu", *COMMON)),
    "no such number of workers": Line(("--nnodes=1", "--nproc-per-node=unknown", *COMMON)),
    "elastic": Line(
        (*ONE, *ELASTIC, "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'", *COMMON), same=("TORCHELASTIC_RUN_ID",)
    ),
    "elastic, and it fails": Line(
        (*ONE, *ELASTIC, "--rdzv-conf='join_timeout=5,last_call_timeout=1'", "--max-restarts=0", *COMMON),
        rest=("--fail", "--touch-file-dir=DIR"),
    ),
    "elastic with two agents": Line(
        (*TWO, *ELASTIC, "--rdzv_conf=timeout=5", *COMMON), same=("TORCHELASTIC_RUN_ID",), agents=2
    ),
    "standalone": Line((*ONE, "--standalone", *COMMON)),
    "by runpy": Line(("--run-path", *ONE, *COMMON)),
    "streams and abbreviations": Line((*ONE, "--redirect=3", "--tee=3", *COMMON)),
    "a group at the master port": Line(
        ("--run-path", *ONE, *STATIC, "--monitor-interval=1"),
        rest=("--touch-file-dir=DIR", "--init-method=tcp://localhost:PORT"),
        same=GIVEN,
        torch=True,
    ),
    "a group by its variables": Line(
        ("--run-path", *ONE, *STATIC, "--monitor-interval=1"),
        rest=("--touch-file-dir=DIR", "--init-method=env://"),
        same=GIVEN,
        torch=True,
    ),
}


#: Those of them that must fail; without this list a script that never runs would be the same outcome.
BAD = ["a program that cannot be a module", "no such number of workers", "elastic, and it fails"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


@pytest.mark.extended
def test_every_line_has_the_same_outcome(job: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """As good or as bad, with the same ranks, and with the same variables."""
    monkeypatch.setenv("SENTINEL", "here")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    runs = {who: {name: (_folder(job.folder / who / name), free_port()) for name in LINES} for who in ("torchrun", "ours")}
    order = [(dict(line.env), line.agents, line.words(*runs["torchrun"][name])) for name, line in LINES.items()]
    (job.folder / "order.json").write_text(json.dumps(order))
    torchrun = job.python(SCRIPTS / "torchrun_lines.py", job.folder / "order.json")  # beside ours: it imports torch first

    light, outcomes, outputs = job.path, {}, {}
    for name, line in LINES.items():
        job.path = str(ROOT) if line.torch else light
        with monkeypatch.context() as patch:
            for variable, value in line.env.items():
                patch.setenv(variable, value)
            ended = [said(run) for run in [job.run(*line.words(*runs["ours"][name])) for _ in range(line.agents)]]
        outcomes[name] = line.outcome(max(code for code, _ in ended), *runs["ours"][name])
        outputs[name] = "".join(output for _, output in ended)

    _, output = said(torchrun, timeout=300.0)
    codes = [int(line.split()[1]) for line in output.splitlines() if line.startswith("code ")]
    assert len(codes) == len(LINES), output
    for (name, line), code in zip(LINES.items(), codes, strict=True):
        expected = line.outcome(code, *runs["torchrun"][name])
        assert outcomes[name] == expected, f"{name}\n{outputs[name]}"
    assert [name for name, (well, _) in outcomes.items() if not well] == BAD


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
