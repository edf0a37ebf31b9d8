"""Which jobs are meant: on which backend, and where there. A frozen value of plain words, so that it travels anywhere. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rallypoint.wire.arguments import NAMESPACE, NAMESPACE_ALLOWED, RAY
from rallypoint.wire.errors import RallypointError

__all__ = ["ADDRESS_ALLOWED", "KINDS", "KUBERNETES", "LOCAL", "RAY", "Site", "SiteError", "wrong_address"]

LOCAL = "local"
KUBERNETES = "kubernetes"

#: The fields of a `Site` that each backend knows.
KINDS = {
    LOCAL: ("home",),
    KUBERNETES: ("namespace", "context", "kubeconfig"),
    RAY: ("address", "namespace", "storage", "runtime_env"),
}


#: The address of a Ray cluster, for errors.
ADDRESS_ALLOWED = "the URL of the Ray dashboard, such as http://ray-head:8265"

#: Characters before or after which an address may hold a password or a token.
_PRIVATE = re.compile(r"[@?#]")


def wrong_address(address: str) -> str:
    """Return how an error names an address that is not allowed, without a password or token; "" if it is allowed.

    An address is stored with tasks and triggers and stands on command lines, so it may contain no user, query or fragment.
    """
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        right = right and "@" not in parts.netloc and not re.search("[?#]", address)
    except ValueError:  # of a port or of brackets
        right = False
    shown = "the value" if _PRIVATE.search(address) else repr(address)
    return "" if right else shown


class SiteError(RallypointError):
    """A site that cannot be; `field` says which word of it is wrong."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field, self.text = field, text


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where jobs are. What is "" is found as the backend finds it by itself. Holds no credentials.

    Attributes:
        kind: `local`, `kubernetes` or `ray`.
        home: folder of the jobs of this machine; "" is $RALLYPOINT_HOME, or else ~/.rallypoint.
        namespace, context, kubeconfig: as kubectl's options of these names; "" is what kubectl would take, or inside of a pod
            the pod's own cluster and namespace. With `ray`, `namespace` is Ray's.
        address: URL of the dashboard of a Ray cluster, which serves its Jobs API.
        storage: folder of the ledger on that cluster; "" is `~/.rallypoint/ray/NAMESPACE` on its head node.
        runtime_env: runtime environment of the nodes there, as a JSON object.

    Raises:
        SiteError: for another kind, a word that this kind does not know, or a namespace or address that no cluster can have.
    """

    kind: str = LOCAL
    home: str = ""
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    address: str = ""
    storage: str = ""
    runtime_env: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SiteError("backend", f"{self.kind!r} is not allowed; expected one of {', '.join(sorted(KINDS))}")
        for field in dict.fromkeys(field for fields in KINDS.values() for field in fields):
            value = getattr(self, field)
            if value and field not in KINDS[self.kind]:
                allowed = ", ".join(KINDS[self.kind])
                raise SiteError(
                    field, f"{value!r} is not allowed with backend {self.kind}; settings of this backend: {allowed}"
                )
        if self.namespace and not re.fullmatch(NAMESPACE, self.namespace):
            raise SiteError("namespace", f"{self.namespace!r} is not allowed; expected {NAMESPACE_ALLOWED}")
        if self.address and (wrong := wrong_address(self.address)):
            raise SiteError("address", f"{wrong} is not allowed; expected {ADDRESS_ALLOWED}")

    @property
    def on_this_machine(self) -> bool:
        """Whether paths in a job are paths of this machine; elsewhere they are those of an image."""
        return self.kind == LOCAL

    def options(self) -> tuple[str, ...]:
        """Return the options with which the `rallypoint` command finds the jobs there.

        They are on command lines that all users of a machine can read, so they do not contain the values of `runtime_env`.
        """
        given = ((field, getattr(self, field)) for field in KINDS[self.kind] if field != "runtime_env")
        words = ((f"--{field.replace('_', '-')}", value) for field, value in given if value)
        return ("--backend", self.kind, *(part for pair in words for part in pair))
