"""A connection of type `rallypoint`: where jobs run, and the defaults of jobs. Pure.

The token is the connection's password, which Airflow encrypts and masks; all other fields are in its extra.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.backends.site import (
    ADDRESS_ALLOWED,
    KUBERNETES,
    LOCAL,
    RAY,
    STORAGE_ALLOWED,
    shown,
    wrong_address,
    wrong_storage,
)
from rallypoint.wire.arguments import PLATFORMS, WORDS
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.sanitize import parse

__all__ = [
    "CONN_TYPE",
    "KNOWN",
    "NO_DEFAULTS",
    "POLICIES",
    "ConnectionFieldError",
    "Defaults",
    "Fields",
    "Settings",
    "read_extra",
    "read_settings",
    "refuse_unknown",
    "text_of",
]

CONN_TYPE = "rallypoint"

#: Policy blocks of a job for which a connection may have defaults.
POLICIES = ("fault_tolerance", "recovery", "rendezvous", "health", "logs")

#: Fields that are allowed only for a cluster, and only for this machine.
_OF_CLUSTERS = (
    "kubernetes_conn_id",
    "namespace",
    "image",
    "account",
    "coordinator_account",
    "queue",
    "supervisor_image",
    "network_policy",
)
_OF_THIS_MACHINE = ("home",)
_OF_RAY = ("address", "namespace", "storage")

#: Further fields of a Ray cluster that are not plain strings.
_OBJECTS_OF_RAY = ("runtime_env", "verify_ssl", "ca_cert")

#: Fields of these that are allowed for each platform.
_FIELDS_OF = {LOCAL: _OF_THIS_MACHINE, KUBERNETES: _OF_CLUSTERS, RAY: _OF_RAY}

#: Every field of the extra.
KNOWN = ("platform", "policies", "arguments", *_OF_CLUSTERS, *_OF_THIS_MACHINE, "address", "storage", *_OBJECTS_OF_RAY)

#: DLRover arguments for which a connection may have defaults: all except those that select the job and its place.
_ARGUMENTS = tuple(name for name in WORDS if name not in {"job_name", "namespace", "platform"})

#: Fields of Airflow connections that this type does not use.
_UNUSED = ("host", "schema", "login", "port")

#: Fields of Airflow connections that this type uses.
Fields = Mapping[str, Any]


#: Fields that hold no credentials: errors show their values, if these are plain words.
_WORDS = frozenset(("platform", "kubernetes_conn_id", "cluster_context", *_OF_CLUSTERS, *_OF_THIS_MACHINE))
_WORD, _NAME = re.compile(r"[\w./~][\w./:~-]{0,99}", re.ASCII), re.compile(r"\w[\w.-]{0,59}", re.ASCII)


class ConnectionFieldError(RallypointError):
    """A field of a connection has a value that is not allowed.

    Users paste credentials into wrong fields, so the error shows the type and the length of a value; it shows the value
    itself only if that is an address without credentials, or a plain word in a field for words.
    """

    def __init__(self, conn_id: str, field: str, value: object, allowed: str) -> None:
        named = field if _NAME.fullmatch(field.replace(" and ", "")) else f"a field with a name of length {len(field)}"
        super().__init__(f"connection {conn_id!r}: {named}: {_shown(field, value)} is not allowed; expected {allowed}")
        self.conn_id, self.field, self.allowed = conn_id, field, allowed


def _shown(field: str, value: object) -> str:
    """Return how an error names a value; None is a value of which nothing is shown."""
    if isinstance(value, str):
        words = field in _WORDS and _WORD.fullmatch(value)
        return repr(value) if words else shown(field if field == "address" else "runtime_env", value)
    kind = next((name for types, name in _TYPES if isinstance(value, types)), "")
    return f"the value ({kind})" if kind else "the value"


#: Kinds of JSON values; a `bool` is an `int`.
_TYPES = ((bool, "true or false"), ((int, float), "a number"), (list, "a list"), (dict, "an object"))


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Defaults for values that neither the job document nor the operator's arguments set; "" is no default.

    Attributes:
        image: container image.
        account, coordinator_account: service accounts of the nodes and of the coordinator.
        queue: Kueue's local queue.
        supervisor_image: image of supervisor pods.
        network_policy: in the form of the job document.
        policies: policy blocks in the form of the job document.
        arguments: DLRover's arguments, by name.
    """

    image: str = ""
    account: str = ""
    coordinator_account: str = ""
    queue: str = ""
    supervisor_image: str = ""
    network_policy: str = ""
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


#: For a task without such a connection.
NO_DEFAULTS = Defaults()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A connection of type `rallypoint`, read.

    Attributes:
        conn_id: its ID, for errors.
        platform: `local`, `kubernetes` or `ray`.
        kubernetes_conn_id: connection to the cluster; "" selects the cluster as kubectl does.
        namespace, home: as in `Site`.
        address, storage, runtime_env: as in `Site`.
        token: bearer token for the cluster; replaces other credentials.
        verify_ssl: whether the certificate of a Ray dashboard is verified.
        ca_cert: certificates (PEM) of its authority; "" selects those of the system.
    """

    conn_id: str
    platform: str = LOCAL
    kubernetes_conn_id: str = ""
    namespace: str = ""
    home: str = ""
    address: str = ""
    storage: str = ""
    runtime_env: str = ""
    token: str = field(default="", repr=False)
    verify_ssl: bool = True
    ca_cert: str = ""
    defaults: Defaults = NO_DEFAULTS


def read_extra(conn_id: str, extra: str | None) -> dict[str, Any]:
    """Return a connection's extra as a mapping; raises `ConnectionFieldError`."""
    try:
        found = parse(extra) if extra and extra.strip() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConnectionFieldError(conn_id, "extra", None, "a JSON object")
    return found


