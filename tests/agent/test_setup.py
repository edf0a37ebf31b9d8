"""The commands that run once per node before its first round; the shell is real."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.setup import SetupError, Surroundings, run_setup, setup_env
from rallypoint.wire.env import SECRET
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build
from tests.waiting import eventually_async

pytestmark = pytest.mark.may_block("asyncio forks a process, and waits for its exec")

BASE = {"PATH": os.environ["PATH"], SECRET: "hush"}


def plan(*commands: str, **more: object) -> Plan:
    fields: dict[str, object] = {"name": "digits", "role": "trainer", "min_nodes": 2, "max_nodes": 4, "entry": Entry.SCRIPT}
    return build(Plan, **{**fields, "entrypoint": "train.py", "setup": commands, **more})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def run(folder: Path, *commands: str, node: int = 0, **more: object) -> Surroundings:
    made = plan(*commands, **{"workdir": str(folder), **more})
    return await run_setup(made, BASE, node=node, host="10.0.0.1", folder=folder)


async def test_the_commands_are_the_lines_of_one_script(tmp_path: Path) -> None:
    """What one exports or where it goes holds for the next, and for the workers; nothing else is left behind."""
    left = await run(
        tmp_path,
        "mkdir code && cd code",
        "export DATA='of two\nlines'\nunset FORGET",
        'echo "$DATA" > data; pwd > here',
        env={"FORGET": "1", "KEEP": "2"},
    )

    assert left.folder == str(tmp_path / "code")
    assert (left.environment["DATA"], left.environment["KEEP"]) == ("of two\nlines", "2")
    assert {"FORGET", SECRET, "SHLVL", "_"}.isdisjoint(left.environment)
    assert (tmp_path / "code" / "data").read_text() == "of two\nlines\n"
    assert names(tmp_path) == ["code"]


@pytest.mark.parametrize(
    ("commands", "code", "reason"),
    [
        pytest.param(
            ("true", "cd /nowhere", "touch reached"), 2, "setup command 2 of 3 exited with code 2: cd /nowhere", id="second"
        ),
        pytest.param(
            ("sh -c 'exit 42'", "touch reached"), 42, "setup command 1 of 2 exited with code 42: sh -c", id="its code"
        ),
        pytest.param(("kill -9 $$", "touch reached"), 137, "setup command 1 of 2 was killed by SIGKILL: kill", id="a signal"),
        pytest.param(("nosuchprogram",), 127, "setup command 1 of 1 exited with code 127: nosuch", id="no such program"),
        pytest.param(("echo 'open", "touch reached"), 2, "setup command 1 of 2 exited with code 2", id="no shell's words"),
        pytest.param(("exit 78",), 1, "setup command 1 of 1 exited with code 78", id="a code that means something else"),
        pytest.param(
            ("exit 0", "touch reached"), 1, "setup command 1 of 2 ended the shell before the last command", id="early"
        ),
    ],
)
async def test_the_first_that_fails_ends_the_node(tmp_path: Path, commands: tuple[str, ...], code: int, reason: str) -> None:
    """With its number, how it ended, what it was, and its exit code; nothing after it is run."""
    with pytest.raises(SetupError) as caught:
        await run(tmp_path, *commands)

    assert str(caught.value).startswith(reason)
    assert caught.value.code == code
    assert names(tmp_path) == []


async def test_a_long_command_is_cut_in_its_error(tmp_path: Path) -> None:
    """A person recognises it by its beginning."""
    with pytest.raises(SetupError) as caught:
        await run(tmp_path, "false " + "x" * 5000)

    assert len(str(caught.value)) < 300


async def test_an_agent_that_is_told_to_end_ends_its_setup(tmp_path: Path) -> None:
    """TERM to the whole group, and a code that says which signal it was."""
    running = asyncio.create_task(run(tmp_path, f"sleep 3600 & echo $! > {tmp_path}/pid; touch {tmp_path}/there; wait"))
    await eventually_async((tmp_path / "there").exists)

    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SetupError, match="received the signal SIGTERM while running the setup commands") as caught:
        await running
    assert caught.value.code == 128 + signal.SIGTERM
    sleeper = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    await eventually_async(lambda: not sleeper.exists() or sleeper.read_text().rpartition(")")[2].split()[0] == "Z")


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As where it is full, or may not be written."""
    with pytest.raises(ConfigError, match=r"cannot run the setup commands: .*nowhere"):
        await run(tmp_path, "true", workdir=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("node", "base", "expected"),
    [
        pytest.param(0, {}, ("4", "0", "10.0.0.1", "29500"), id="node 0 is the master"),
        pytest.param(3, {}, ("4", "3", None, "29500"), id="the others do not know it"),
        pytest.param(3, {"MASTER_ADDR": "digits-0", "RANK": "9"}, ("4", "3", "digits-0", "29500"), id="the pod says it"),
    ],
)
def test_the_place_of_the_node_is_told(node: int, base: dict[str, str], expected: tuple[str | None, ...]) -> None:
    """Number of nodes, slot, and where node 0 is as far as it is known."""
    told = setup_env(base, plan(), node=node, host="10.0.0.1")

    assert tuple(told.get(name) for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")) == expected


def test_the_plans_own_variables_have_the_last_word() -> None:
    """Who says MASTER_PORT means it."""
    told = setup_env({"A": "1"}, plan(env={"A": "2", "MASTER_PORT": "1234"}), node=1, host="h")

    assert (told["A"], told["MASTER_PORT"]) == ("2", "1234")
