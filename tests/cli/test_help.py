from __future__ import annotations

import subprocess
import sys

import pytest

from rallypoint.cli.main import build_parser, main
from rallypoint.version import __version__

#: What no command needs before it is known which one is meant.
HEAVY = ("airflow", "pydantic", "rich", "torch", "yaml")


def help_of(capsys, *command: str) -> str:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        pytest.param("submit", ["FILE", "--watch", "--set KEY=VALUE", "--name NAME", "--orphan-policy", "--json"], id="submit"),
        pytest.param("status", ["NAME", "--watch", "--json"], id="status"),
        pytest.param("logs", ["NAME", "--rank R", "--follow", "--tail N", "--stdout", "--stderr"], id="logs"),
        pytest.param("delete", ["NAME"], id="delete"),
        pytest.param("plan", ["FILE", "--set KEY=VALUE", "--name NAME", "--json"], id="plan"),
        pytest.param("supervise", ["NAME"], id="supervise"),
        pytest.param("suspend", ["NAME"], id="suspend"),
        pytest.param("resume", ["NAME", "--timeout SECONDS"], id="resume"),
        pytest.param("pause", ["NAME", "--timeout SECONDS"], id="pause"),
        pytest.param("save", ["NAME", "--timeout SECONDS"], id="save"),
        pytest.param("stop", ["NAME", "--timeout SECONDS"], id="stop"),
        pytest.param("resize", ["NAME", "N[:MAX]"], id="resize"),
    ],
)
def test_every_command_tells_its_options(capsys, command, options):
    """`--help` names each of them, and the folder that all share."""
    text = help_of(capsys, command)

    assert [option for option in (*options, "--home DIR") if option not in text] == []


def test_the_first_help_names_every_command_and_the_version(capsys):
    """Whoever knows nothing starts here."""
    text = help_of(capsys)

    for word in (
        "submit",
        "status",
        "logs",
        "delete",
        "plan",
        "supervise",
        "suspend",
        "resume",
        "pause",
        "save",
        "stop",
        "resize",
        "--version",
        "--home DIR",
    ):
        assert word in text


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("submit",),
        ("status",),
        ("logs",),
        ("delete",),
        ("plan",),
        ("supervise",),
        ("suspend",),
        ("resume",),
        ("pause",),
        ("save",),
        ("stop",),
        ("resize",),
    ],
    ids=str,
)
def test_help_fits_eighty_columns(capsys, monkeypatch, command):
    """No line of any help is longer than an old terminal is wide; descriptions are not wrapped for us."""
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, *command)

    assert max(map(len, text.splitlines())) <= 84


def test_help_imports_nothing_heavy():
    """`rallypoint --help` answers without pydantic, YAML and rich, not to speak of torch and Airflow."""
    code = f"""
import sys
from rallypoint.cli.main import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("usage: rallypoint")
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("command", ["status", "logs digits", "delete digits", "suspend digits"])
def test_a_command_that_reads_jobs_imports_no_models_of_jobs(tmp_path, command):
    """They need pydantic, and made up half of the time that such a command takes."""
    code = f"""
import sys
from rallypoint.cli.main import main
main({["--home", str(tmp_path), *command.split()]!r})
print([name for name in ("airflow", "pydantic", "torch") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.endswith("[]\n")


def test_the_version_is_told(capsys):
    """`--version` prints the program's name and version."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rallypoint {__version__}\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param([], "COMMAND", id="no command"),
        pytest.param(["fly"], "'fly'", id="an unknown command"),
        pytest.param(["status", "--watch"], "--watch requires a NAME", id="watching nothing"),
        pytest.param(["logs", "digits", "--rank", "-1"], "0 or more", id="a negative rank"),
        pytest.param(["logs", "digits", "--tail", "many"], "'many' is not allowed", id="a tail that is no number"),
        pytest.param(["plan", "job.yaml", "--bogus", "3"], "unrecognized arguments: --bogus 3", id="an unknown option"),
        pytest.param(["logs", "digits", "--stdout", "--stderr"], "not allowed with", id="both streams alone"),
    ],
)
def test_wrong_usage_ends_with_two(capsys, words, complaint):
    """A wrong command line is one sentence and a hint, and ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)

    assert ended.value.code == 2
    sentence, hint = capsys.readouterr().err.splitlines()
    assert complaint in sentence
    command = " ".join(["rallypoint", *(word for word in words[:1] if word != "fly")])
    assert hint == f"try '{command} --help'"
