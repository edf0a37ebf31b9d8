"""Jobs on disk: made in one step, changed by compare-and-swap, removed in one step. Everything here may block."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rallypoint.backends.contract import (
    BackendError,
    Blueprint,
    ConflictError,
    HeldError,
    JobExistsError,
    JobNotFoundError,
    Stored,
    SubmitError,
)
from rallypoint.backends.identity import require_job, require_status
from rallypoint.backends.local import certificates, durable, proc
from rallypoint.backends.local.files import FULL, UnreadableError, pinned, read_bytes, read_optional, telling
from rallypoint.backends.local.layout import FOREIGN, JobFolder, foreign_folder, is_job_name
from rallypoint.supervision.policy import Policy, kept_for
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.env import HOME
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import private_folder, tighten
from rallypoint.wire.status import JobStatus
from rallypoint.wire.tls import AUTO

__all__ = ["Hold", "LockedError", "Store", "require_own", "sweep"]

log = logging.getLogger(__name__)

_NEW, _DELETED = ".new-", ".deleted-"
_MADE = re.compile(re.escape(_NEW) + r"(?P<pid>\d{1,9})-(?P<ticks>\d{1,19})-.+", re.ASCII | re.DOTALL)


class LockedError(BackendError):
    """Another process holds the lock of a record. The lock is usually held for milliseconds: try again."""


def require_own(home: Path, kind: type[BackendError] = BackendError, below: Iterable[str] = ("jobs", "supervisors")) -> None:
    """Raise an error of `kind` if a home, or a folder `below` it, belongs to another user."""
    me = os.geteuid()
    with telling(home, kind):
        found = foreign_folder(home, me, below)
    if found is not None:
        folder, owner = found
        raise kind(
            f"{folder}: the folder belongs to user {owner}, but this process runs as user {me}; run it as user {owner}, or "
            f"set {HOME} to a folder of user {me}"
        )


@dataclass(frozen=True, kw_only=True)
class Store:
    """The folder of all jobs, `HOME/jobs`; it need not exist.

    Attributes:
        job_of_roles: the job whose elastic roles these jobs are; its script can write to `home`.
    """

    home: Path
    job_of_roles: JobFolder | None = None

    @property
    def jobs(self) -> Path:
        """One folder per job."""
        return self.home / "jobs"

    def job(self, name: str) -> JobFolder:
        """Return where a job of this name lies, or would lie."""
        if not is_job_name(name):
            raise JobNotFoundError(f"{name!r} is not a valid job name; expected letters, digits, '-', '_' and '.'")
        return JobFolder(path=self.jobs / name)

    def owners(self, name: str) -> set[int]:
        """Return the users of a job's folder, and of the job that it is a role of. Raises `OSError` without a folder."""
        return {folder.owner() for folder in (self.job(name), self.job_of_roles) if folder is not None}

    def require_own_home(self, kind: type[BackendError] = BackendError) -> None:
        """Raise an error of `kind` if the home belongs to another user, who could make this process act on other folders.

        The folder of a job is in a home that was checked.
        """
        if self.job_of_roles is not None:
            return
        require_own(self.home, kind)

    def is_own(self) -> bool:
        """Return whether the jobs here are those of `job_of_roles`, and not of another job that its script links to.

        Raises `BackendError` for the home of another user.
        """
        self.require_own_home()
        with telling(self.home):
            return self.job_of_roles is None or self.job_of_roles.has_own_jobs()

    def _require_own(self, kind: type[BackendError] = BackendError) -> None:
        self.require_own_home(kind)
        if not self.is_own():
            raise kind(f"{self.jobs}: {FOREIGN}")

    def names(self) -> tuple[str, ...]:
        """Return the names of all jobs, sorted."""
        with telling(self.jobs):
            if not self.is_own() or not self.jobs.is_dir():
                return ()
            found = (path.name for path in self.jobs.iterdir() if is_job_name(path.name))
            return tuple(sorted(name for name in found if self.job(name).record.exists()))

    def load(self, name: str) -> Stored | None:
        """Return a job, or None when there is none of this name. Raises `BackendError` when it cannot be read."""
        if not is_job_name(name) or not self.is_own():
            return None
        folder = self.job(name)
        with telling(folder.record):
            while True:
                text = _read(folder.record)
                plan = read_optional(Plan, folder.plan)
                if text is None or plan is None:
                    return None
                if _read(folder.record) == text:  # else the plan may belong to another record
                    return _stored(folder, text, plan)

    def status(self, name: str) -> JobStatus | None:
        """Return the coordinator's last word, or None before its first. Raises `UnreadableError` and `BackendError`."""
        if not is_job_name(name) or not self.is_own():
            return None
        path = self.job(name).status
        found = read_optional(JobStatus, path)
        if found is not None:
            require_status(found, name=name, where=str(path), kind=UnreadableError)
        return found

    def create(self, blueprint: Blueprint, *, owner: str, now: float, uid: str = "") -> Stored:
        """Make a job's folder: it appears with everything in it, or not at all. Raises `JobExistsError` and `SubmitError`.

        `uid` is that of the job; "" draws one.
        """
        plan = blueprint.plan
        folder = self.job(plan.name)
        uid = uid or secrets.token_hex(8)
        record = JobRecord.new(name=plan.name, uid=uid, digest=plan.digest, owner=owner, claimant=blueprint.claimant, now=now)
        self._require_own(SubmitError)
        with telling(self.jobs, SubmitError):
            private_folder(self.jobs)
            tighten(self.jobs)
            self._clean()
            me = os.getpid()
            fresh = JobFolder(path=self.jobs / f"{_NEW}{me}-{proc.start_ticks(me)}-{plan.name}-{uid}")
            try:
                fresh.path.mkdir(mode=0o700)
                _write_plan(fresh, blueprint)
                durable.write_text(str(fresh.secret), f"{secrets.token_hex(32)}\n")
                durable.write_text(str(fresh.record), record.to_json())
                fresh.path.rename(folder.path)
            except OSError as error:
                shutil.rmtree(fresh.path, ignore_errors=True)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise JobExistsError(
                        f"name: {plan.name!r} was just taken by another submission; choose another name"
                    ) from error
                raise
            durable.sync_folder(str(self.jobs))
        stored = self.load(plan.name)
        if stored is None:
            raise BackendError(f"job {plan.name} was deleted right after submission")
        return stored

    def save(self, record: JobRecord, *, version: str, blueprint: Blueprint | None) -> Stored:
        """Replace the record (and the job and its plan) if it is still at `version`; raises `LockedError`."""
        self._require_own()
        folder = self.job(record.name)
        with telling(folder.record), _locked(folder) as inside:
            current = _read(folder.record)
            if current is None or _version(current) != version:
                raise ConflictError(f"job {record.name}: the record was changed by another process")
            if blueprint is not None:
                _write_plan(inside, blueprint)
            plan = read_optional(Plan, folder.plan)
            text = record.to_json()
            _write_record(inside, text, deletion=record.deletion)
        if plan is None:
            raise ConflictError(f"job {record.name}: the file plan.json of the job was deleted")
        return Stored(record=record, plan=plan, version=_version(text.encode()))

    def purge(self, record: JobRecord) -> None:
        """Remove a job of this name and uid; in one step it is no job any more, in the next its files go.

        Raises `LockedError`.
        """
        self._require_own()
        folder = self.job(record.name)
        with telling(folder.path), contextlib.suppress(ConflictError), _locked(folder):
            current = self.load(record.name)
            if current is not None and current.record.uid == record.uid:
                for node in folder.everyone():
                    node.remove_cgroup()
                # A name that is not taken: something else may have been left under that of the job.
                folder.path.rename(self.jobs / f"{_DELETED}{record.name}-{record.uid}-{secrets.token_hex(4)}")
                durable.sync_folder(str(self.jobs))
        with telling(self.jobs):
            self._clean()

    def _clean(self) -> None:
        """Remove what interrupted submissions and deletions left; what cannot be removed is logged and stays."""
        for path in self.jobs.iterdir() if self.jobs.is_dir() else ():
            deleted = path.name.startswith(_DELETED)
            if not deleted and not (path.name.startswith(_NEW) and _is_abandoned(path)):
                continue
            try:
                _remove(path)
            except OSError as error:
                log.info("cannot delete %s: %s", path, error)


