"""The jobs of a ledger: records, coordinators and logs in its folder, as the local backend keeps them, and nodes on Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rallypoint.backends.contract import ActionError, BackendError, Blueprint, JobExistsError, Stored
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.command_lines import coordinator_command
from rallypoint.backends.local.files import telling
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.shim import EXIT_FILE
from rallypoint.backends.local.store import Store
from rallypoint.backends.ray.cluster import groups
from rallypoint.backends.ray.cluster.nodes import Nodes
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveNode
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.record import JobRecord, Phase

__all__ = ["NO_STAMP", "ClusterJobs", "Stamp", "stamp_of"]

log = logging.getLogger(__name__)

#: Phases in which the placement groups of a job are kept: a new attempt of it uses the resources of the one before.
_KEEPING = (Phase.RESUMING, Phase.RUNNING, Phase.RESETTING)

#: Seconds between two writes of a status in which only the progress changes: each one costs a turn of the job's supervisor.
_PROGRESS_PERIOD = 15.0


class ClusterJobs(LocalBackend):
    """Jobs whose coordinators are processes of this machine, at its address `host`, and whose nodes are actors of Ray."""

    def __init__(self, home: Path, *, host: str, nodes: Nodes, told_home: Path | None = None) -> None:
        super().__init__(home, told_home=told_home)
        self._host, self._nodes = host, nodes
        self._children: dict[str, ClusterJobs] = {}

    @property
    def store(self) -> Store:
        """What is stored of the jobs."""
        return self._store

    def known(self, name: str) -> Stored | None:
        """Return a job, None where there is none, or where it cannot be read: no such job may stop the others. Blocks."""
        try:
            return self._store.load(name)
        except BackendError as error:
            log.warning("job=%s: the ledger cannot read the job: %s", name, error)
            return None

    def admit(self, blueprint: Blueprint, *, owner: str, uid: str) -> Stored:
        """Create a job with this uid; see `Backend.submit`. Blocks."""
        name = blueprint.plan.name
        existing = self._store.load(name)
        if existing is None:
            try:
                return self._store.create(blueprint, owner=owner, now=self._clock(), uid=uid)
            except JobExistsError:
                existing = self._store.load(name)
                if existing is None:
                    raise
        if existing.is_of(blueprint, owner=owner):
            return existing
        raise JobExistsError.of(existing, blueprint, owner=owner)

    def _check(self, blueprint: Blueprint) -> None:
        """Accept every plan: the script is on the nodes, not here."""

    def _observe(self, record: JobRecord) -> Observation:
        folder = self._store.job(record.name)
        with telling(folder.path):
            nodes = self._nodes.seen(folder)
            coordinators = self._look(record.uid, folder.coordinators())
        return Observation(nodes=nodes, coordinators=coordinators, status=self._status(record.name))

    def _act(self, record: JobRecord, action: Action) -> None:
        folder = self._store.job(record.name)
        current = self._store.load(record.name)
        known = current is not None and current.record.uid == record.uid
        if isinstance(action, CreateNode):
            if current is None or not known or not _wanted(current.record, action.attempt):
                raise ActionError(f"job {record.name} no longer needs node {action.node} of attempt {action.attempt}")
            self._nodes.create(record, folder, action)
        elif isinstance(action, RemoveNode):
            if known:
                node = folder.node(action.node, action.attempt, action.incarnation)
                self._nodes.remove(folder, node, force=action.force)
        elif isinstance(action, CreateCoordinator):
            if current is None or not known:
                raise ActionError(f"job {record.name} was deleted")
            command = coordinator_command(
                self._agent, folder, uid=record.uid, attempt=action.attempt, term=action.term, tls=bool(current.plan.tls)
            )
            self._start(record, folder.coordinator(action.term), action.attempt, _on_ray(command, self._host))
        else:
            if isinstance(action, Purge):
                self.remove_groups(record.uid)
            super()._act(record, action)

    def tidy(self, name: str) -> None:
        """Remove the placement groups of a job that needs none now. Blocks."""
        stored = self.known(name)
        if stored is None or (stored.record.phase in _KEEPING and not stored.record.deletion):
            return
        if not self._nodes.present(self._store.job(name)):
            self.remove_groups(stored.record.uid)

    @staticmethod
    def remove_groups(uid: str) -> None:
        """Remove all placement groups of a job. Blocks."""
        for group in groups.groups_of(uid):
            groups.remove_group(group)

    def follow_all(self) -> tuple[str, ...]:
        """Follow every node that was placed and has not ended, after the ledger was lost; return the names of the jobs."""
        found = self._store.names()
        for name in found:
            stored = self.known(name)
            folder = self._store.job(name)
            if stored is None:
                continue
            for _, node in (*folder.nodes(), *folder.hosts()):
                self._nodes.follow(stored.record.uid, folder, node)
            self.children(name).follow_all()
        return found

    def children(self, name: str) -> ClusterJobs:
        """Return the jobs of the elastic roles of a job."""
        if name not in self._children:
            home = self._store.job(name).path
            self._children[name] = ClusterJobs(home, host=self._host, nodes=self._nodes, told_home=self._told_home)
        return self._children[name]


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Times that change with a job: its record and the ends of its coordinators, its status, its coordinator's address."""

    job: tuple[int, ...]
    status: int
    endpoint: int


#: That of a job that was not looked at before.
NO_STAMP = Stamp(job=(), status=0, endpoint=0)


def stamp_of(folder: JobFolder) -> Stamp:
    """Return the stamp of a job. Reads folders, and is called five times a second for each job."""
    path = str(folder.path)
    ends = [_changed_at(f"{path}/coordinator/{term}/{EXIT_FILE}") for term in sorted(_entries(f"{path}/coordinator"))]
    record, status, endpoint = map(_changed_at, map(str, (folder.record, folder.status, folder.endpoint)))
    return Stamp(job=(record, *ends), status=status, endpoint=endpoint)


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  a plain call, many times a second
    except OSError:
        return 0


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208  a plain call, many times a second
    except OSError:
        return []


def _wanted(record: JobRecord, attempt: int) -> bool:
    return record.attempt == attempt and record.phase in (Phase.RESUMING, Phase.RUNNING) and not record.deletion


def _on_ray(command: Sequence[str], host: str) -> tuple[str, ...]:
    """Return the command of a coordinator that listens at `host`: its last two words are `--host` and the address."""
    return (*command[:-1], host, "--progress-period", str(_PROGRESS_PERIOD))
