"""Checks before a local job starts: the machine, its folders, and the user's classes that the plan names."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.findings import Findings
from rallypoint.backends.local.files import describe
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.ports import metrics_port
from rallypoint.wire.private import claim_folder, open_own
from rallypoint.wire.python import run_module
from rallypoint.wire.sections import value_of

__all__ = ["at_role", "check_agent", "check_extension", "check_plan", "check_pre_checks", "check_writable", "examine"]

#: Seconds for everything that their modules import.
_WITHIN = 60.0


def check_extension(plan: Plan, *, within: float = _WITHIN) -> None:
    """Raise `SubmitError` when the plan names a failover extension that cannot be loaded within so many seconds."""
    name = plan.failures.failover_extension
    if name:
        field = "fault_tolerance.dynamic_failover_extension"
        _try(plan, "rallypoint.agent.node.extension", name, field=field, what=f"{name}: it was", within=within)


def check_pre_checks(plan: Plan, *, within: float = _WITHIN) -> None:
    """Raise `SubmitError` when the plan names an operator that cannot be loaded in so many seconds; not for bypassed ones."""
    names = [[op.module, op.name] for op in value_of(plan, "pre_check_ops", ()) if op.enabled]
    if names:
        field = "health.pre_check_ops"
        _try(
            plan,
            "rallypoint.capabilities.user_hooks.host",
            json.dumps(names),
            field=field,
            what="the operators were",
            within=within,
        )


def _try(plan: Plan, module: str, argument: str, *, field: str, what: str, within: float) -> None:
    beside = ["--beside", plan.entrypoint] if plan.entry is Entry.SCRIPT else []
    # They are only looked at: nothing may be left beside the user's files.
    variables = {**os.environ, **plan.env, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        tried = subprocess.run(
            run_module(module, *beside, argument),
            env=variables,
            cwd=plan.workdir or None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=within,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SubmitError(f"{field}: {what} not loaded within {within:g} s") from error
    if tried.returncode != 0:
        raise SubmitError(_why(tried.returncode, tried.stderr.splitlines(), field))


def _why(code: int, lines: Sequence[str], field: str) -> str:
    said = [line.strip() for line in lines if line.strip()]
    ended = f"{field}: the process that loads it exited with code {code}: {said[-1] if said else 'no output'}"
    return next((line for line in said if line.startswith(field)), ended)


#: What the smallest job writes, in bytes; a disk without even that is full.
_PROBE_BYTES = 64 * 1024

_AGENT_NEEDS = ("aiohttp", "torch")


def check_plan(plan: Plan, *, home: Path, host: str) -> None:
    """Raise `SubmitError` when the plan cannot run here as it is."""
    if plan.workdir and not Path(plan.workdir).is_dir():
        raise SubmitError(f"workdir: {plan.workdir} is not a folder; create the folder or choose another")
    _check_entrypoint(plan)
    check_extension(plan)
    check_pre_checks(plan)
    _check_port(plan.rendezvous.coordinator_port, host, "rendezvous.port", "0 to use a free port")
    port = metrics_port(plan, pod=False)
    if port and port == plan.rendezvous.coordinator_port:
        raise SubmitError(f"health.metrics_port: {port} is already the coordinator port (rendezvous.port); choose another port")
    _check_port(port, host, "health.metrics_port", "0 for no metrics")
    check_writable("RALLYPOINT_HOME", home)
    if plan.logs.log_dir:
        check_writable("logs.dir", Path(plan.logs.log_dir))
        _check_log_owner(Path(plan.logs.log_dir), plan.name)
    if plan.checkpoint_dir and "://" not in plan.checkpoint_dir:
        check_writable("checkpoint_dir", Path(plan.checkpoint_dir))


@contextlib.contextmanager
def at_role(name: str) -> Iterator[None]:
    """Raise every `SubmitError` of the block with the role in front."""
    try:
        yield
    except SubmitError as error:
        raise SubmitError(f"roles.{name}.{error}") from error


def check_agent(needs: Sequence[str] = _AGENT_NEEDS) -> None:
    """Raise `SubmitError` when this Python lacks what agents import."""
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        raise SubmitError(
            f"this Python cannot run the nodes of a job (missing packages: {', '.join(missing)}); "
            "pip install 'airflow-provider-rallypoint[agent]', or submit from an environment that has it"
        )


def _check_log_owner(folder: Path, name: str) -> None:
    if folder.is_dir():
        found = folder.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise SubmitError(
                f"logs.dir: cannot use {folder}: every user can rename the folders in it; choose another folder, or set its "
                f"sticky bit: chmod +t {folder}"
            )
    try:
        if folder.is_dir():
            os.close(open_own(folder.resolve()))
        if os.path.lexists(folder / name):
            claim_folder(folder, folder / name)
    except OSError as error:
        raise SubmitError(f"logs.dir: cannot use {error.filename or folder}: {error.strerror}") from error


def _check_entrypoint(plan: Plan) -> None:
    workdir = Path(plan.workdir)
    if plan.entry is Entry.SCRIPT:
        path = (workdir / plan.entrypoint).absolute()
        if not path.is_file():
            reason = "the path is a folder, not a script" if path.is_dir() else "file not found"
            raise SubmitError(
                f"entrypoint: cannot run script {path}: {reason}; relative paths start from workdir ({workdir.absolute()})"
            )
    if plan.entry is Entry.COMMAND:
        search = plan.env.get("PATH", os.environ.get("PATH", os.defpath))
        command = str(workdir / plan.entrypoint) if os.sep in plan.entrypoint else plan.entrypoint
        if shutil.which(command, path=search) is None:
            raise SubmitError(f"entrypoint: the command {plan.entrypoint} is not an executable on this machine (PATH {search})")


def _check_port(port: int, host: str, field: str, other: str) -> None:
    if port == 0:
        return
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SubmitError(
                f"{field}: cannot open port {port} on this machine: {error.strerror}; choose another port, or {other}"
            ) from error


def check_writable(field: str, path: Path) -> None:
    """Write a file where `path` is, or where it would be made, and remove it again; raises `SubmitError` naming `field`."""
    folder = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".rallypoint-") as file:
            os.posix_fallocate(file.fileno(), 0, _PROBE_BYTES)
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SubmitError(f"{field}: {describe(OSError(error.errno, error.strerror, str(path)), path)}") from error


def examine(home: Path, agent: Callable[[], None] = check_agent) -> Findings:
    """Return what is missing here: a home that can be written, and what agents import (`agent` raises `SubmitError`).

    Writes a file and removes it again. Blocks.
    """
    problems = []
    checks: tuple[Callable[[], None], ...] = (functools.partial(check_writable, "home", home), agent)
    for check in checks:
        try:
            check()
        except SubmitError as error:
            problems.append(str(error))
    return Findings(problems=tuple(problems))
