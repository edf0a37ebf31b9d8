"""The proof of a ledger that a test has replaced by a small server."""

from __future__ import annotations

from aiohttp import web

from rallypoint.backends.ray.line import health_page
from rallypoint.wire.proof import NONCE_HEADER, PROOF_HEADER, proof_of

__all__ = ["prove"]


def prove(request: web.Request, key: str) -> web.Response:
    """Return the health page of the ledger at the address of a request, with the proof of its key."""
    page = health_page(f"http://{request.host}")
    proof = proof_of(key, request.headers.get(NONCE_HEADER, "").encode(), page)
    return web.Response(body=page, headers={PROOF_HEADER: proof})
