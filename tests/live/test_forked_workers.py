"""A worker that is a fork of the zygote sees and shows what it would as a program of its own."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.linux import collapse
from rallypoint.agent.workers.zygote.serving import HUGE
from rallypoint.wire.progress import ProgressFile, life_offset
from tests.live.forked import ENV, STARTUP, Zygote, light_torch, spawned, zygote

#: Programs whose ends and outputs must be the same both ways; what differs from process to process is not printed.
PROGRAMS = {
    "it ends well": "print('hello')",
    "exit code": "import sys; sys.exit(7)",
    "exit with a text": "raise SystemExit('no data')",
    "exit with None": "raise SystemExit",
    "large exit code": "import sys; sys.exit(300)",
    "exception": "def f():\n    raise ValueError('loss is nan')\nf()",
    "chained exceptions": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('x') from e",
    "syntax error": "def f(:\n",
    "interrupt": "raise KeyboardInterrupt",
    "interrupted by a signal": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "os._exit": "import os; print('x'); os._exit(3)",
    "excepthook of its own": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "broken excepthook": "import sys\ndef hook(*a): raise OSError('x')\nsys.excepthook = hook\n1 / 0",
    "exit handlers": "import atexit\natexit.register(print, 'bye')\nprint('run')",
    "exit handlers after an exception": "import atexit\natexit.register(print, 'bye')\n1 / 0",
    "threads are waited for": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')"
    ),
    "globals": "print(sorted(globals()), __name__, __file__, __spec__, __package__, __cached__, __builtins__)",
    "main is the main module": "import sys, __main__\nx = 1\nprint(__main__.x, sys.modules['__main__'] is __main__)",
    "arguments": "import sys; print(sys.argv, sys.orig_argv, sys.executable)",
    "first place of modules": "import sys; print(sys.path[0])",
    "a module beside it": "import beside; print(beside.x)",
    "streams": "import sys; print(sys.stdin.read(), sys.stdout.write_through, sys.stdout.encoding, sys.flags.unbuffered)",
    "signals": (
        "import signal\nprint([(s.name, signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)"
        " and s.name not in ('SIGINT',) and callable(signal.getsignal(s))], signal.pthread_sigmask(0, []))"
    ),
    "session and group": "import os; print(os.getsid(0) == os.getpgid(0))",
    "name of the main thread": "import threading; print(threading.current_thread(), threading.active_count())".replace(
        "threading.current_thread()", "threading.current_thread().name, threading.main_thread().name"
    ),
    "torch": (
        "import torch\nprint(torch.manual_seed(5).initial_seed(), torch.rand(3), torch.get_num_threads())"
        "\nprint(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())"
    ),
    "pickling a class of main": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)",
    "future import": "from __future__ import annotations\ndef f(x: nothing): pass\nprint(f.__annotations__)",
}

PROCESSES = """
import multiprocessing, sys
def double(x): return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(double, [1, 2]))
"""

LOADER = """
import torch
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(float(i))
if __name__ == "__main__":
    print([b.tolist() for b in DataLoader(Data(), batch_size=4, num_workers=2)])
"""

TRAIN = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def born() -> Iterator[Zygote]:
    with zygote() as found:
        assert "modules" in found.ready.get("ready", {}), found.ready
        yield found


def written(folder: Path, text: str) -> str:
    (folder / "beside.py").write_text("x = 5\n")
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def plain(text: str) -> str:
    """Without what one process of Python says and another does not: where in memory, and the marks of newer tracebacks."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PROGRAMS.items()])
