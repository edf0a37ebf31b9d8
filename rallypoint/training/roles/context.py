"""The place of this process among the roles of its job: the environment, read when it is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.training.context import environment_int, job_config
from rallypoint.training.roles.errors import RolesError
from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.roles import RoleEntry

__all__ = [
    "RoleContext",
    "RoleSpec",
    "Settings",
    "current",
    "entry_of",
    "identity",
    "process_id",
    "role_specs",
    "roles_secret",
    "settings",
]

_SECRET_LIMIT = 4096

#: Largest number of instances that an entry of RALLYPOINT_ROLES may name.
_MOST = 1_000_000

_ids: dict[int, str] = {}
_rounds: dict[int, int] = {}


@dataclass(frozen=True, kw_only=True)
class RoleContext:
    """The place of one process among the roles of its job.

    Attributes:
        job: name of the job; "" outside Rallypoint.
        role: name of the role.
        rank, size: number of this instance within the role, and the number of instances.
        local_rank: number of this instance on its node.
        node_rank, group: number of the node of this instance within the role; both names are the same number.
        incarnation: number of this life of the instance, higher after each restart; of an elastic worker the round in which it
            started. A call that meets another one raises `Restarted`.
        attempt: number of the attempt of the job.
        config: user configuration, the `config` of the job.
    """

    job: str
    role: str
    rank: int
    size: int
    local_rank: int
    node_rank: int
    group: int
    incarnation: int
    attempt: int
    config: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """One role of the job: `launch` is `elastic` or `simple`, `total` the number of instances that it starts with."""

    launch: str
    total: int
    driver: bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How processes of this job reach each other: directory, address of this process, secret, TLS folder, pickles."""

    url: str
    host: str
    job: str
    secret: bytes = field(repr=False)
    tls: Path | None
    pickles: bool


def current(environ: Mapping[str, str] | None = None) -> RoleContext:
    """Return the place of this process. Also works in a job with one role, under `torchrun`, and in plain Python.

    An elastic worker that lives on into a new round may get another rank; then this function returns the new one.

    Raises:
        WireError: a variable of the environment is broken; the text names it.

    """
    environ = os.environ if environ is None else environ
    group = _first_int(environ, (env.GROUP, "GROUP_RANK"), 0)
    role, rank, incarnation = identity(environ)
    return RoleContext(
        job=environ.get(env.JOB_NAME, ""),
        role=role,
        rank=rank,
        size=_first_int(environ, (env.ROLE_SIZE, "WORLD_SIZE"), 1),
        local_rank=_first_int(environ, (env.LOCAL_RANK, "LOCAL_RANK"), 0),
        node_rank=group,
        group=group,
        incarnation=incarnation,
        attempt=environment_int(environ, env.ATTEMPT, default=0),
        config=_config(environ),
    )


def identity(environ: Mapping[str, str] | None = None) -> tuple[str, int, int]:
    """Return role, rank and incarnation of this process; raises `WireError`."""
    environ = os.environ if environ is None else environ
    role = environ.get(env.ROLE) or environ.get("ROLE_NAME") or "trainer"
    rank = _first_int(environ, (env.ROLE_RANK, "RANK"), 0)
    return role, rank, _incarnation(environ)


def _incarnation(environ: Mapping[str, str]) -> int:
    """Return the number of this life; that of an elastic worker is the round in which it started, and stays."""
    told = environment_int(environ, env.INCARNATION, default=0)
    if env.ROUND not in environ or environ is not os.environ:
        return told or environment_int(environ, env.ROUND, default=0)
    return _rounds.setdefault(os.getpid(), environment_int(environ, env.ROUND))


