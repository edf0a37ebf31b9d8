"""The proof of a server that it has the secret of the job, before a client sends the secret as its token. Pure.

Another program may have the address at which a client expects a part of its job: a port that was free, or the address of a pod
that has ended. So the client sends a nonce with its request for the health page, and the server adds to the page an
HMAC-SHA256 of the nonce and the page under the secret. The page names the service, so the proof of one service is none of
another. Without TLS, a program that forwards requests to the real service is not detected.
"""

from __future__ import annotations

import hmac
import re
import secrets

__all__ = ["NONCE_HEADER", "PROOF_HEADER", "is_proven", "new_nonce", "proof_of"]

NONCE_HEADER, PROOF_HEADER = "X-Rallypoint-Nonce", "X-Rallypoint-Proof"

_LABEL = b"rallypoint health page\n"

_NONCE = re.compile(rb"[0-9a-f]{32}")


def new_nonce() -> str:
    """Return a nonce for one request."""
    return secrets.token_hex(16)


def proof_of(secret: str, nonce: bytes, page: bytes) -> str:
    """Return the proof for a page; "" for what is no nonce."""
    if not _NONCE.fullmatch(nonce):
        return ""
    return hmac.digest(secret.encode(), _LABEL + nonce + b"\n" + page, "sha256").hex()


def is_proven(secret: str, nonce: str, page: bytes, proof: str) -> bool:
    """Return whether a proof is the one for this nonce and page."""
    return hmac.compare_digest(proof_of(secret, nonce.encode(), page).encode(), proof.encode(errors="replace"))
