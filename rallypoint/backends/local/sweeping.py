"""Deleting the folders of jobs that are over for long enough. Everything here blocks.

Both times are of this machine's clock: its jobs cannot be another's.
"""

from __future__ import annotations

import contextlib
import logging

from rallypoint.backends.contract import BackendError, HeldError
from rallypoint.backends.local.store import Hold, Store
from rallypoint.supervision.policy import Policy, kept_for
from rallypoint.supervision.record import JobRecord

__all__ = ["sweep"]

log = logging.getLogger(__name__)


def sweep(store: Store, now: float) -> None:
    """Delete every job that succeeded longer ago than its success TTL, as seen at `now`, in seconds since the epoch."""
    for name in store.names():
        try:
            if _expired(store, name, now) is not None:
                _delete(store, name, now)
        except HeldError:
            continue  # somebody looks after it
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
