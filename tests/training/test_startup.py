"""What every Python of a worker runs before the script: real interpreters, started in each way that a job can start them."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rallypoint.agent.node.health.evidence import Asked, ask_for_stacks, main_frames, read_stacks
from rallypoint.training import startup
from rallypoint.wire import env
from rallypoint.wire.hang import STACK_SIGNAL
from rallypoint.wire.progress import Life, ProgressFile, life_offset
from tests.waiting import PATIENCE, eventually

STARTUP = Path(startup.__file__).parent

#: Enough of torch for a hook: what is real of it is tested with the real one below.
OPTIMIZER = """
hooks = []
register_optimizer_step_post_hook = hooks.append
def step():
    for hook in hooks:
        hook(None, (), {})
"""

TRAIN = """
import sys, time
from pathlib import Path
from torch.optim.optimizer import step
for _ in range(int(sys.argv[1])):
    step()
Path(sys.argv[2]).touch()
while not Path(sys.argv[2] + ".end").exists():
    time.sleep(0.01)
"""


@dataclass
class Worker:
    """One local rank of two, and the shared memory that its agent reads."""

    folder: Path
    progress: ProgressFile
    rank: int = 1
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def stacks(self) -> Path:
        return self.folder / "stacks.txt"

    @property
    def life(self) -> Life:
        return self.progress.life(self.rank)

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    def environment(self, *path: Path) -> dict[str, str]:
        told = {
            env.PROGRESS_FILE: str(self.folder / "progress"),
            env.LIFE_OFFSET: str(life_offset(2, self.rank)),
            env.STACK_FILE: str(self.stacks),
            "PYTHONPATH": os.pathsep.join(map(str, (STARTUP, self.folder, *path))),
        }
        return {**os.environ, **told}

    def start(self, *command: object, path: Sequence[Path] = ()) -> subprocess.Popen[str]:
        words = list(map(str, command))
        process = subprocess.Popen(
            words, env=self.environment(*path), cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.started.append(process)
        return process

    def run(self, *command: object, path: Sequence[Path] = ()) -> str:
        process = self.start(*command, path=path)
        said, _ = process.communicate(timeout=60 * PATIENCE)
        assert process.returncode == 0, said
        return said

    def end(self) -> None:
        Path(f"{self.ready}.end").touch()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    folder = tmp_path / "a worker's folder"
    package = folder / "torch" / "optim"
    package.mkdir(parents=True)
    for path in (folder / "torch", package):
        (path / "__init__.py").touch()
    (package / "optimizer.py").write_text(OPTIMIZER)
    (folder / "train.py").write_text(TRAIN)
    progress = ProgressFile.create(folder / "progress", 2)
    worker = Worker(folder=folder, progress=progress)
    yield worker
    worker.end()
    for process in worker.started:
        process.kill()
        process.communicate()
    progress.close()


PYTHON = shlex.quote(sys.executable)
FORMS = [
    pytest.param([sys.executable, "-u", "train.py", "5", "ready"], id="a script"),
    pytest.param([sys.executable, "-u", "-m", "train", "5", "ready"], id="a module"),
    pytest.param(["bash", "-c", f"{PYTHON} train.py 5 ready; true"], id="behind a shell"),
    pytest.param(["bash", "-c", f"{PYTHON} -c pass; exec {PYTHON} train.py 5 ready"], id="after another program, in its place"),
    pytest.param(["env", "A=1", sys.executable, "train.py", "5", "ready"], id="behind a command"),
    pytest.param(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, 'train.py', '5', 'ready'])"],
        id="behind a launcher in Python",
    ),
]


@pytest.mark.parametrize("command", FORMS)
def test_steps_are_counted_without_a_line_of_the_script(worker: Worker, command: list[str]) -> None:
    """And the process that trains is named, whoever was started first."""
    process = worker.start(*command)
    eventually(worker.ready.exists, why="the script has trained")
    life, train = worker.life, Path(f"/proc/{worker.life.pid}/cmdline").read_bytes().split(b"\0")
    worker.end()
    process.communicate(timeout=60 * PATIENCE)

    assert (life.steps, life.trains) == (5, True)
    assert [word for word in (b"train.py", b"train") if word in train]
    assert worker.progress.life(0) == Life()


@pytest.mark.parametrize("command", FORMS)
def test_whoever_trains_tells_where_it_stands(worker: Worker, command: list[str]) -> None:
    """It is asked by a signal, and does not notice."""
    process = worker.start(*command)
    eventually(worker.ready.exists, why="the script has trained")
    life = worker.life
    asked = ask_for_stacks(Asked(local_rank=1, pid=life.pid, stacks=life.stacks, file=worker.stacks))
    texts = asyncio.run(read_stacks([asked], within=60 * PATIENCE))
    worker.end()
    process.communicate(timeout=60 * PATIENCE)

    assert asked.note == ""
    assert any(frame.startswith("train.py:") for frame in main_frames(texts[1])), "the script, in whatever it calls"
    assert process.returncode == 0


def test_a_start_is_told_before_anything_is_imported(worker: Worker) -> None:
    """A rank that hangs in its first import can be asked, too; a helper that it starts takes nothing over."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass']); print(__import__('os').getpid())"

    pid = int(worker.run(sys.executable, "-c", code))

    assert (worker.life.pid, worker.life.trains, worker.life.steps) == (pid, False, 0)
    assert worker.life.stacks > 2


