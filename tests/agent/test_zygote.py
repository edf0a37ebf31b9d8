"""What a fork can become, and who starts a worker when it cannot: without processes."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.node.parts import launcher as launcher_of
from rallypoint.agent.node.parts import restarts
from rallypoint.agent.workers.logs import Streams
from rallypoint.agent.workers.reaper import Ended
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.agent.workers.zygote import launcher, serving
from rallypoint.agent.workers.zygote.launcher import Launcher
from rallypoint.agent.workers.zygote.messages import Order, frame, receive
from rallypoint.agent.workers.zygote.preload import load, without
from rallypoint.agent.workers.zygote.program import Program, What, parse
from rallypoint.agent.workers.zygote.standby import Standby, StandbyLostError
from rallypoint.agent.workers.zygote.standby_pool import StandbyPool, Wanted, declared
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.python import run_module
from rallypoint.wire.sections import build, replaced
from tests.agent.fakes import DeafReaper

PYTHON = sys.executable
PLAN = build(
    Plan,
    name="job",
    role="r",
    min_nodes=1,
    max_nodes=1,
    nproc_per_node=2,
    entry=Entry.SCRIPT,
    entrypoint="t.py",
    max_restarts=1,
)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["py", "-u", "t.py", "-m", "x"], (What.SCRIPT, "t.py", ("-m", "x")), id="script"),
        pytest.param(["py", "-u", "-m", "pkg.mod", "--lr", "1"], (What.MODULE, "pkg.mod", ("--lr", "1")), id="module"),
        pytest.param(["py", "-c", "print()", "a"], (What.CODE, "print()", ("a",)), id="text"),
        pytest.param(["py", "folder"], (What.SCRIPT, "folder", ()), id="without -u"),
        pytest.param(["py", "-X", "dev", "t.py"], None, id="another option of Python"),
        pytest.param(["py", "-u", "-m"], None, id="no module"),
        pytest.param(["py"], None, id="nothing"),
        pytest.param(["py", "-"], None, id="standard input"),
    ],
)
def test_command_lines_are_read_as_python_reads_them(
    argv: list[str], expected: tuple[What, str, tuple[str, ...]] | None
) -> None:
    """Anything that only Python itself knows is no program that a fork can become."""
    what = None if expected is None else Program(what=expected[0], name=expected[1], args=expected[2])
    assert parse(argv) == what


def test_a_module_of_ours_is_known_by_its_command_line() -> None:
    """A fork that becomes it finds no module in its folder either."""
    argv = run_module("rallypoint.training.call", "m:f", python=("py", "-u"))

    assert parse(argv) == Program(what=What.MODULE, name="rallypoint.training.call", args=("m:f",), ours=True)
    assert parse(argv[:-2]) == Program(what=What.CODE, name=argv[3], args=())


def test_a_refusal_says_why() -> None:
    """Another interpreter, a program that is no Python, an option of Python."""
    assert launcher.refusal([PYTHON, "-u", "t.py"], python=PYTHON) == ""
    assert launcher.refusal(["/bin/bash", "t.sh"], python="/p") == "/bin/bash is not this Python (/p)"
    assert launcher.refusal(["/p", "-O", "t.py"], python="/p") == "/p -O t.py: has options for the Python interpreter"


def test_variables_of_birth_are_those_that_imports_read() -> None:
    """A place in the world may change from round to round; what libraries read when they are loaded may not."""
    read = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0", "TORCH_LOGS": "x"}
    env = {**read, "RANK": "1", "TORCHELASTIC_RUN_ID": "j", "A": "b"}
    assert launcher.birth_variables(env) == read
    assert set(launcher.zygote_env(env)) == set(env) - {"RANK"}


@pytest.mark.parametrize(
    ("argv", "place"),
    [
        pytest.param(["py", "-u", "sub/t.py"], "/w/sub", id="script: its folder"),
        pytest.param(["py", "-u", "/d/t.py"], "/d", id="script elsewhere: its folder"),
        pytest.param(["py", "-u", "-m", "t"], "/w", id="module: where it starts"),
    ],
)
def test_the_place_of_a_programs_own_modules(argv: list[str], place: str) -> None:
    """What Python has as the first entry of its path."""
    assert launcher.place_of(argv, "/w") == place


def test_an_order_travels_with_its_descriptors() -> None:
    """In pieces of any size."""
    order = Order(argv=("py", "t.py"), env={"A": "b" * 300_000}, cwd="/w", streams=(1,), keep=(7,))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        data = frame(order.to_json())
        ours.setblocking(False)
        sent = socket.send_fds(ours, [data], [0, 1])
        theirs.setblocking(True)
        got: list[object] = []
        reader = threading.Thread(target=lambda: got.extend(receive(theirs)))
        reader.start()
        ours.setblocking(True)
        ours.sendall(data[sent:])
        reader.join()
    message, fds = got
    assert isinstance(message, dict)
    assert isinstance(fds, list)
    assert (Order.from_json(message), len(fds)) == (order, 2)
    for fd in fds:
        socket.close(fd)


def test_a_line_that_breaks_is_no_message() -> None:
    """The other end ended in the middle of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        ours.sendall(frame({"a": 1})[:-1])
        ours.close()
        assert receive(theirs)[0] is None


