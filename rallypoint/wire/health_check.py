"""The health check by which a client finds out whether a server has the secret of the job, before it sends its token."""

from __future__ import annotations

import http.client

from rallypoint.wire.paths import HEALTH_PATH
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, is_proven, new_nonce
from rallypoint.wire.sanitize import parse

__all__ = ["DIRECTORY", "has_proven", "health_page"]

#: Name of the role directory on its health page.
DIRECTORY = "rallypoint-directory"

#: Maximum size of a health page, in bytes.
_LIMIT = 1 << 16


def health_page(service: str, port: int) -> dict[str, str | int]:
    """Return the health page of the service at a port.

    The proof covers the page, so a program at another port of the same machine cannot use the proof of the service as its own.
    """
    return {"service": service, "port": port}


def has_proven(connection: http.client.HTTPConnection, service: str, token: str) -> bool:
    """Return whether a service with this token answers at the address of a connection; the connection is closed.

    Raises `OSError` and `http.client.HTTPException`.
    """
    nonce = new_nonce()
    try:
        connection.request("GET", HEALTH_PATH, headers={NONCE_HEADER: nonce})
        answer = connection.getresponse()
        text, proof = answer.read(_LIMIT), answer.headers.get(PROOF_HEADER, "")
    finally:
        connection.close()
    if not is_proven(token, nonce, text, proof):
        return False
    try:
        return bool(parse(text) == health_page(service, connection.port))
    except ValueError:
        return False
