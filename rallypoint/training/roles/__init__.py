"""Calls between the roles of a job: who runs where, request and reply, and queues.

A process needs neither torch nor numpy to use this package. Values of calls are JSON, bytes, numpy arrays and torch tensors.
"""

from __future__ import annotations

from rallypoint.training.roles.context import RoleContext, current
from rallypoint.training.roles.data_queue import DataQueue
from rallypoint.training.roles.errors import (
    AuthenticationError,
    CallTimeoutError,
    ProtocolError,
    QueueEmptyError,
    QueueFullError,
    RemoteError,
    Restarted,
    RolesError,
    UnreachableError,
    ValueTypeError,
)
from rallypoint.training.roles.group import Reply, RoleGroup
from rallypoint.training.roles.network import DEFAULT_TIMEOUT
from rallypoint.training.roles.peers import Peer, PeerState, peers, wait_for
from rallypoint.training.roles.registry import rpc
from rallypoint.training.roles.service import Service, serve

__all__ = [
    "DEFAULT_TIMEOUT",
    "AuthenticationError",
    "CallTimeoutError",
    "DataQueue",
    "Peer",
    "PeerState",
    "ProtocolError",
    "QueueEmptyError",
    "QueueFullError",
    "RemoteError",
    "Reply",
    "Restarted",
    "RoleContext",
    "RoleGroup",
    "RolesError",
    "Service",
    "UnreachableError",
    "ValueTypeError",
    "current",
    "peers",
    "rpc",
    "serve",
    "wait_for",
]
