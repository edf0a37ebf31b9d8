"""Which jobs are meant: on which backend, and where there. A frozen value of plain words, so that it travels anywhere. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from rallypoint.wire.arguments import NAMESPACE, NAMESPACE_ALLOWED, RAY
from rallypoint.wire.errors import RallypointError

__all__ = [
    "ADDRESS_ALLOWED",
    "KINDS",
    "KUBERNETES",
    "LOCAL",
    "RAY",
    "STORAGE_ALLOWED",
    "Site",
    "SiteError",
    "shown",
    "wrong_address",
    "wrong_storage",
]

LOCAL = "local"
KUBERNETES = "kubernetes"

#: The fields of a `Site` that each backend knows.
KINDS = {
    LOCAL: ("home",),
    KUBERNETES: ("namespace", "context", "kubeconfig"),
    RAY: ("address", "namespace", "storage", "runtime_env"),
}


#: The address of a Ray cluster, for errors.
ADDRESS_ALLOWED = (
    "the URL of the Ray dashboard, such as http://ray-head:8265, without user name, password, query, fragment and white space"
)

#: The storage of a Ray cluster, for errors.
STORAGE_ALLOWED = (
    "a folder of the head node, or an fsspec URL without user name, password, query and fragment, such as s3://bucket/ray; "
    "set the credentials of the file system on the head node"
)

#: Characters before or after which an address or a URL may hold a password or a token.
_PRIVATE = re.compile("[@?#]")

#: White space and control characters. Parsers of URLs remove them, other programs do not.
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")

#: A folder, or a URL without credentials. In a URL of Azure, the name before `@` is that of a container.
_AZURE = re.compile(r"abfss?://[a-z0-9$-]+@[A-Za-z0-9.-]+(/.*)?")
_URL, _PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*::?//|.*::"), re.compile(":.*@")

#: Forms of values that hold no credentials, and that errors show.
_HOST = r"[A-Za-z0-9.-]{1,100}"
_FORMS = {
    "address": re.compile(rf"|[a-z]{{1,10}}://{_HOST}(:\d{{1,5}})?/?|{_HOST}:\d{{1,5}}"),
    "storage": re.compile(r"[\w./~-]{0,200}|[a-z0-9]{1,10}://[\w./-]{0,200}"),
    "runtime_env": re.compile(""),
}


def shown(field: str, value: str) -> str:
    """Return how an error names the value of a field: without its text if it may hold a password or a token."""
    form = _FORMS.get(field)
    return repr(value) if form is None or form.fullmatch(value) else f"the value (a text of length {len(value)})"


def wrong_address(address: str) -> str:
    """Return how an error names an address that is not allowed, without a password or token; "" if it is allowed.

    An address is stored with tasks and triggers and stands on command lines, so it may contain no user, query or fragment.
    """
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # of a port or of brackets
        right = False
    right = right and not _PRIVATE.search(address) and not _SPACE.search(address)
    return "" if right else shown("address", address)


def wrong_storage(storage: str) -> str:
    """Return how an error names a storage that is not allowed, without its credentials; "" if it is allowed.

    It is stored and shown like an address.
    """
    if _URL.match(storage):
        wrong = _PRIVATE.search(storage.partition("@")[2] if _AZURE.fullmatch(storage) else storage)
    else:
        wrong = _PASSWORD.search(storage)
    return shown("storage", storage) if wrong or _SPACE.search(storage) else ""


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
        SiteError: for another kind, a word that this kind does not know, or a wrong namespace, address or storage.
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
                    field, f"{shown(field, value)} is not allowed with backend {self.kind}; settings of this backend: {allowed}"
                )
        if self.namespace and not re.fullmatch(NAMESPACE, self.namespace):
            raise SiteError("namespace", f"{self.namespace!r} is not allowed; expected {NAMESPACE_ALLOWED}")
        if self.address and (wrong := wrong_address(self.address)):
            raise SiteError("address", f"{wrong} is not allowed; expected {ADDRESS_ALLOWED}")
        if wrong := wrong_storage(self.storage):
            raise SiteError("storage", f"{wrong} is not allowed; expected {STORAGE_ALLOWED}")

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
