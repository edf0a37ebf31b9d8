"""What Airflow masks in the task's log is not readable in the record, the page, the XComs and the trigger's log either."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from airflow.sdk.log import mask_secret

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.registry import default_home
from rallypoint.decorators.elastic_training import _ElasticTrainingDecoratedOperator
from rallypoint.operators import ElasticTrainingOperator
from rallypoint.plugin.jobs import Looker
from rallypoint.plugin.live_access import LiveAccess
from rallypoint.plugin.task import TaskKey, TaskSeen
from rallypoint.provider.errors import TrainingFailed
from rallypoint.provider.sensing.streams import see
from rallypoint.provider.task_log import telling_logs
from rallypoint.report.page.published import published_page
from rallypoint.wire import codec, env
from tests.provider.tasks import FakeTask, context

SCRIPT = Path(__file__).with_name("leaking_script.py")

SECRET = "hunter2-of-the-warehouse"


#: Words of a program that checks a node.
LEAK = 'echo "cannot log in with $WAREHOUSE"'
STAGE = """printf '{"stage": "%s in WAREHOUSE"}\\n' "$WAREHOUSE\""""


class Operator(ElasticTrainingOperator):
    async def ask_state(self, context: Any) -> str:
        return "running"

    def defer(self, **_: Any) -> NoReturn:
        raise AssertionError


class Log:
    """A log that masks nothing, as that of a triggerer which has not rendered the task's templates."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, /, *values: object) -> None:
        self.lines.append(line % values if values else line)


async def shown(home: Path, name: str) -> str:
    """Return what a trigger would log, and the page that it would publish."""
    backend, log = LocalBackend(home), Log()
    async with telling_logs(backend, name, log, ranks=None, bookmark=None) as task:
        await asyncio.wait([task], timeout=5)
    page = await published_page(backend, name, tries={"x": 1}, place="here")
    return json.dumps([log.lines, page])


@dataclass(frozen=True)
class Failed:
    """A job that has failed in an operator, and the texts in which it is shown."""

    job: Path
    error: str
    xcoms: str
    record: str
    status: str
    shown: str

    @property
    def texts(self) -> tuple[str, ...]:
        return self.error, self.xcoms, self.record, self.status, self.shown


def fail(script: Path, secret: str, url: str, where: dict[str, Any]) -> Failed:
    """Run a job that quotes a secret, which Airflow masks, in its last words."""
    mask_secret(secret)
    ti = FakeTask()
    document = {
        "entrypoint": str(script),
        "env": {"WAREHOUSE": secret, "URL": url},
        "recovery": {"max_restarts": 0, "node_replacements": 0},
        "fault_tolerance": {"retry_limit": 0},
    }
    operator = Operator(task_id="train", job={**document, **where}, on_finish_action="keep_job", deferrable=False)
    with pytest.raises(TrainingFailed) as failed:
        operator.execute(context(ti))
    home = Path(os.environ[env.HOME])
    (job,) = (home / "jobs").iterdir()
    record, status = ((job / name).read_text() for name in ("record.json", "status.json"))
    found = asyncio.run(shown(home, job.name))
    return Failed(job=job, error=str(failed.value), xcoms=json.dumps(ti.pushed), record=record, status=status, shown=found)


@pytest.mark.parametrize(
    ("where", "quoted"),
    [
        ({}, "cannot log in with ***"),
        pytest.param(
            {"health": {"pre_check_ops": [("leaking_classes", "PreCheck", True)]}},
            "cannot log in with ***",
            marks=pytest.mark.extended,
        ),
        ({"fault_tolerance": {"retry_limit": 0, "dynamic_failover_extension": "leaking_classes::Extension"}}, "no login: ***"),
        pytest.param({"setup_commands": ["true"]}, "cannot log in with ***", marks=pytest.mark.extended),
        (
            {"nodes": 2, "health": {"precheck": 1, "precheck_program": ["sh", "-c", f"{LEAK} >&2; exit 1"]}},
            "stage start: cannot log in with ***",
        ),
        pytest.param(
            {"nodes": 2, "health": {"precheck": 1, "precheck_program": ["sh", "-c", f"{STAGE}; exit 1"]}},
            "stage *** in WAREHOUSE",
            marks=pytest.mark.extended,
        ),
    ],
    ids=["script", "pre-check operator", "failover extension", "setup commands", "node check", "stage of a node check"],
)
def test_a_secret_of_a_connection_is_masked_wherever_a_job_is_shown(
    light: Any, home: Path, where: dict[str, Any], quoted: str
) -> None:
    """The script prints it, and its error or that of a class quotes it; the job's own private files hold it still."""
    failed = fail(SCRIPT, SECRET, f"postgres://me:{SECRET}@host/db", where)

    for text in failed.texts:
        assert SECRET not in text
    assert quoted in failed.error + failed.record
    assert "health" in where or "postgres://me:***@host/db" in failed.shown
    assert SECRET in (failed.job / "plan.json").read_text()


