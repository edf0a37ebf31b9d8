"""How a cluster is reached that no `Site` says: what must not be written down, and how its connections are kept. Pure."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from rallypoint.wire.errors import RallypointError

__all__ = ["NO_CREDENTIALS", "Credentials", "CredentialsError"]


class CredentialsError(RallypointError):
    """A text that holds no credentials; it is not shown."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What whoever opens a cluster was given for it. It is in no record, log, label, argument or environment.

    Attributes:
        kubeconfig: the text of one, JSON or YAML; "" is that of the `Site`. It is not shown.
        token: bearer token in the place of what else authenticates; "" is none. It is not shown.
        own_token: no token but `token` is used, whatever the environment of this process holds.
        read_only: nothing is started on the cluster in order to read from it.
        in_cluster: the cluster of the pod that this process runs in, whatever kubeconfig there is.
        verify_ssl: whether the server must prove who it is.
        ca_cert: certificates (PEM) of the authority of a Ray dashboard; "" is those of the system.
        tcp_keepalive: whether idle connections are probed, so that nothing on the way forgets them.
    """

    kubeconfig: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    own_token: bool = False
    read_only: bool = False
    in_cluster: bool = False
    verify_ssl: bool = True
    ca_cert: str = ""
    tcp_keepalive: bool = True

    @property
    def secret(self) -> bool:
        """Whether there is something in it that nobody may see."""
        return bool(self.kubeconfig or self.token)

    def to_json(self) -> str:
        """Return it as a text for a pipe between two processes, and for nothing else."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Credentials:
        """Read such a text; raises `CredentialsError`."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            # What was read is not told, nor is the error that holds a part of it.
            raise CredentialsError(
                "credentials: the document is not valid; expected the output of `Credentials.to_json`"
            ) from None


#: What a `Site` alone says.
NO_CREDENTIALS = Credentials()