def role_specs(environ: Mapping[str, str] | None = None) -> dict[str, RoleSpec]:
    """Return all roles of the job by name; {} outside a job with several roles. Raises `WireError`."""
    text = (os.environ if environ is None else environ).get(env.ROLES, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
        return {str(name): _spec(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise WireError(
            f"environment variable {env.ROLES}", text, 'a JSON object such as {"trainer": {"launch": "elastic", "total": 2}}'
        ) from error


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return how to reach the other instances; raises `RolesError` outside a job with several roles."""
    environ = os.environ if environ is None else environ
    url = environ.get(env.ROLES_URL, "")
    if not url:
        raise RolesError(f"{env.ROLES_URL}: not set; calls between roles work only in a job with several roles")
    folder = environ.get(env.ROLES_TLS, "")
    return Settings(
        url=url,
        host=environ.get(env.HOST) or "127.0.0.1",
        job=environ.get(env.JOB_NAME, ""),
        secret=roles_secret(environ),
        tls=Path(folder) if folder else None,
        pickles=environ.get(env.ROLES_PICKLE) == "1",
    )


def process_id() -> str:
    """Return a random number of this process, as 32 hexadecimal digits; a forked child gets its own."""
    pid = os.getpid()
    if pid not in _ids:
        _ids.clear()
        _ids[pid] = secrets.token_hex(16)
    return _ids[pid]


def entry_of(host: str, port: int, *, queue: str = "", environ: Mapping[str, str] | None = None) -> RoleEntry:
    """Return the entry of this process, which listens at `host` and `port`; raises `WireError`."""
    environ = os.environ if environ is None else environ
    role, rank, incarnation = identity(environ)
    return RoleEntry(
        role=role,
        rank=rank,
        size=_first_int(environ, (env.ROLE_SIZE, "WORLD_SIZE"), 1),
        host=host,
        port=port,
        attempt=environment_int(environ, env.ATTEMPT, default=0),
        reset=environment_int(environ, env.RESET, default=0),
        round=environment_int(environ, env.ROUND, default=0),
        incarnation=incarnation,
        pid=os.getpid(),
        id=process_id(),
        queue=queue,
    )


def _first_int(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    name = next((name for name in names if name in environ), None)
    return default if name is None else environment_int(environ, name)


def _config(environ: Mapping[str, str]) -> dict[str, Any]:
    path = environ.get(env.CONFIG_FILE, "")
    if not path:
        return job_config(environ)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RolesError(f"{env.CONFIG_FILE}: {path} cannot be read: {error}") from error
    return job_config({env.CONFIG: text})


def _spec(value: Mapping[str, Any]) -> RoleSpec:
    launch, total = value["launch"], value["total"]
    if launch not in {"elastic", "simple"} or type(total) is not int or not 0 <= total <= _MOST:
        raise ValueError(launch)
    return RoleSpec(launch=launch, total=total, driver=value.get("driver") is not False)


def roles_secret(environ: Mapping[str, str]) -> bytes:
    """Return the secret that all processes of the job have; raises `RolesError` if there is none, or others can write it."""
    path = environ.get(env.ROLES_SECRET_FILE, "")
    text = environ.get(env.ROLES_SECRET, "")
    if path:
        text = _private_text(Path(path))
    if not text.strip():
        raise RolesError(
            f"{env.ROLES_SECRET_FILE}: not set or empty; expected the path of the file with the secret for calls between roles"
        )
    return text.strip().encode()


def _private_text(path: Path) -> str:
    """Read a file that only its owner or root can write; raises `RolesError`."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(_SECRET_LIMIT)
    except OSError as error:
        raise RolesError(f"{env.ROLES_SECRET_FILE}: {path} cannot be read: {error.strerror}") from error
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RolesError(
            f"{env.ROLES_SECRET_FILE}: {path} has mode {stat.filemode(found.st_mode)} and owner {found.st_uid}; expected owner "
            f"{os.geteuid()} or root, and no write access for others"
        )
    with contextlib.suppress(UnicodeDecodeError):
        return text.decode()
    raise RolesError(f"{env.ROLES_SECRET_FILE}: {path} is not a text file")
