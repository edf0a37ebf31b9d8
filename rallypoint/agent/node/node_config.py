"""What a node agent is started with."""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.signals import SIGNALS
from rallypoint.agent.tls import Tls
from rallypoint.agent.workers.logs import Streams
from rallypoint.agent.workers.tee import DEFAULT_PREFIX
from rallypoint.wire import env
from rallypoint.wire.plan import Plan

__all__ = ["NodeConfig"]


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What a node agent is started with.

    Attributes:
        plan: of the job.
        attempt, node, incarnation: which attempt, slot (-1: any) and replacement this is.
        unseen: the latest earlier incarnation of the slot whose end was not observed; 0 if there is none.
        host: name or address under which the other nodes reach this one.
        machine: its name for people, and for whoever keeps off it; "" is that address.
        folder: for shared memory files; `log_folder` for the workers' logs.
        streams: what goes to a file and what to the console.
        prefix: template of the console's line prefix.
        pod: every line goes to stdout, too, in the form of a pod's log (wire/podlog.py).
        signals: on which the agent leaves; its workers get any that is not in `SIGNALS` as their signal to end, too.
        cpus: to which the worker of a local rank is bound.
        environment: variables of every worker that take the place of the round's own.
        secret: of the job; "" where nobody else takes part.
        tls: certificates of the job; None is without TLS.
        bounded: of the logs on disk only the last lines are of use: what was copied is given back, old rounds' are removed.
    """

    plan: Plan
    attempt: int
    node: int
    incarnation: int
    host: str
    folder: Path
    log_folder: Path
    streams: Streams
    prefix: str = DEFAULT_PREFIX
    pod: bool = False
    bounded: bool = False
    machine: str = ""
    secret: str = ""
    tls: Tls | None = None
    unseen: int = 0
    signals: tuple[signal.Signals, ...] = SIGNALS
    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The machine, as it is told."""
        return self.machine or self.host

    @functools.cached_property
    def worker_environment(self) -> Mapping[str, str]:
        """Variables of all workers, with the key that signs what they exchange: the same on all nodes, and not the secret."""
        secret = (self.secret or secrets.token_hex(32)).encode()
        key = hmac.new(secret, b"exchange between workers", hashlib.sha256).hexdigest()
        return {**self.environment, env.EXCHANGE_KEY: key}
