"""The image of a job's pods, read as a builder would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.containerfile import Instruction, expand, problems, read

ROOT = Path(__file__).parents[2]
GOOD = "FROM python:3.12-slim\nRUN python -m pip install --no-cache-dir torch\nUSER 1000:1000\n"


def test_our_containerfile_has_no_problems():
    """Versions are named, nothing is cached, what is copied exists, and nobody is root."""
    assert problems(read((ROOT / "Containerfile").read_text(encoding="utf-8")), ROOT) == []


def test_the_image_has_what_an_agent_needs_and_no_more():
    """Torch and our own wheel with the extra `agent`; the plan and the secret come with the pod."""
    steps = read((ROOT / "Containerfile").read_text(encoding="utf-8"))
    arguments = dict(step.rest.split("=", 1) for step in steps if step.word == "ARG")
    installed = [expand(step.rest, arguments) for step in steps if step.word == "RUN" and "pip install" in step.rest]

    assert [arguments["EXTRAS"], arguments["TORCH"]] == ["agent", "torch>=2.6"]
    assert len(installed) == 2
    assert '"torch>=2.6"' in installed[0]
    assert installed[1].endswith('"$(ls /wheels/*.whl)[agent]"')


def test_instructions_go_on_after_a_backslash():
    """One instruction may take several lines, and comments are none."""
    assert read("# no\nRUN a \\\n  b\n\nUSER 1") == [
        Instruction(word="RUN", rest="a b", line=2),
        Instruction(word="USER", rest="1", line=5),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(GOOD.replace(":3.12-slim", ""), "line 1: python names no version", id="no tag"),
        pytest.param(GOOD.replace("3.12-slim", "latest"), "line 1: python:latest names no version", id="latest"),
        pytest.param(GOOD.replace(" --no-cache-dir", ""), "line 2: pip keeps no cache", id="cache"),
        pytest.param(GOOD.replace("torch", "${TORCH}"), "line 2: ${TORCH} is not known in this stage", id="unknown variable"),
        pytest.param(
            f"ARG TORCH=torch\n{GOOD}".replace(" torch", ' "${TORCH}"'), "${TORCH} is not known in this", id="other stage"
        ),
        pytest.param(GOOD.replace("USER 1000:1000", "USER root"), "line 3: the last user is a number", id="root by name"),
        pytest.param(GOOD.replace("USER 1000:1000", "USER 0"), "line 3: the last user is a number", id="root"),
        pytest.param(GOOD.removesuffix("USER 1000:1000\n"), "line 1: the last user is a number", id="nobody"),
        pytest.param(f"{GOOD}COPY nothing /x\n", "line 4: nothing is not there", id="no such file"),
        pytest.param(f"{GOOD}WORKDIR app\n", "line 4: the folder is absolute", id="relative folder"),
        pytest.param(f"{GOOD}CMD python\n", "line 4: a command is a JSON list", id="shell form"),
        pytest.param(f"{GOOD}ADD http://x /x\n", "line 4: ADD is not used here", id="unknown instruction"),
        pytest.param(f"USER 1\n{GOOD}", "line 1: nothing but ARG stands before", id="before FROM"),
        pytest.param(
            GOOD.replace("RUN", "ARG A=1\nRUN").replace(" torch", " ${A}"), "line 3: variables are quoted", id="quotes"
        ),
        pytest.param(f"{GOOD}RUN apt-get upgrade\n", "line 4: no sudo, no upgrade", id="upgrade"),
    ],
)
def test_each_rule_finds_what_it_is_for(text, problem):
    """A line that breaks a rule is told with its number."""
    assert any(problem in found for found in problems(read(text), ROOT)), problems(read(text), ROOT)


def test_a_good_file_has_no_problems():
    """The rules refuse nothing that is right."""
    assert problems(read(GOOD), ROOT) == []