def text_of(conn_id: str, extra: Fields, name: str) -> str:
    """Return a field that is a string; "" if it is absent or empty."""
    value = extra.get(name)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or value.split() != [value]:
        raise ConnectionFieldError(conn_id, name, value, "a text without white space, also at its beginning and its end")
    return value


def refuse_unknown(conn_id: str, extra: Fields, known: tuple[str, ...]) -> None:
    """Raise `ConnectionFieldError` for an unknown field, which may be a spelling mistake."""
    for name, value in extra.items():
        if name not in known:
            raise ConnectionFieldError(conn_id, f"extra.{name}", value, f"only {', '.join(known)}")


def read_settings(conn_id: str, *, own: Fields, extra: Fields) -> Settings:
    """Read a connection from its `own` fields (`password` and other fields of Airflow) and its extra.

    Raises `ConnectionFieldError`.
    """
    for name in _UNUSED:
        if own.get(name):
            raise ConnectionFieldError(conn_id, name, own[name], "no value; add this setting to the JSON in the field extra")
    refuse_unknown(conn_id, extra, KNOWN)
    password = own.get("password") or ""
    if password and password.split() != [password]:
        raise ConnectionFieldError(conn_id, "password", None, "a token without white space, also at its beginning and its end")
    platform = _platform(conn_id, text_of(conn_id, extra, "platform") or LOCAL)
    words = {name: text_of(conn_id, extra, name) for name in (*_OF_CLUSTERS, *_OF_THIS_MACHINE, "address", "storage")}
    others = {} if platform == RAY else {name: extra.get(name) for name in _OBJECTS_OF_RAY}
    for name, value in {**words, **others}.items():
        if value and name not in _FIELDS_OF[platform]:
            raise ConnectionFieldError(conn_id, name, value, f"no value, because the platform is {platform!r}")
    if password and platform == LOCAL:
        raise ConnectionFieldError(conn_id, "password", None, f"no value, because the platform is {platform!r}")
    where: dict[str, Any] = {
        name: words.pop(name) for name in ("kubernetes_conn_id", "namespace", "home", "address", "storage")
    }
    if platform == RAY:
        where.update(_of_ray(conn_id, extra, where["address"], where["storage"]))
    arguments = _arguments(conn_id, extra.get("arguments"))
    defaults = Defaults(**words, policies=_policies(conn_id, extra.get("policies")), arguments=arguments)
    return Settings(conn_id=conn_id, platform=platform, token=password, defaults=defaults, **where)


def _of_ray(conn_id: str, extra: Fields, address: str, storage: str) -> dict[str, Any]:
    """Return the fields of a Ray cluster that are not plain strings."""
    if wrong_address(address):
        raise ConnectionFieldError(conn_id, "address", address, ADDRESS_ALLOWED)
    if wrong_storage(storage):
        raise ConnectionFieldError(conn_id, "storage", storage, STORAGE_ALLOWED)
    runtime_env = _object(conn_id, "runtime_env", extra.get("runtime_env"), "a JSON object, such as {'working_dir': '...'}")
    verify = extra.get("verify_ssl")
    if verify not in (None, "", True, False):
        raise ConnectionFieldError(conn_id, "verify_ssl", verify, "true or false")
    ca_cert = extra.get("ca_cert") or ""
    if not isinstance(ca_cert, str) or (ca_cert and not _is_certificates(ca_cert)):
        raise ConnectionFieldError(conn_id, "ca_cert", ca_cert, "CA certificates in PEM format")
    told = json.dumps(runtime_env) if runtime_env else ""
    return {"runtime_env": told, "verify_ssl": verify is not False, "ca_cert": ca_cert}


def _is_certificates(text: str) -> bool:
    try:
        ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        return False
    return True


def _platform(conn_id: str, platform: str) -> str:
    """Return the backend of a platform, also for DLRover's names."""
    meant = PLATFORMS.get(platform)
    if meant is None:
        raise ConnectionFieldError(conn_id, "platform", platform, f"one of {', '.join(sorted(PLATFORMS))}")
    return meant


def _policies(conn_id: str, given: Any) -> dict[str, dict[str, Any]]:
    """Return the policy blocks; the job validates their fields."""
    allowed = f"a JSON object of {', '.join(POLICIES)}, each a JSON object"
    found = _object(conn_id, "policies", given, allowed)
    for name, block in found.items():
        if name not in POLICIES or not isinstance(block, dict):
            raise ConnectionFieldError(conn_id, f"policies.{name}", block, allowed)
    return found


def _arguments(conn_id: str, given: Any) -> dict[str, Any]:
    """Return DLRover's arguments, by name; the job validates their values."""
    allowed = f"a JSON object of DLRover arguments: {', '.join(_ARGUMENTS)}"
    found = _object(conn_id, "arguments", given, allowed)
    for name, value in found.items():
        if name.replace("-", "_") not in _ARGUMENTS:
            raise ConnectionFieldError(conn_id, f"arguments.{name}", value, allowed)
    return found


def _object(conn_id: str, name: str, given: Any, allowed: str) -> dict[str, Any]:
    """Return a field that is a mapping, or the JSON text of a mapping (from the form)."""
    if isinstance(given, str) and given.strip():
        try:
            given = parse(given)
        except ValueError:
            raise ConnectionFieldError(conn_id, name, given, allowed) from None
    if given is None or given == "":
        return {}
    if not isinstance(given, dict):
        raise ConnectionFieldError(conn_id, name, given, allowed)
    return given