class Hold:
    """The lock that makes one process a job's only supervisor."""

    def __init__(self, folder: JobFolder, holder: str) -> None:
        self._folder, self._holder = folder, holder
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock; raises `HeldError` or `JobNotFoundError`."""
        path, name = self._folder.supervisor_lock, self._folder.path.name
        while True:
            with telling(path):
                try:
                    with pinned(path.parent, path.parents[1]) as folder:
                        descriptor = durable.try_lock(str(folder / path.name))
                except FileNotFoundError as error:
                    raise JobNotFoundError(f"job {name!r} not found") from error
                if descriptor is None:
                    raise HeldError(name, (_read(path) or b"").decode().strip() or "another process")
                if _same_file(descriptor, path):
                    break
                os.close(descriptor)  # the job was deleted between the two, and perhaps submitted again
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the name is for people; a full disk must not leave a job without supervisor
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{self._holder} (process {os.getpid()} on {socket.gethostname()})\n".encode())

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _locked(folder: JobFolder) -> Iterator[JobFolder]:
    """Hold the lock of a job's record; yields the folder that is written to then, whatever a script puts in its place.

    It does not wait for the lock: a script of the job may hold it, and threads that wait are missing elsewhere.
    """
    with contextlib.ExitStack() as stack:
        try:
            inside = JobFolder(path=stack.enter_context(pinned(folder.path, folder.path.parent)))
            descriptor = durable.open_regular(str(inside.record_lock), os.O_RDWR | os.O_CREAT)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConflictError(f"job {folder.path.name} no longer exists") from error
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(
                f"{folder.record_lock}: another process has locked this file; end the process that holds the lock"
            ) from error
        yield inside


def _read(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _version(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _stored(folder: JobFolder, text: bytes, plan: Plan) -> Stored:
    try:
        record = JobRecord.from_json(text)
    except codec.WireError as error:
        raise BackendError(f"{folder.record}: {error}") from error
    require_job(record, plan, name=folder.path.name, where=str(folder.path))
    return Stored(record=record, plan=plan, version=_version(text))


def _write_plan(folder: JobFolder, blueprint: Blueprint) -> None:
    if blueprint.function:  # before the plan that needs it
        durable.write_text(str(folder.function), blueprint.function)
    if blueprint.plan.tls == AUTO and not folder.tls.exists():
        certificates.create(folder, blueprint.plan.name, time.time())
    for name, text in blueprint.attached.items():
        durable.write_text(str(folder.path / name), text)
    durable.write_text(str(folder.job), blueprint.job.to_yaml())
    durable.write_text(str(folder.plan), codec.dumps(blueprint.plan, indent=1) + "\n")


def _is_abandoned(path: Path) -> bool:
    """Return whether a folder was made by a submission that lives no more; False for a name that is none of ours."""
    made = _MADE.fullmatch(path.name)
    return made is not None and str(proc.start_ticks(int(made["pid"]))) != made["ticks"]


def _remove(path: Path) -> None:
    """Remove a folder, a file or a link; raises `OSError`, but not where another process removes it, too."""
    while os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _write_record(folder: JobFolder, text: str, *, deletion: bool) -> None:
    try:
        durable.write_text(str(folder.record), text)
    except OSError as error:
        if not deletion or error.errno not in FULL:
            raise
        # The ranks' logs are what fills a disk, and they go with the job: the wish to delete it must find room.
        _empty_logs(folder)
        durable.write_text(str(folder.record), text)


def _empty_logs(folder: JobFolder) -> None:
    # A script could replace any folder by a link to another one, also while this walks: nothing is opened by its path.
    for _, _, names, parent in os.fwalk(folder.path / "nodes", follow_symlinks=False):
        for name in names:
            if name.startswith("rank-") and name.endswith((".out", ".err")):
                with contextlib.suppress(OSError):
                    _empty(name, parent)


def _empty(name: str, parent: int) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def sweep(store: Store, now: float) -> None:
    """Delete every job that succeeded longer ago than its success TTL, as seen at `now`, in seconds since the epoch.

    Both times are of this machine's clock: its jobs cannot be another's.
    """
    for name in store.names():
        try:
            if _expired(store, name, now) is not None:
                _delete(store, name, now)
        except HeldError:
            continue  # it has a supervisor
        except BackendError as error:
            log.info(
                "job=%s: cannot check whether the job has ended and must be deleted: %s; retrying within some minutes",
                name,
                error,
            )


def _expired(store: Store, name: str, now: float) -> JobRecord | None:
    stored = store.load(name)
    if stored is None or not stored.record.attempts or stored.plan.job:  # a role goes with the whole job
        return None
    record = stored.record
    kept, ended = kept_for(record, Policy.from_plan(stored.plan)), record.attempts[-1].ended_at
    return record if kept is not None and ended is not None and now - ended >= kept else None


def _delete(store: Store, name: str, now: float) -> None:
    hold = Hold(store.job(name), "whoever deletes jobs that are over")
    hold.acquire()
    with contextlib.ExitStack() as held:
        held.callback(hold.release)
        record = _expired(store, name, now)  # it may have begun again meanwhile
        if record is not None:
            store.purge(record)
            log.info("job=%s: deleted the job, because it has succeeded and its success TTL has expired", name)
