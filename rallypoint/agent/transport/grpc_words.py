"""What both ends of the gRPC transport have in common: its one method, its limits, and how grpcio is imported.

```
rpc Session (stream AgentReport) returns (stream Answer)       /rallypoint.Coordinator/Session
```

Messages are the JSON of the wire, as over HTTP; no protobuf is compiled or needed. An agent has one stream for as long as it
knows this coordinator: its reports go up, the answers come down in the order in which they are found, each with the `sequence`
of its report. A stream and not a call for each report, because a server of gRPC is told nothing of connections: the end of the
stream is the end of the agent. It also saves a request's headers, twice for each report.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from types import ModuleType
from typing import Any

from rallypoint.agent.transport.service import BODY_LIMIT
from rallypoint.wire.codec import WireError
from rallypoint.wire.messages import TOKEN_HEADER, Reply, reply_from_json, reply_to_json
from rallypoint.wire.sanitize import parse

__all__ = ["SESSION", "TOKEN_KEY", "address", "answer_from_bytes", "answer_to_bytes", "grpcio", "limits", "why_not"]

#: The method.
SESSION = "/rallypoint.Coordinator/Session"

#: Key of the job's secret in the metadata; gRPC wants small letters.
TOKEN_KEY = TOKEN_HEADER.lower()

#: grpcio's handlers for a fork cost every start of a worker time, and complain: who forks here starts another program.
_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

#: grpcio has no option for the oldest version of TLS, and accepts 1.2. This variable names the ciphers of 1.2 alone; the one
#: named here needs a key that both sides know before, which no agent has. So only TLS 1.3 is left.
_CIPHERS, _NO_CIPHER = "GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305"

#: What grpcio reads of the environment, once, when it begins.
_READ_ONCE = {_FORK_SUPPORT: "0", _CIPHERS: _NO_CIPHER}

#: grpcio writes lines about handshakes to standard error itself, with what a client has sent in them, unescaped and as many as
#: the client causes: also at its level ERROR. The user may have chosen another level.
_VERBOSITY, _SILENT = "GRPC_VERBOSITY", "NONE"


@functools.cache
def grpcio() -> ModuleType:
    """Return the module `grpc`; raises `ImportError` where it is not installed."""
    given = {**_READ_ONCE, _VERBOSITY: os.environ.get(_VERBOSITY, _SILENT)}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        module = importlib.import_module("grpc")
        # Its thread stays from now on: to end it with the last connection would stop the event loop for a moment.
        importlib.import_module("grpc.aio").init_grpc_aio()
    finally:
        # Workers inherit our environment, and may use gRPC in their own way.
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
    return module


def why_not() -> str:
    """Return why gRPC cannot be spoken here, or "" where it can."""
    try:
        grpcio()
    except ImportError as error:
        return f"cannot import grpcio: {error}"
    return ""


def limits() -> list[tuple[str, Any]]:
    """Return the options of servers and channels alike."""
    return [("grpc.max_receive_message_length", BODY_LIMIT), ("grpc.max_send_message_length", BODY_LIMIT)]


def address(host: str, port: int) -> str:
    """Return `host:port` as gRPC names it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def answer_to_bytes(sequence: int, reply: Reply) -> bytes:
    """Return the answer to the report of that sequence."""
    return json.dumps({"sequence": sequence, "reply": reply_to_json(reply)}).encode()


def answer_from_bytes(data: bytes) -> tuple[int, Reply]:
    """Read an answer; raises `WireError`, of which `VersionError` is one."""
    try:
        told = parse(data)
    except ValueError as error:
        raise WireError("", data[:80], f"JSON text ({error})") from error
    if not isinstance(told, dict) or type(told.get("sequence")) is not int:
        raise WireError("message of the coordinator", told, "an object with the keys sequence (a number) and reply")
    return told["sequence"], reply_from_json(told.get("reply"))
