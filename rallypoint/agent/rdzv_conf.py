"""The keys of --rdzv-conf: torchrun's, dlrover-run's and our own, and what each of them sets. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from rallypoint.agent.errors import UsageError
from rallypoint.wire.arguments import unquoted

__all__ = ["KNOWN", "WITHOUT_EFFECT", "RdzvConf", "parse_rdzv_conf"]

#: Keys in seconds, and the field of the plan that each sets.
_SECONDS: Mapping[str, str] = {
    "join_timeout": "join_timeout",
    "timeout": "join_timeout",
    "last_call_timeout": "last_call",
    "lastcall_timeout": "last_call",
    "node_lease": "node_lease",
    "fence_timeout": "fence_timeout",
}

#: torchrun's two keys that say together when a silent node is lost, with its defaults.
_ALIVE: Mapping[str, float] = {"keep_alive_interval": 5.0, "keep_alive_max_attempt": 3.0}

#: Keys of torchrun and dlrover-run that change nothing here, and why.
WITHOUT_EFFECT: Mapping[str, str] = {
    "close_timeout": "Rallypoint ends each rendezvous without a delay",
    "heartbeat_timeout": "use the key node_lease: time without a report after which a node counts as lost",
    "pend_timeout": "a node beyond the maximum of --nnodes waits for the next round",
    "rank": "the flag --node-rank sets the rank of the node",
    "read_timeout": "the coordinator notifies waiting agents immediately",
    "store_type": "each round starts a new TCPStore",
    "use_libuv": "each round starts a new TCPStore",
    **dict.fromkeys(
        ("protocol", "cacert", "ca_cert", "cert", "key", "ssl_cert", "ssl_cert_key", "etcd_prefix"), "Rallypoint uses no etcd"
    ),
}

KNOWN = frozenset({*_SECONDS, *_ALIVE, *WITHOUT_EFFECT, "node_unit", "is_host", "insecure_token"})

#: Seconds; zero of them would be none at all.
_LEAST = 1e-9

_TRUE, _FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


@dataclass(frozen=True, kw_only=True)
class RdzvConf:
    """What --rdzv-conf says.

    Attributes:
        limits: seconds, by the name of the plan's field.
        node_unit: None where it says nothing.
        is_host: whether this agent hosts the coordinator; None leaves it to who can open the port.
        insecure_token: the agents may do without a secret.
        notes: what was accepted and has no effect.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    node_unit: int | None = None
    is_host: bool | None = None
    insecure_token: bool = False
    notes: tuple[str, ...] = ()


def parse_rdzv_conf(text: str) -> RdzvConf:
    """Read `KEY=VALUE,...`; raises `UsageError` for a value that is not allowed.

    An unknown key is a note, since torchrun ignores it. Quotes around the whole text are dropped: shells that split a command
    line from a file or a template leave them there, and torch's own tests pass them.
    """
    given = dict(_pairs(unquoted(text)))
    limits = {_SECONDS[key]: _seconds(key, value) for key, value in given.items() if key in _SECONDS}
    if given.keys() & _ALIVE.keys():
        interval, attempts = (_seconds(key, given[key]) if key in given else usual for key, usual in _ALIVE.items())
        limits.setdefault("node_lease", interval * attempts)
    notes = [f"--rdzv-conf {key}: ignored; {why}" for key, why in WITHOUT_EFFECT.items() if key in given]
    notes += [f"--rdzv-conf {key}: ignored; {_unknown(key)}" for key in given if key not in KNOWN]
    return RdzvConf(
        limits=limits,
        node_unit=_unit(given["node_unit"]) if "node_unit" in given else None,
        is_host=_flag("is_host", given["is_host"]) if "is_host" in given else None,
        insecure_token="insecure_token" in given and _flag("insecure_token", given["insecure_token"]),
        notes=tuple(notes),
    )


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, KNOWN, n=1)
    effective = ", ".join(sorted(KNOWN - WITHOUT_EFFECT.keys()))
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; expected one of {effective}"


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value:
            raise UsageError(
                f"--rdzv-conf: setting {item} is not allowed; expected KEY=VALUE, such as {key or 'join_timeout'}=60"
            )
        pairs.append((key, value))
    return pairs


def _seconds(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    least = 0.0 if _SECONDS.get(key) == "last_call" else _LEAST
    if not least <= number < float("inf"):
        what = "a number" if key == "keep_alive_max_attempt" else "seconds"
        allowed = f"{what}, {'more than 0' if least else '0 or more'}"
        raise UsageError(f"--rdzv-conf {key} {text!r}: not allowed; expected {allowed}")
    return number


def _unit(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--rdzv-conf node_unit {text!r}: not allowed; expected a number of nodes, 1 or more")
    return int(text)


def _flag(key: str, text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise UsageError(f"--rdzv-conf {key} {text!r}: not allowed; expected true or false")
    return text.lower() in _TRUE