def test_a_fork_that_trains_is_named(worker: Worker) -> None:
    """One that does not (a data loader's) takes nothing over."""
    code = (
        "import os\nfrom torch.optim.optimizer import step\n"
        "def forked(steps):\n    pid = os.fork()\n    if not pid:\n        [step() for _ in range(steps)]\n"
        "        while not os.path.exists('ready.end'): pass\n        os._exit(0)\n    print(pid, flush=True)\n"
        "forked(0)\nforked(2)\n"
    )
    process = worker.start(sys.executable, "-c", code)
    eventually(lambda: worker.life.trains, why="a child trains")
    worker.end()
    said, _ = process.communicate(timeout=60 * PATIENCE)

    assert (worker.life.pid, worker.life.steps) == (int(said.split()[1]), 2)


def test_the_module_that_it_hides_runs_as_ever(worker: Worker, tmp_path: Path) -> None:
    """And the script finds neither our folder on its path nor our module in its place."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys\nsys.was_here = __file__\n")
    code = "import sys, sitecustomize; print(sys.was_here, sitecustomize.__file__, sum('startup' in p for p in sys.path))"

    said = worker.run(sys.executable, "-c", code, path=[other])

    assert said.split() == [str(other / "sitecustomize.py")] * 2 + ["0"]
    assert worker.life.pid > 0


def test_an_error_in_the_module_that_it_hides_is_told_as_ever(worker: Worker, tmp_path: Path) -> None:
    """Python says so and goes on, as it would without us; our own part was done before."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("raise ValueError('of my own')\n")

    said = worker.run(sys.executable, "-c", "print('goes on')", path=[other])

    assert "of my own" in said
    assert "goes on" in said
    assert worker.life.pid > 0