def test_what_fails_to_import_is_told_and_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that ends the interpreter; modules that read their rank are reported, and no garbage is collected."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "zy_exits.py").write_text("raise SystemExit(3)")
    (tmp_path / "zy_asks.py").write_text("import os\nos.getenv('RANK'), os.environ.get('HOME'), 'WORLD_SIZE' in os.environ\n")
    (tmp_path / "zy_fine.py").write_text("import gc\nassert not gc.isenabled()\n")

    loaded = load(["zy_exits", "zy_asks", "zy_none", "zy_fine"])

    assert loaded.failed == {"zy_exits": "SystemExit: 3", "zy_none": "ModuleNotFoundError: No module named 'zy_none'"}
    assert loaded.asked == {"zy_asks": ("RANK", "WORLD_SIZE")}
    assert loaded.count >= 2
    assert gc.isenabled()
    for name in ("zy_asks", "zy_fine"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        pytest.param("00200000-00600000 rw-p 00000000 00:00 0", [0x200000, 0x400000], id="two whole ones"),
        pytest.param("001ff000-00601000 rw-p 00000000 00:00 0", [0x200000, 0x400000], id="and less than one at each end"),
        pytest.param("00201000-00400000 rw-p 00000000 00:00 0", [], id="none is whole"),
        pytest.param("00200000-00400000 rw-p 00000000 00:00 0   [heap]", [0x200000], id="the heap"),
        pytest.param("00200000-00400000 rw-p 00000000 00:00 0   [stack]", [], id="the stack"),
        pytest.param("00200000-00400000 r--p 00000000 00:00 0", [], id="not to be written to"),
        pytest.param("00200000-00400000 rw-s 00000000 00:01 0   /dev/zero", [], id="shared"),
        pytest.param("00200000-00400000 rw-p 00001000 fe:00 77  /lib/a library.so", [], id="of a file"),
    ],
)
def test_where_huge_pages_could_be(line: str, begins: list[int]) -> None:
    """Only what is this process's own, and whole."""
    assert list(serving.spans([line])) == begins