def test_a_script_cannot_tell(born: Zygote, tmp_path: Path, text: str) -> None:
    """Exit code, output and traceback are those of `python -u script.py`."""
    script = written(tmp_path, text)

    by_fork, as_program = born.run(script, "--lr", "0.1"), spawned(script, "--lr", "0.1")

    assert by_fork.code == as_program.code
    assert plain(by_fork.out) == plain(as_program.out)
    assert plain(by_fork.err) == plain(as_program.err)


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("-m", "package.module", "a"), id="module"),
        pytest.param(("-m", "package", "a"), id="package"),
        pytest.param(("-m", "no_such_module"), id="no such module"),
        pytest.param(("-c", "import sys; print(sys.argv, sys.path[0] == '')", "a"), id="code"),
        pytest.param(("package", "a"), id="folder"),
        pytest.param(("no/such/file.py",), id="no such file"),
    ],
)
def test_other_ways_to_start(born: Zygote, tmp_path: Path, args: tuple[str, ...]) -> None:
    """A module, a package, a folder, a text, and what is not there."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print('main', sys.argv[1:], __name__, __spec__ is None)")
    (package / "module.py").write_text("import sys; print(sys.argv, __name__, __package__, __spec__.name, sys.path[0])")

    by_fork, as_program = born.run(*args, cwd=tmp_path), spawned(*args, cwd=tmp_path)

    assert (by_fork.code, by_fork.out) == (as_program.code, as_program.out)
    assert by_fork.err.replace("<frozen runpy>", "runpy") == as_program.err.replace("<frozen runpy>", "runpy")


def test_environment_and_folder_are_those_of_the_command(born: Zygote, tmp_path: Path) -> None:
    """Nothing of the zygote's is left, for Python and for programs that it starts."""
    script = written(
        tmp_path, "import os, subprocess\nprint(os.environ)\nprint(os.getcwd(), flush=True)\nsubprocess.run(['env'])"
    )

    ran = born.run(script, env={"PATH": os.environ["PATH"], "A": "b"}, cwd=tmp_path)

    lines = ran.out.splitlines()
    assert (lines[1], set(lines[2:])) == (str(tmp_path), {f"PATH={os.environ['PATH']}", "A=b"}), ran