def test_without_torch_nothing_happens(worker: Worker) -> None:
    """Whoever cannot import it gets the error that it would get anyway."""
    code = "import sys\ntry:\n    import torch.optim.optimizer\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    for path in sorted((worker.folder / "torch").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (worker.folder / "torch").rmdir()
    (worker.folder / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")

    assert worker.run(sys.executable, "-c", code).strip() == "torch"
    assert worker.life.steps == 0


def test_outside_of_a_worker_it_does_nothing(worker: Worker) -> None:
    """The folder may be on the path of any Python; without shared memory nothing is written and no signal is caught."""
    code = "import sys, signal, faulthandler; print(faulthandler.unregister(45), len(sys.meta_path))"
    plain = {name: value for name, value in worker.environment().items() if not name.startswith("RALLYPOINT")}
    bare = {name: value for name, value in plain.items() if name != "PYTHONPATH"}

    def said(environment: dict[str, str]) -> str:
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout

    assert said(plain) == said(bare)
    assert worker.life == Life()


@pytest.mark.parametrize(("rank", "checked"), [("0", True), ("", False)], ids=["an instance of a simple role", "a zygote"])
def test_without_a_life_record_only_process_groups_are_checked(worker: Worker, rank: str, checked: bool) -> None:
    """In an instance of a simple role; a zygote, which has no rank, stays as it is, and its forks are wrapped."""
    groups = worker.folder / "torch" / "distributed"
    groups.mkdir()
    (groups / "__init__.py").touch()
    (groups / "distributed_c10d.py").write_text("def init_process_group(): pass\ndef barrier(): pass\n")
    names = (env.PROGRESS_FILE, env.LIFE_OFFSET, env.STACK_FILE)
    without = ["env", *(word for name in names for word in ("-u", name)), *([f"RANK={rank}"] if rank else ["-u", "RANK"])]
    code = (
        "import sys, torch.optim.optimizer as o, torch.distributed.distributed_c10d as d; "
        "print(hasattr(d.init_process_group, '_rallypoint'), len(o.hooks), '_rallypoint_peers' in sys.modules)"
    )

    said = worker.run(*without, sys.executable, "-c", code)

    assert said.split() == [str(checked), "0", str(checked)]


def test_what_other_modules_have_taken_over_is_wrapped_in_forks(worker: Worker) -> None:
    """A module that a zygote has imported took `init_process_group` over by its name, before there was a worker."""
    groups = worker.folder / "torch" / "distributed"
    groups.mkdir()
    (groups / "__init__.py").touch()
    (groups / "distributed_c10d.py").write_text("def init_process_group(word): return word * 2\n")
    (groups / "device_mesh.py").write_text("from torch.distributed.distributed_c10d import init_process_group as begin\n")
    code = (
        f"import runpy, sys; hooks = runpy.run_path({str(Path(startup.__file__).with_name('sitecustomize.py'))!r}); "
        "hooks['prepare_forks'](); import torch.distributed.device_mesh as mesh; "
        "print(mesh.begin('ab'), hasattr(mesh.begin, '_rallypoint'), mesh.begin.__name__); "
        "hooks['_wrap'](); print(mesh.begin('ab'), hasattr(mesh.begin, '_rallypoint'))"
    )
    plain = ["env", *(word for name in (env.PROGRESS_FILE, env.LIFE_OFFSET, env.STACK_FILE, "RANK") for word in ("-u", name))]

    said = worker.run(*plain, sys.executable, "-c", code)

    assert said.split() == ["abab", "False", "init_process_group", "abab", "True"]


def test_shared_memory_that_cannot_be_used_costs_the_script_nothing(worker: Worker) -> None:
    """One line says so."""
    broken = {**worker.environment(), env.STACK_FILE: "/no/such/folder/stacks"}
    done = subprocess.run(
        [sys.executable, "-c", "print('trained')"],
        env=broken,
        capture_output=True,
        text=True,
        check=True,
        timeout=60 * PATIENCE,
    )

    assert done.stdout == "trained\n"
    assert "rallypoint: this worker sends no heartbeats: FileNotFoundError" in done.stderr


@pytest.mark.parametrize("known", [pytest.param(True, id="it says it listens"), pytest.param(False, id="it says nothing")])
def test_who_does_not_catch_the_signal_is_not_sent_it(worker: Worker, known: bool) -> None:
    """It would be its end: a process that unregistered the handler, or that another program took the place of."""
    code = f"import faulthandler, time; faulthandler.unregister({STACK_SIGNAL:d}); open('ready', 'w').close(); time.sleep(600)"
    process = worker.start(sys.executable, "-c", code)
    eventually(worker.ready.exists, why="the handler is gone")
    life = worker.life
    stacks = life.stacks if known else 0

    asked = ask_for_stacks(Asked(local_rank=1, pid=life.pid, stacks=stacks, file=worker.stacks))

    assert asked.note == f"its Python {'no longer handles' if known else 'did not register'} the stack-dump signal"
    assert process.poll() is None


def test_a_file_that_is_another_one_by_now_is_not_written_to(worker: Worker) -> None:
    """A script may close all files and open its own: its checkpoint must not get a stack into it."""
    code = (
        "import os, time\nos.closerange(3, 64)\nfiles = [open(f'checkpoint{n}', 'w') for n in range(8)]\n"
        "open('ready', 'w').close()\ntime.sleep(600)"
    )
    worker.start(sys.executable, "-c", code)
    eventually(worker.ready.exists, why="the files are others")

    asked = ask_for_stacks(Asked(local_rank=1, pid=worker.life.pid, stacks=worker.life.stacks, file=worker.stacks))

    assert asked.note == "its Python no longer handles the stack-dump signal"
    assert all(not (worker.folder / f"checkpoint{n}").read_bytes() for n in range(8))


def test_a_process_that_is_stopped_does_not_answer_and_is_none_the_worse(worker: Worker) -> None:
    """The signal waits for it; when it goes on it writes, and trains."""
    process = worker.start(sys.executable, "train.py", "1", "ready")
    eventually(worker.ready.exists, why="the script has trained")
    os.kill(worker.life.pid, signal.SIGSTOP)
    began = time.monotonic()

    asked = ask_for_stacks(Asked(local_rank=1, pid=worker.life.pid, stacks=worker.life.stacks, file=worker.stacks))
    texts = asyncio.run(read_stacks([asked], within=0.2))
    os.kill(worker.life.pid, signal.SIGCONT)
    worker.end()
    process.communicate(timeout=60 * PATIENCE)

    assert texts == {1: ""}
    assert time.monotonic() - began >= 0.2
    assert process.returncode == 0


REAL = """
import torch, sys, time
from torch import nn
model = nn.Linear(4, 4)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
adam = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
for optimizer in (sgd, adam):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
compiled = torch.compile(sgd.step, backend="eager")
for _ in range(4):
    compiled()
"""


def test_the_real_torch_is_hooked(tmp_path: Path) -> None:
    """Every optimizer, also where its step is compiled."""
    pytest.importorskip("torch")
    real = Worker(folder=tmp_path, progress=ProgressFile.create(tmp_path / "progress", 2))
    (tmp_path / "real.py").write_text(REAL)

    real.run(sys.executable, "real.py")

    assert (real.life.steps, real.life.trains) == (10, True)