ARGUMENTS = SCRIPT.with_name("leaking_arguments.py")


@pytest.mark.parametrize(
    "job",
    [
        {"entrypoint": [sys.executable, str(ARGUMENTS)], "args": ["--password", SECRET]},
        pytest.param({"entrypoint": [sys.executable, str(ARGUMENTS), SECRET]}, marks=pytest.mark.extended),
        {"entrypoint": "leaking_arguments:run", "args": [SECRET], "workdir": str(ARGUMENTS.parent), "process_group": False},
    ],
    ids=["a command with arguments", "a word of a command", "a function"],
)
def test_a_secret_among_the_arguments_is_masked_for_each_kind_of_entrypoint(
    light: Any, home: Path, job: dict[str, Any]
) -> None:
    """The plan has other words before them."""
    failed = fail(ARGUMENTS, SECRET, "", {"env": {}, **job})

    assert [text for text in failed.texts if SECRET in text] == []
    assert "cannot log in with ***" in failed.error
    assert "connecting with ***" in failed.shown


KEY = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7of2\nQ2hhbmdlTWU3of3\n-----END KEY-----"


@pytest.mark.parametrize(
    ("script", "secret", "where"),
    [
        ("leaking_script.py", KEY, {}),
        pytest.param(
            "leaking_script.py",
            SECRET,
            {"health": {"pre_check_ops": [("leaking_classes", "CutCheck", True)]}},
            marks=pytest.mark.extended,
        ),
    ],
    ids=["a secret of several lines", "a message that is cut in a secret"],
)
def test_parts_of_a_secret_are_masked_wherever_a_job_is_shown(
    light: Any, home: Path, script: str, secret: str, where: dict[str, Any]
) -> None:
    """Each line of it, and its beginning."""
    failed = fail(SCRIPT.with_name(script), secret, "host", where)

    parts = [*secret.splitlines(), secret[:-1]]
    for text in failed.texts:
        assert [part for part in parts if part in text] == []
    assert "***" in failed.error + failed.record + failed.status


def test_a_secret_at_the_end_of_a_cut_line_of_a_simple_role_is_masked(light: Any, home: Path, tmp_path: Path) -> None:
    """The last line of an instance is cut after 500 bytes, before its secrets are masked."""
    mask_secret(SECRET)
    script = tmp_path / "rollout.py"
    script.write_text("import os, sys\nprint('x' * 480 + os.environ['WAREHOUSE'], file=sys.stderr)\nsys.exit(3)\n")
    role = {"launch": "simple", "entrypoint": str(script), "env": {"WAREHOUSE": SECRET}}
    ti = FakeTask()
    operator = Operator(
        task_id="train",
        job={"roles": {"rollout": role}, "fault_tolerance": {"retry_limit": 0}, "recovery": {"node_replacements": 0}},
        on_finish_action="keep_job",
        deferrable=False,
    )
    with pytest.raises(TrainingFailed) as failed:
        operator.execute(context(ti))
    (job,) = (Path(os.environ[env.HOME]) / "jobs").iterdir()

    texts = (str(failed.value), json.dumps(ti.pushed), (job / "record.json").read_text())
    assert [text for text in texts if SECRET[:8] in text] == []
    assert "x*** ... (4 bytes more)" in texts[0]