@pytest.mark.parametrize(("used", "taken"), [(1.0, True), (0.8, True), (0.7, False), (0.0, False)])
def test_only_memory_in_use_comes_into_huge_pages(tmp_path: Path, used: float, *, taken: bool) -> None:
    """A huge page for little would take what nobody had."""
    (tmp_path / "maps").write_text("00200000-00400000 rw-p 00000000 00:00 0\n")
    page = os.sysconf("SC_PAGE_SIZE")
    there = round(used * (serving.HUGE // page))
    entries = (1 << 63).to_bytes(8, "little") * there + bytes(8) * (serving.HUGE // page - there)
    (tmp_path / "pagemap").write_bytes(bytes(0x200000 // page * 8) + entries)
    asked: list[tuple[int, int]] = []

    def take(address: int, length: int) -> bool:
        asked.append((address, length))
        return True

    assert serving.into_huge_pages(process=tmp_path, take=take) == (serving.HUGE if taken else 0)
    assert asked == ([(0x200000, serving.HUGE)] if taken else [])


def test_a_kernel_without_them_costs_nothing(tmp_path: Path) -> None:
    """It refuses, or tells nothing of its memory."""
    assert serving.into_huge_pages(process=tmp_path / "none") == 0
    assert serving.into_huge_pages(take=lambda *_: False) == 0


def test_packages_can_be_left_out() -> None:
    """With all that is in them, and nothing that is merely called alike."""
    assert without(["a", "a.b", "ab", "c"], ["a"]) == ["ab", "c"]


def test_declared_modules_are_listed_once() -> None:
    """Of the plan, of the flag and of the environment."""
    assert declared(("numpy", "b, numpy", "")) == ("numpy", "b")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"max_restarts": 0}, False, id="nothing is ever restarted"),
        pytest.param({"max_restarts": 0, "max_nodes": 2}, True, id="nodes come and go"),
        pytest.param({}, True, id="faults are"),
    ],
)
def test_a_zygote_pays_where_something_is_started_twice(changes: dict[str, object], *, expected: bool) -> None:
    """A script that is started once would only share its cores with it."""
    assert restarts(replaced(PLAN, **changes)) is expected


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork", ""])
async def test_a_start_method_that_is_asked_for_is_kept_to(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unset is not the same as spawn."""
    caplog.set_level("INFO")
    plan = replaced(PLAN, start_method=method)
    config = NodeConfig(
        plan=plan, attempt=1, node=0, incarnation=0, host="h", folder=tmp_path, log_folder=tmp_path, streams=Streams()
    )
    standbys = launcher_of(config, Counting(), DeafReaper())._pool

    assert (standbys is None) == (method in ("spawn", "forkserver"))
    assert (f"but the start method is {method}" in caplog.text) == (standbys is None)


def test_workers_with_a_gpu_each_are_started_as_programs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One zygote cannot have the CUDA_VISIBLE_DEVICES of all of them."""
    caplog.set_level("INFO")
    plan = replaced(PLAN, virtual_local_rank=True)
    config = NodeConfig(
        plan=plan, attempt=1, node=0, incarnation=0, host="h", folder=tmp_path, log_folder=tmp_path, streams=Streams()
    )

    assert launcher_of(config, Counting(), DeafReaper())._pool is None
    assert "--virtual-local-rank gives each worker its own CUDA_VISIBLE_DEVICES" in caplog.text


# --- Who starts a worker ---------------------------------------------------------------------------------------------------


class Counting(Spawner):
    """Starts nothing, and remembers what."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    async def spawn(self, command: Command, ended: Ended) -> int:
        self.commands.append(command)
        return 1000 + len(self.commands)


class Fork(Standby):
    """A standby that takes what it is told, or is lost."""

    def __init__(self, pid: int, *, lost: bool = False) -> None:
        self.pid, self.lost = pid, lost
        self.became: tuple[Command, str] | None = None

    async def start(self, command: Command, startup: str, ended: Ended) -> int:
        if self.lost:
            raise StandbyLostError("gone")
        self.became = (command, startup)
        return self.pid


class Stocked(StandbyPool):
    """A standbys with forks that are ready."""

    def __init__(self, *forks: Fork) -> None:
        self.forks, self.refills = list(forks), 0
        self.begun: list[str] = []
        self._env: dict[str, str] = {}
        self.given_up = ""

    def begin(self, env, place, imports=()) -> None:
        self.begun.append(place)
        self._env = dict(env)

    async def take(self, slot: int) -> Standby | None:
        return self.forks.pop(0) if self.forks else None

    def refill_soon(self) -> None:
        self.refills += 1


COMMAND = Command(argv=[PYTHON, "-u", "/w/t.py"], env={"OMP_NUM_THREADS": "1", "RANK": "0"})


async def test_the_first_workers_are_programs() -> None:
    """The zygote is started beside the first of them, and nobody waits for it."""
    spawner, standbys = Counting(), Stocked()
    launcher = Launcher(spawner, standbys, startup="/s.py", names="/names")

    assert [await launcher.spawn(COMMAND, print) for _ in range(2)] == [1001, 1002]
    assert standbys.begun == ["/w"]
    assert spawner.commands[0].env["RALLYPOINT_MODULES_FILE"] == "/names"


async def test_later_ones_are_forks_while_there_are_any() -> None:
    """One that is lost costs nothing; where there is none left a program is started."""
    spawner, forks = Counting(), [Fork(5, lost=True), Fork(6)]
    standbys = Stocked(*forks)
    launcher = Launcher(spawner, standbys, startup="/s.py")
    await launcher.spawn(COMMAND, print)

    assert [await launcher.spawn(COMMAND, print) for _ in range(2)] == [6, 1002]
    assert forks[1].became == (COMMAND, "/s.py")
    assert standbys.refills == 2


async def test_other_variables_need_another_zygote() -> None:
    """A fork would have the libraries as they were loaded with the old ones."""
    spawner, standbys = Counting(), Stocked(Fork(5))
    launcher = Launcher(spawner, standbys)
    await launcher.spawn(COMMAND, print)

    pid = await launcher.spawn(replace(COMMAND, env={**COMMAND.env, "OMP_NUM_THREADS": "4"}), print)

    assert (pid, len(standbys.begun), len(standbys.forks)) == (1002, 2, 1)


async def test_what_is_no_python_is_a_program(caplog: pytest.LogCaptureFixture) -> None:
    """Why is said once, and no zygote is started for it."""
    caplog.set_level("INFO")
    spawner, standbys = Counting(), Stocked(Fork(5))
    launcher = Launcher(spawner, standbys)
    for _ in range(2):
        await launcher.spawn(Command(argv=["/bin/bash", "t.sh"], env={}), print)

    assert (len(spawner.commands), standbys.begun) == (2, [])
    assert [r.message for r in caplog.records] == [
        f"the agent keeps no standby workers (/bin/bash is not this Python ({PYTHON})); each worker starts as a new process"
    ]


async def test_our_own_programs_are_forks_whatever_their_variables() -> None:
    """The process of the stores is ready at once, and without it a program."""
    spawner, fork = Counting(), Fork(5)
    own = Launcher(spawner, Stocked(fork)).own
    command = Command(argv=run_module("rallypoint.x", "9", python=(PYTHON,)), env={}, keep=(9,))

    assert [await own.spawn(command, print) for _ in range(2)] == [5, 1001]
    assert fork.became == (command, "")


async def test_a_standby_pool_that_gave_up_is_not_asked() -> None:
    """Threads or a device were alive in the zygote, or there is no torch."""
    spawner, standbys = Counting(), Stocked(Fork(5))
    standbys.given_up = "torch is not installed"

    assert await Launcher(spawner, standbys).spawn(COMMAND, print) == 1001


async def test_without_a_zygote_there_is_no_standby() -> None:
    """Nobody waits for one that is still importing."""
    standbys = StandbyPool(Counting(), DeafReaper(), Wanted(standbys=2))

    assert (await standbys.take(0), standbys.waiting) == (None, ())