def test_random_numbers_differ_where_they_should(born: Zygote, tmp_path: Path) -> None:
    """The generators of Python, numpy and torch begin anew in every fork, as they do in every process."""
    script = written(tmp_path, "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.initial_seed())")

    first, second = (born.run(script).out.split() for _ in range(2))

    assert all(a != b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_its_own(born: Zygote, tmp_path: Path, method: str) -> None:
    """Multiprocessing finds the script as `__main__`, however it starts."""
    ran = born.run(written(tmp_path, PROCESSES), method)

    assert (ran.code, ran.out) == (0, "[2, 4]\n"), ran.err


def test_workers_of_a_data_loader(born: Zygote, tmp_path: Path) -> None:
    """They are forks of the fork."""
    ran = born.run(written(tmp_path, LOADER))

    assert (ran.code, ran.out) == (0, "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]\n"), ran.err


def test_a_forked_worker_counts_its_steps(born: Zygote, tmp_path: Path) -> None:
    """The start-up module works although torch was imported long before; the dummy step of a warm standby does not count."""
    path, names = tmp_path / "progress", tmp_path / "names"
    progress = ProgressFile.create(path, 1)
    told = {
        "RALLYPOINT_PROGRESS_FILE": str(path),
        "RALLYPOINT_LIFE_OFFSET": str(life_offset(1, 0)),
        "RALLYPOINT_STACK_FILE": str(tmp_path / "stacks"),
        "RALLYPOINT_MODULES_FILE": str(names),
    }

    ran = born.run(written(tmp_path, TRAIN), env={**os.environ, **told}, startup=str(STARTUP))

    assert ran.code == 0, ran.err
    assert progress.life(0).steps == 3
    assert {"torch", "torch._dynamo"} < set(names.read_text().splitlines())
    assert "beside" not in names.read_text().splitlines()
    progress.close()


#: Prints whether the functions that connect ranks are checked, wherever a script may take them from.
FORMING = """
from torch.distributed import device_mesh, distributed_c10d, new_group
for function in (device_mesh.init_process_group, device_mesh.new_group, distributed_c10d.init_process_group, new_group):
    print(hasattr(function, "_rallypoint"))
"""


@pytest.mark.parametrize("warm", [False, True])
def test_a_forked_worker_checks_the_groups_of_all_modules(born: Zygote, tmp_path: Path, warm: bool) -> None:
    """A device mesh calls what its module took over when the zygote imported it, long before there was a worker."""
    ProgressFile.create(tmp_path / "progress", 1).close()
    told = {
        "RALLYPOINT_PROGRESS_FILE": str(tmp_path / "progress"),
        "RALLYPOINT_LIFE_OFFSET": str(life_offset(1, 0)),
        "RALLYPOINT_STACK_FILE": str(tmp_path / "stacks"),
    }
    ran = born.run(written(tmp_path, FORMING), env={**os.environ, **told}, startup=str(STARTUP), warm=warm)

    assert (ran.code, ran.out.split()) == (0, ["True"] * 4), ran.err


#: Programs that end by themselves, with the status that they publish when only their teardown is left; None is unknown.
ENDS = {
    "return": ("print('hello')", 0),
    "exit code": ("import sys; sys.exit(7)", 7),
    "exit of the site module": ("exit(4)", 4),
    "exit with a text": ("import sys; sys.exit('no data')", 1),
    "exit with None": ("import sys; sys.exit()", 0),
    "large exit code": ("import sys; sys.exit(300)", 44),
    "negative exit code": ("import sys; sys.exit(-1)", 255),
    "huge exit code": ("import sys; sys.exit(1 << 80)", 255),
    "exception": ("1 / 0", 1),
    "exception in a function": ("def f(): 1 / 0\nf()", 1),
    "interrupt": ("raise KeyboardInterrupt", -2),
    "an exit that was caught": ("import sys\ntry: sys.exit(3)\nexcept SystemExit: pass", 0),
    "an exit in a thread": ("import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", 0),
    "SystemExit": ("raise SystemExit(5)", None),
    "a killed script": ("import os; os.kill(os.getpid(), 9)", -9),
}


@pytest.mark.parametrize("kind", ["fork", "program"])
@pytest.mark.parametrize("name", ENDS)
def test_the_status_is_published_before_the_teardown(born: Zygote, tmp_path: Path, name: str, kind: str) -> None:
    """It is the exit code that the parent sees later; a process that is killed before has published none."""
    text, expected = ENDS[name]
    path = tmp_path / "progress"
    progress = ProgressFile.create(path, 1)
    told = {
        **ENV,
        "RALLYPOINT_PROGRESS_FILE": str(path),
        "RALLYPOINT_LIFE_OFFSET": str(life_offset(1, 0)),
        "RALLYPOINT_STACK_FILE": str(tmp_path / "stacks"),
        "PYTHONPATH": str(STARTUP.parent),
    }
    script = written(tmp_path, text)

    ran = born.run(script, env=told, startup=str(STARTUP)) if kind == "fork" else spawned(script, env=told)

    status = progress.life(0).exit_status
    progress.close()
    if name == "SystemExit":
        assert (ran.code, status and status.code) == (5, 5 if kind == "fork" else None), ran.err
    elif name == "a killed script":
        assert (ran.code, status) == (expected, None), ran.err
    else:
        assert (ran.code, status and status.code) == (expected, expected), ran.err


def test_a_warm_standby_says_what_it_costs(born: Zygote) -> None:
    """Little: it shares nearly everything with the zygote."""
    pid, line, said = born.standby(warm=True)
    with line:
        assert said["trouble"] == ""
        assert 0 < said["ready"]["own"] < 60e6
        assert os.getsid(pid) == pid
    assert os.waitpid(pid, 0)[1] == 0  # it ends when its line does


def test_what_forks_share_is_in_huge_pages(born: Zygote) -> None:
    """Most of it, where the kernel can do it at all."""
    with mmap.mmap(-1, 4 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(len(memory))
        here = ctypes.addressof(ctypes.c_char.from_buffer(memory))  # held no longer than this expression
        can = collapse(-(-here // HUGE) * HUGE, HUGE)

    assert (born.ready["ready"]["huge"] > 0) is can


GROUPS = """
import os, sys
from pathlib import Path

import torch
from torch import distributed as dist

names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print(dist.is_initialized(), sys.excepthook is sys.__excepthook__, [name for name in names if "gloo" in name])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.group.WORLD.group_name, dist.get_world_size(), dist.new_group().group_name)
dist.destroy_process_group()
os.write(1, b"done\\n")
"""


def test_of_the_group_in_which_a_standby_was_warmed_nothing_is_left(born: Zygote, tmp_path: Path) -> None:
    """The script makes the first group of its process, with the names that a first group has."""
    script = written(tmp_path, GROUPS)

    ran, program = born.run(script, warm=True), spawned(script)

    assert (ran.code, ran.out) == (program.code, program.out), ran.err
    assert ran.out.splitlines() == ["False True []", "0 1 1", "done"]


def test_a_folder_that_is_not_there_is_told(born: Zygote, tmp_path: Path) -> None:
    """As the error that starting a program there would be."""
    from rallypoint.agent.workers.zygote.messages import Order, frame, receive

    pid, line, _ = born.standby()
    with line:
        order = Order(argv=(sys.executable, "-c", ""), env={}, cwd=str(tmp_path / "none"))
        line.sendall(frame(order.to_json()))
        answer, _ = receive(line)
    os.waitpid(pid, 0)

    assert answer == {"failed": [2, "No such file or directory", str(tmp_path / "none")]}


def test_what_scripts_import_is_learned(born: Zygote, tmp_path: Path) -> None:
    """Packages that ask for their place in the world when they are imported are told."""
    names = tmp_path / "names"
    names.write_text("tabnanny\nno_such_module\n")

    told = born.ask({"learn": str(names), "without": []})["learned"]

    assert (told["count"] >= 1, list(told["failed"]), told["asked"], told["unfit"]) == (True, ["no_such_module"], {}, "")


def test_a_zygote_with_threads_says_so(tmp_path: Path) -> None:
    """A fork would not have them, and might wait for them for ever."""
    (tmp_path / "busy.py").write_text("import threading\nthreading.Timer(3600, print).start()\n")

    with zygote("busy", env=light_torch(tmp_path)) as busy:
        said = busy.ready["unfit"]

    assert re.match(r"1 threads run after the preload \(.*\); a forked process would not have them", said)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        pytest.param("is_initialized", "torch.cuda was initialised during the preload", id="a context"),
        pytest.param("_is_in_bad_fork", "torch.cuda counted its devices during the preload", id="devices were counted"),
    ],
)
def test_a_zygote_with_a_device_says_so(tmp_path: Path, question: str, why: str) -> None:
    """No context survives a fork, and torch refuses to make one there when it was asked for devices before."""
    init = f"class cuda:\n    {question} = staticmethod(lambda: True)\n"

    with zygote(env=light_torch(tmp_path, init)) as found:
        assert found.ready["unfit"].startswith(why)


#: As torch does it: CUDA's own count of devices poisons every later fork, that of NVIDIA's management library does not.
CUDA = """
import os

class cuda:
    counted = False

    @classmethod
    def is_available(cls):
        if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
            cls.counted = os.getpid()
        return True

    is_initialized = staticmethod(lambda: False)

    @classmethod
    def _is_in_bad_fork(cls):
        return cls.counted not in (False, os.getpid())

class default_generator:
    seed = staticmethod(lambda: None)
"""


def test_a_module_may_ask_for_a_gpu_when_it_is_imported(tmp_path: Path) -> None:
    """Many do; the zygote of a machine with a GPU is fit all the same, and a worker has the variables that it was given."""
    (tmp_path / "asking.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
    variables = light_torch(tmp_path, CUDA)

    with zygote("asking", env=variables) as found:
        assert "ready" in found.ready, found.ready
        ran = found.run("-c", "import asking, os; print(asking.found, os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'))")

    assert ran.out == "True None\n"


def test_a_module_that_asks_for_its_place_is_told(tmp_path: Path) -> None:
    """Modules beside the script are found; who asks for its rank while it is imported would have one answer in all workers."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "placed.py").write_text("import os\nrank = os.environ.get('LOCAL_RANK')\n")

    with zygote("placed", "json", "no_such", place=str(tmp_path / "beside"), env=light_torch(tmp_path)) as found:
        assert "ready" in found.ready, found.ready
        ready = found.ready["ready"]

    assert ready["asked"] == {"placed": ["LOCAL_RANK"]}
    assert list(ready["failed"]) == ["no_such"]


def test_forks_outlive_the_zygote(tmp_path: Path) -> None:
    """A dead zygote takes nobody along: its forks are children of the agent."""
    with zygote(env=light_torch(tmp_path)) as mortal:
        pid, line, _ = mortal.standby()
        mortal.process.send_signal(signal.SIGKILL)
        mortal.process.wait()
        with line:
            os.kill(pid, 0)
            assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
        assert os.waitpid(pid, 0)[1] == 0
