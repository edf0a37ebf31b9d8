"""One Airflow on this machine, in a folder of its own: its environment, its processes, and how they are killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.airflow.database import Database, database
from tests.airflow.ports import free_ports
from tests.airflow.processes import kill, processes
from tests.airflow.rest import Rest
from tests.leftovers import marked_with
from tests.waiting import PATIENCE, eventually

__all__ = ["TRIGGERERS", "Component", "Deployment", "deployment"]

ROOT = Path(__file__).parents[2]
DAGS = Path(__file__).with_name("dags")

#: The title of an executor's worker that has nothing to do.
_IDLE = "LocalExecutor: <idle>"

#: How many tasks run at a time.
_PARALLELISM = 4

TRIGGERERS = ("triggerer-1", "triggerer-2")

#: What each process runs.
_COMMANDS = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    **dict.fromkeys(TRIGGERERS, ("triggerer", "--skip-serve-logs")),
}

#: By this variable every process of a deployment is found, whoever started it.
MARK = "RALLYPOINT_TESTS_AIRFLOW"


@dataclass
class Component:
    """One of Airflow's own processes with all its children, which share its process group."""

    name: str
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _past: set[int] = field(default_factory=set, init=False)  #: sessions that may have processes

    @property
    def pid(self) -> int:
        """The number of its first process, and of the group."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it; does nothing while it runs."""
        if self.up:
            return
        command = [sys.executable, "-m", "airflow", *_COMMANDS[self.name]]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=self.environment, cwd=self.log.parent, stdout=output, stderr=output, start_new_session=True
            )
        self._past.add(self.process.pid)

    def kill(self) -> None:
        """SIGKILL to the whole of it: what a machine does that is lost."""
        if self.process is not None:
            self.process.kill()
            kill(one.pid for one in processes() if one.session == self.process.pid)
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that is not enough."""
        if self.process is None:
            return
        if self.up:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
        self.kill()

    def sweep(self, *, only_idle: bool) -> None:
        """End what is left of those of its kind that were killed, or what of it has nothing to do."""
        gone = self._past - ({self.pid} if self.up else set())
        if not gone:
            return
        word = _IDLE if only_idle else "airflow"
        kill(one.pid for one in processes() if one.session in gone and word in one.title)
        if not only_idle:
            self._past -= gone  # nothing is left of them, and another program may have the number next

    def tell(self) -> str:
        """Return the end of its log."""
        return (
            f"--- {self.name}\n{self.log.read_text(errors='replace')[-2000:]}"
            if self.log.exists()
            else f"--- {self.name}: no log"
        )


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """An Airflow that runs; `home` is $RALLYPOINT_HOME of all jobs that its tasks have."""

    folder: Path
    home: Path
    database: Database
    components: dict[str, Component]
    rest: Rest

    def sweep(self, *, only_idle: bool = False) -> None:
        """End what a killed scheduler has left: its executor's workers, which wait for ever for what nobody sends.

        They have the scheduler's connection to the database from their birth, and hold its locks as long as they live: a
        scheduler that was killed with the pool locked keeps all others from queueing a task. What a service manager does for a
        whole service is done here for those that are idle; a task that runs goes on.
        """
        for component in self.components.values():
            component.sweep(only_idle=only_idle)

    def heal(self) -> None:
        """Start whatever was killed, and wait until the scheduler and as many triggerers as there are say that they live."""
        for component in self.components.values():
            component.start()
        eventually(self._healthy, timeout=90, every=0.3, why=self.tell)

    def await_dags(self, *names: str) -> None:
        """Wait until these DAGs were parsed; raises when they cannot be."""

        def parsed() -> bool:
            if errors := self.rest.import_errors():
                raise SystemExit("\n".join(errors))
            return all(self.rest.knows(name) for name in names)

        eventually(parsed, timeout=60, every=0.3, why=self.tell)

    def _healthy(self) -> bool:
        self.check()
        health = self.rest.health()
        return all(health.get(part, {}).get("status") == "healthy" for part in ("scheduler", "triggerer", "dag_processor"))

    def check(self) -> None:
        """Raise when a process ended that nobody has killed; end what the killed have left idle."""
        self.sweep(only_idle=True)
        for component in self.components.values():
            process = component.process
            if process is not None and process.poll() not in (None, -signal.SIGKILL, -signal.SIGTERM):
                raise SystemExit(f"{component.name} ended with {process.returncode}\n{component.tell()}")

    def tell(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(component.tell() for component in self.components.values())


@contextlib.contextmanager
def deployment(folder: Path, **more: str) -> Iterator[Deployment]:
    """Have an Airflow while the context lasts; nothing of it, and of what its tasks started, lives on.

    `more` are variables of its processes.
    """
    home = folder / "rallypoint-home"
    logs = folder / "logs"
    for path in (folder / "airflow", home, logs):
        path.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(8)
    with database(folder) as found:
        [port] = free_ports(1)
        environment = {**_environment(folder, home, found, port), **more, MARK: mark}
        _migrate(environment)
        parts = {name: Component(name, environment, logs / f"{name}.log") for name in _COMMANDS}
        rest = Rest(f"http://127.0.0.1:{port}")
        made = Deployment(folder=folder, home=home, database=found, components=parts, rest=rest)
        try:
            made.heal()
            yield made
        finally:
            _end(made, mark)


def _end(made: Deployment, mark: str) -> None:
    """Stop everything at once: each takes seconds to go by itself."""
    enders = [threading.Thread(target=component.stop) for component in made.components.values()]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    made.sweep()
    kill(left.pid for left in marked_with(f"{MARK}={mark}"))


def _migrate(environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"airflow db migrate ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _environment(folder: Path, home: Path, found: Database, port: int) -> dict[str, str]:
    """Return what every process of Airflow is told; nothing of the caller's own Airflow or jobs leaks in."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "RALLYPOINT_"))}
    options = {f"AIRFLOW__{section}__{key}".upper(): value for (section, key), value in _options(found, port).items()}
    return {
        **outside,
        **options,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "RALLYPOINT_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }


def _options(found: Database, port: int) -> dict[tuple[str, str], str]:
    """Return Airflow's options: those of an ordinary deployment, but looks every few seconds."""
    url = f"http://127.0.0.1:{port}"
    return {
        ("core", "dags_folder"): str(DAGS),
        ("core", "load_examples"): "False",
        ("core", "executor"): "LocalExecutor",
        ("core", "parallelism"): str(_PARALLELISM),
        ("core", "dags_are_paused_at_creation"): "False",
        ("core", "simple_auth_manager_all_admins"): "True",
        ("core", "execution_api_server_url"): f"{url}/execution/",
        ("api", "host"): "127.0.0.1",
        ("api", "port"): str(port),
        ("api", "base_url"): url,
        ("api", "workers"): "1",
        ("api", "secret_key"): secrets.token_hex(16),
        ("api_auth", "jwt_secret"): secrets.token_hex(32),
        ("database", "sql_alchemy_conn"): found.url,
        ("scheduler", "job_heartbeat_sec"): "1",
        ("scheduler", "scheduler_heartbeat_sec"): "1",
        ("scheduler", "scheduler_idle_sleep_time"): "0.3",
        ("scheduler", "scheduler_health_check_threshold"): "10",
        ("scheduler", "orphaned_tasks_check_interval"): "3",
        ("scheduler", "task_instance_heartbeat_timeout"): "30",
        ("scheduler", "task_instance_heartbeat_timeout_detection_interval"): "5",
        ("triggerer", "job_heartbeat_sec"): "1",
        ("triggerer", "triggerer_health_check_threshold"): "8",
        ("triggerer", "capacity"): "100",
        ("workers", "min_heartbeat_interval"): "1",
        ("dag_processor", "parsing_processes"): "1",
        ("dag_processor", "min_file_process_interval"): "600",
        ("logging", "colored_console_log"): "False",
        ("usage_data_collection", "enabled"): "False",
    }