def test_a_secret_of_an_earlier_attempt_is_masked_after_a_retry_with_another_one(
    light: Any, home: Path, tmp_path: Path
) -> None:
    """A vault leases another password to each try; the output of the first try stays in the logs of the job."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nprint('connecting with', os.environ['PW'], flush=True)\nsys.exit(int(os.environ['CODE']))\n"
    )
    secrets = ("first-lease-of-the-vault", "second-lease-of-the-vault", "third-lease-of-the-vault")
    ti = FakeTask()
    for number, secret in enumerate(secrets, start=1):
        mask_secret(secret)
        last = number == len(secrets)
        job = {
            "entrypoint": str(script),
            "env": {"PW": secret, "CODE": "0" if last else "3"},
            "recovery": {"max_restarts": 0, "node_replacements": 0},
            "fault_tolerance": {"retry_limit": 0},
        }
        ti = FakeTask(id=f"try-{number}", try_number=number, max_tries=2)
        operator = Operator(task_id="train", job=job, on_finish_action="keep_job", deferrable=False)
        with contextlib.nullcontext() if last else pytest.raises(TrainingFailed):
            operator.execute(context(ti))

    name = ti.pushed["job_name"]
    told = asyncio.run(shown(Path(os.environ[env.HOME]), name))
    tail = asyncio.run(last_lines(ti))
    for text in (told, tail):
        assert text.count("connecting with ***") >= len(secrets)
        assert [secret for secret in secrets if secret in text] == []


async def last_lines(ti: FakeTask) -> str:
    """Return the log of rank 0 as the tab shows it."""
    async with looking(ti) as (looker, task):
        return "\n".join(line.text for line in await looker.tail(task, 0, lines=100))


@contextlib.asynccontextmanager
async def looking(ti: FakeTask) -> AsyncIterator[tuple[Looker, TaskSeen]]:
    """Open the tab of a task."""
    looker = Looker(access=LiveAccess(home=default_home()))
    handle = {"name": ti.pushed["job_name"], "backend": "local"}
    try:
        yield looker, TaskSeen(key=TaskKey(dag_id="d", run_id="r", task_id="train"), tries={ti.id: 1}, handle=handle)
    finally:
        await looker.close()


CALLED = """
import os
from rallypoint.training.roles import rpc, serve

@rpc
def query():
    raise RuntimeError("cannot log in as etl with " + os.environ["WAREHOUSE"])

serve().wait()
"""
CALLS = """
from rallypoint.training.roles import RoleGroup, wait_for
wait_for("warehouse", timeout=60)
RoleGroup("warehouse", timeout=30).call_rank0("query")
"""


def test_a_secret_of_another_role_is_masked_wherever_an_elastic_role_is_shown(
    light: Any, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a call quotes it, and the agent of the calling role knows only the secrets of its own role."""
    mask_secret(SECRET)
    caplog.set_level("INFO")
    for name, text in (("called", CALLED), ("calls", CALLS)):
        (tmp_path / f"{name}.py").write_text(text)
    called = {"launch": "simple", "driver": False, "entrypoint": str(tmp_path / "called.py"), "env": {"WAREHOUSE": SECRET}}
    roles = {"train": {"entrypoint": str(tmp_path / "calls.py"), "nodes": 1, "on_failure": "job"}, "warehouse": called}
    job = {"roles": roles, "fault_tolerance": {"retry_limit": 0}}
    ti, operator = FakeTask(), Operator(task_id="train", job=job, on_finish_action="keep_job", deferrable=False)
    with pytest.raises(TrainingFailed) as failed:
        operator.execute(context(ti))

    (folder,) = (Path(os.environ[env.HOME]) / "jobs").iterdir()
    quoted = "cannot log in as etl with ***"
    assert quoted in str(failed.value)
    assert quoted in caplog.text
    assert quoted in json.dumps(ti.pushed["roles"])
    page, seen = asyncio.run(look(ti, role="train"))
    assert quoted in page
    assert quoted in seen
    records = [record.read_text() for record in folder.rglob("record.json")]
    assert len(records) == 2
    assert [text for text in (caplog.text, json.dumps(ti.pushed), page, seen, *records) if SECRET in text] == []


async def look(ti: FakeTask, *, role: str) -> tuple[str, str]:
    """Return the page of the tab of a task, and what a sensor sees of a role of its job."""
    async with looking(ti) as (looker, task):
        page = codec.dumps(await looker.look(task))
    sight = await see(LocalBackend(default_home()), ti.pushed["job_name"], live=True, role=role)
    assert sight.record is not None
    assert sight.status is not None
    return page, f"{codec.dumps(sight.record)} {codec.dumps(sight.status)}"


def echo(password: str, *, options: dict[str, str]) -> str:
    return f"{password} {options}"[:0]


class Decorated(_ElasticTrainingDecoratedOperator):
    async def ask_state(self, context: Any) -> str:
        return "running"


def test_a_secret_among_the_arguments_of_a_function_is_warned_of(
    light: Any, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are sent with the function, so no agent knows them; the warning names them and not their values."""
    mask_secret(SECRET)
    task = Decorated(
        task_id="train",
        python_callable=echo,
        op_args=(SECRET,),
        op_kwargs={"options": {"url": f"postgres://me:{SECRET}@host"}},
        deferrable=False,
    )

    task.execute(context(FakeTask()))

    log = capsys.readouterr().out
    assert "function echo: argument 0, argument options: Airflow masks this value" in log
    assert SECRET not in log
